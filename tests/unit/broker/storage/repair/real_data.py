"""A data directory that a real broker wrote, and what a real broker finds in one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.support.parcels import bodies, due_at, parcel
from twinbus.amqp.message.message import Message
from twinbus.broker.options import ThrottleThresholds
from twinbus.drivers.administration.entities import (
    QueueProperties,
    SubscriptionProperties,
)
from twinbus.drivers.embedded import EmbeddedNamespace
from twinbus.pairing.client.namespace_manager import NamespaceManager

NAME = "shop"
STORE = Path(f"namespace-{NAME}") / "store.db"
ROOMY = ThrottleThresholds(disk_free_bytes_min=16 << 20)
SOON_S = 30.0
FAR_MS = 4_000_000_000_000
SUBSCRIPTIONS = ("red", "green", "blue")
ENTITIES = (
    "orders",
    "orders/$deadletterqueue",
    "calls",
    "once",
    *(f"news/subscriptions/{name}" for name in SUBSCRIPTIONS),
)
SESSIONS = ("ann", "bob")


def body(number: int, size: int = 300) -> bytes:
    return b"%06d" % number + bytes([number % 251]) * size


async def make_data(data: Path, killed: Path) -> None:
    """A data directory with some of everything; ``killed`` is what a kill would leave."""
    async with EmbeddedNamespace(NAME, data_directory=data, thresholds=ROOMY) as shop:
        manager = NamespaceManager.from_connection_string(shop.connection_string)
        await manager.create_queue("orders")
        await manager.create_queue(QueueProperties(path="calls", requires_session=True))
        await manager.create_queue(QueueProperties(path="once", requires_duplicate_detection=True))
        await manager.create_topic("news")
        for name in SUBSCRIPTIONS:
            await manager.create_subscription(SubscriptionProperties(topic="news", name=name))
        driver = shop.driver()
        await _fill_orders(driver)
        calls = driver.sender("calls")
        for number in range(12):
            session = SESSIONS[number % 2]
            message = parcel(body(number), group_id=session)
            await calls.send([message], timeout_s=SOON_S)
        once = driver.sender("once")
        for number in range(6):
            await once.send([parcel(body(number), message_id=f"id {number}")], timeout_s=SOON_S)
        news = driver.sender("news")
        for number in range(5):
            batch = [parcel(body(10 * number + at, 2_000)) for at in range(8)]
            await news.send(batch, timeout_s=SOON_S)
        await driver.close()
        await manager.close()
        shutil.copytree(data, killed, ignore=shutil.ignore_patterns("*-shm", "lock"))


async def _fill_orders(driver: Any) -> None:
    orders, receiver = driver.sender("orders"), driver.receiver("orders")
    for number in range(0, 60, 10):
        batch = [parcel(body(number + at, 3_000 if number == 30 else 300)) for at in range(10)]
        await orders.send(batch, timeout_s=SOON_S)
    await orders.schedule([parcel(b"later", annotations=due_at(FAR_MS))], timeout_s=SOON_S)
    found: list[Any] = []
    while len(found) < 20:
        found += await receiver.receive(20 - len(found), wait_s=SOON_S)
    await receiver.complete(found[2:5], timeout_s=SOON_S)
    await receiver.defer(found[6:8], timeout_s=SOON_S)
    await receiver.dead_letter(found[9:11], reason="old", description="", timeout_s=SOON_S)
    await receiver.abandon([*found[:2], found[5], found[8], *found[11:]], timeout_s=SOON_S)
    await receiver.close()


async def contents(data: Path) -> dict[str, list[tuple[int, int, bytes]]]:
    """Entity -> (sequence number, delivery count, body) of every message, by a real broker."""
    found: dict[str, list[tuple[int, int, bytes]]] = {}
    async with EmbeddedNamespace(NAME, data_directory=data, thresholds=ROOMY) as shop:
        driver = shop.driver()
        for path in ENTITIES:
            found[path] = await peek_all(driver, path)
        await driver.close()
    return found


async def peek_all(driver: Any, path: str) -> list[tuple[int, int, bytes]]:
    if path == "calls":
        shown = []
        for session in SESSIONS:
            shown += await _peek(driver.receiver(path, session=session))
        return sorted(shown)
    return await _peek(driver.receiver(path))


async def _peek(receiver: Any) -> list[tuple[int, int, bytes]]:
    if receiver.session_id is None and "calls" in receiver.path:
        # A session is held once something was received from it.
        held = await receiver.receive(1, wait_s=2.0)
        await receiver.abandon(held, timeout_s=SOON_S)
    shown: list[tuple[int, int, bytes]] = []
    start = 1
    while some := await receiver.peek(100, from_sequence=start, timeout_s=SOON_S):
        for each in some:
            message = Message.decode(each.encoded)
            count = 0 if "calls" in receiver.path else each.delivery_count
            assert isinstance(message.body, bytes)
            shown.append((each.sequence_number, count, message.body))
        start = some[-1].sequence_number + 1
    await receiver.close()
    return shown


__all__ = ["ENTITIES", "NAME", "SOON_S", "STORE", "bodies", "contents", "make_data", "peek_all"]
