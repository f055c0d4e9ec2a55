"""The payload of one transfer: checked, taken apart, ready for a queue.

The first byte chooses the queue and the message format. A turn, as the broker gives it, is one
call.
"""

from __future__ import annotations

import time
from random import Random
from typing import Final

from twinbus.amqp.errors import AmqpError
from twinbus.amqp.limits import DEFAULT_LIMITS
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.server.ingest import FORMAT_BATCH, FORMAT_MESSAGE, Ingestion
from twinbus.common.clock import Instant
from verification.fuzz import grammar
from verification.fuzz.oracle import Meter
from verification.fuzz.targets.base import BaseTarget

QUEUES: Final = (
    QueueDescription(path="plain"),
    QueueDescription(path="once", requires_duplicate_detection=True),
    QueueDescription(path="sessions", requires_session=True),
    QueueDescription(path="short", default_ttl_ms=60_000),
    QueueDescription(path="parted", enable_partitioning=True),
)
# What the broker gives a sender before others have their turn.
TURN_S: Final = 0.003
NOON: Final = Instant(1_000.0, 1_800_000_000_000)


class IngestTarget(BaseTarget):
    name = "ingest"
    documented = (AmqpError,)

    def generate(self, random: Random, size: int) -> bytes:
        is_batch = random.random() < 0.4
        first = 2 * random.randrange(len(QUEUES)) + is_batch
        make = grammar.batch if is_batch else grammar.message
        return bytes((first,)) + make(random, size)

    def execute(self, data: bytes, meter: Meter) -> None:
        first = data[0] if data else 0
        queue = QUEUES[(first >> 1) % len(QUEUES)]
        message_format = FORMAT_BATCH if first & 1 else FORMAT_MESSAGE
        meter.begin()
        ingestion = meter.call(
            "begin", Ingestion, data[1:], message_format, queue, DEFAULT_LIMITS, NOON
        )
        while not meter.call("go_on", ingestion.go_on, time.monotonic() + TURN_S):
            pass  # Others have their turn.


def make() -> IngestTarget:
    return IngestTarget()
