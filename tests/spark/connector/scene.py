"""Queues with numbered messages, for tests of the source."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tests.support.broker_process import BrokerProcess
from tests.support.mover.messages import id_of, plain
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.interface import ReceiveMode
from twinbus.encoding.transit import OutgoingMessage

TIMEOUT_S = 30.0


Result = TypeVar("Result")


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """On a thread of its own, because a test may have a loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def ids(count: int, first: int = 0) -> list[str]:
    return [f"m{number:06}" for number in range(first, first + count)]


def fill(broker: BrokerProcess, path: str, names: Iterable[str], body: bytes = b"hello") -> None:
    _run(_fill(broker, path, names, body))


async def _fill(broker: BrokerProcess, path: str, names: Iterable[str], body: bytes) -> None:
    driver = AmqpDriver.from_connection_string(broker.connection_string)
    parcels = [OutgoingMessage(plain(name, body)) for name in names]
    sender = driver.sender(path)
    count = max(1, min(250, 200_000 // (len(body) + 200)))
    for start in range(0, len(parcels), count):
        await sender.send(parcels[start : start + count], timeout_s=TIMEOUT_S)
    await driver.close()


def taken(broker: BrokerProcess, path: str) -> list[str]:
    """The ids of all that can be received from a queue; it is empty then."""
    return _run(_taken(broker, path))


async def _taken(broker: BrokerProcess, path: str) -> list[str]:
    driver = AmqpDriver.from_connection_string(broker.connection_string)
    receiver = driver.receiver(path, mode=ReceiveMode.RECEIVE_AND_DELETE)
    found: list[str] = []
    while messages := await receiver.receive(1_000, wait_s=0.3):
        found += [id_of(each.encoded) for each in messages]
    await driver.close()
    return found


def left(broker: BrokerProcess, path: str) -> int:
    """Messages in a queue, locked or not."""
    count: int = broker.queue(path)["active_message_count"]
    return count
