"""The connector on Spark: an application reads a queue and is killed with -9 when it has read its
second batch and not yet written it.

What was written and what is in the queue must add up: everything is in one of the two, and nothing
is in both, because the first batch was settled before the second one began.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet

from tests.spark.brokers import secret_file
from tests.spark.connector.doomed import die
from tests.spark.connector.doomed_app import MESSAGES_PER_BATCH
from tests.spark.connector.scene import fill, ids, taken
from tests.support.broker_process import BrokerProcess

MESSAGE_COUNT = 300
LOCK_S = 5.0
QUEUE = "orders"


@dataclass(frozen=True, slots=True)
class OnSpark:
    """One application."""

    name: str = "connector on Spark"
    unit: str = "applications"
    rounds_max: int = 1
    has_processes: bool = True

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        for number in range(self.rounds_max):
            home = directory / str(number)
            home.mkdir()
            with BrokerProcess(home / "data") as broker:
                yield _complaints(broker, home)


def _complaints(broker: BrokerProcess, directory: Path) -> list[str]:
    broker.create_queue(QUEUE, lock_duration_ms=int(LOCK_S * 1_000), max_delivery_count=1_000)
    fill(broker, QUEUE, ids(MESSAGE_COUNT))
    secret = directory / "connection"
    secret_file(secret, broker)
    die("read", secret, QUEUE, directory)
    # What it held is free when its locks have run out.
    time.sleep(LOCK_S + 1)
    left, written = taken(broker, QUEUE), _written(directory / "output")
    both, neither = set(left) & set(written), set(ids(MESSAGE_COUNT)) - {*left, *written}
    complaints = [f"lost: {len(neither)} are neither written nor in the queue"] if neither else []
    if both:
        complaints.append(f"written and not settled: {len(both)} are in the queue, too")
    if len(written) < MESSAGES_PER_BATCH // 2:
        complaints.append(f"too little: {len(written)} were written at all")
    return complaints


def _written(directory: Path) -> list[str]:
    files = sorted(directory.glob("*.parquet"))
    columns = [parquet.read_table(file, columns=["messageId"])["messageId"] for file in files]
    return [name for column in columns for name in column.to_pylist()]
