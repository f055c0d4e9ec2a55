"""Bringing a backlog home: our mover between two brokers, next to RabbitMQ's Shovel.

Both move messages that are durable on one broker to a durable queue of another and settle each
one after the other broker has confirmed it. A rate is counted from the first arrivals to the
last, so that neither pays for its start.

    secondary (10 backlog queues)  --twinbus syphon --local-->  primary
    node 1 (quorum queue)          --shovel, on-confirm------>  node 2
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from verification.benchmarks.pairing import QUEUE, two_nodes
from verification.benchmarks.processes import BenchError, wait_for
from verification.benchmarks.report import Figure
from verification.benchmarks.run import KILOBYTE, Bench, progress
from verification.benchmarks.shovel import NAME, Shovel
from verification.benchmarks.twinbus_node import TwinbusNode

MESSAGES: Final = 200_000
MESSAGES_SHOVEL: Final = 100_000
BACKLOG_QUEUES: Final = 10
BATCH: Final = 100
SIZES: Final = {"1kb": KILOBYTE, "250b": 250}
MOVE_S_MAX: Final = 300.0
POLL_S: Final = 0.02


def scenario(bench: Bench, name: str) -> list[Figure]:
    """Both movers, both sizes, in turn."""
    if bench.ours is None:
        return []
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-shovel-") as directory:
        shovel = Shovel(Path(directory))
        shovel.start()
        try:
            for number in range(1, bench.rounds + 1):
                for label, size_bytes in SIZES.items():
                    ours = move(MESSAGES, size_bytes)
                    theirs = shovel.move(MESSAGES_SHOVEL, size_bytes)
                    rates.setdefault(("ours", label), []).append(ours)
                    rates.setdefault((NAME, label), []).append(theirs)
                    progress(f"{name} {label}, round {number}: {ours:,.0f} and {theirs:,.0f}")
        finally:
            shovel.stop()
    bench.raw[name] = {f"{who} {label}": values for (who, label), values in rates.items()}
    return [
        Figure(
            name=f"{name}_{label}", value=statistics.median(rates["ours", label]), unit="msg/s",
            peer=NAME, peer_value=statistics.median(rates[NAME, label]), wanted="no promise yet",
        )
        for label in SIZES
    ]  # fmt: skip


def move(messages: int, size_bytes: int) -> float:
    """Messages a second of one run of ``twinbus syphon --local --once``."""
    with two_nodes() as (home, away):
        for index in range(BACKLOG_QUEUES):
            away.create_queue(_backlog(index))
        asyncio.run(_fill(away, messages, size_bytes))
        process = _start_mover(home, away)
        try:
            rate = _rate_of_arrival(home, messages)
        finally:
            process.wait(MOVE_S_MAX)
        if process.returncode != 0:
            raise BenchError(f"the mover ended with {process.returncode}")
        left = sum(away.size_bytes(_backlog(index)) for index in range(BACKLOG_QUEUES))
        if left or home.active(QUEUE) != messages:
            raise BenchError(f"{home.active(QUEUE)} of {messages} messages came home")
        return rate


def _backlog(index: int) -> str:
    return f"home/x-servicebus-transfer/{index}"


async def _fill(away: TwinbusNode, messages: int, size_bytes: int) -> None:
    """As diverted senders would have: aliased copies, spread over the queues."""
    from twinbus.common.connection_string import parse_connection_string
    from twinbus.drivers.amqp import AmqpDriver
    from twinbus.encoding.brokered_message import encode_message
    from twinbus.encoding.envelope import alias
    from twinbus.encoding.transit import OutgoingMessage
    from twinbus.message import BrokeredMessage

    driver = AmqpDriver.from_connection_string(parse_connection_string(away.connection_string))
    body = bytes(size_bytes)
    try:
        senders = [driver.sender(_backlog(index)) for index in range(BACKLOG_QUEUES)]
        for first in range(0, messages, BATCH * BACKLOG_QUEUES):
            await asyncio.gather(
                *(
                    sender.send(
                        [
                            OutgoingMessage(
                                alias(encode_message(BrokeredMessage(body), now_ms=0), QUEUE)
                            )
                            for _ in range(BATCH)
                        ],
                        timeout_s=60,
                    )
                    for sender in senders
                )
            )
            del first
    finally:
        await driver.close()


def _start_mover(home: TwinbusNode, away: TwinbusNode) -> subprocess.Popen[bytes]:
    env = dict(os.environ) | {
        "SERVICEBUS_CONNECTION_STRING": home.connection_string,
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": away.connection_string,
    }
    command = [sys.executable, "-m", "twinbus", "syphon", "--local", "--once", "--output", "json"]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)


def _rate_of_arrival(home: TwinbusNode, messages: int) -> float:
    def count(at_least: int) -> tuple[int, float] | None:
        found = home.active(QUEUE)
        if found >= at_least:
            return found, time.monotonic()
        time.sleep(POLL_S)
        return None

    first, began_s = wait_for("the mover's start", lambda: count(1), MOVE_S_MAX)
    last, ended_s = wait_for("its last message", lambda: count(messages), MOVE_S_MAX)
    if first == last:
        raise BenchError("the mover was done before it could be timed: move more messages")
    return (last - first) / (ended_s - began_s)
