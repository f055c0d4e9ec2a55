"""A backlog comes home between two brokers in their own processes, through the mover.

In it are messages with every field that the envelope has to carry, messages that their destination
refuses for good, and messages for a destination that is closed at first; in more queues than the
mover is told of, and among messages of another pair. Afterwards everything is home as it was sent,
or dead with a reason, and the other pair's messages are where they were.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path

from tests.support.mover.brokers import TIMEOUT_S, Pair, Scene, until
from twinbus.drivers.amqp import AmqpDriver
from twinbus.encoding.brokered_message import decode_message, encode_message
from twinbus.encoding.envelope import alias
from twinbus.encoding.transit import OutgoingMessage
from twinbus.message import BrokeredMessage
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.mover import Mover
from twinbus.mover.planning.receipts import ReceiptOutcome
from twinbus.pairing.backlog_queues import owner_mark

HOME_S_MAX = 12.0
QUEUE_COUNT, QUEUES_KNOWN = 4, 2
OTHER_PAIR = "0123456789ab other.example"
FOREIGN = [f"foreign-{number}" for number in range(5)]
# What the service says about a message that was received; it has a priority in any case.
NOT_COMPARED = {
    *("sequence_number", "enqueued_sequence_number", "enqueued_time_utc", "locked_until_utc"),
    *("delivery_count", "lock_token", "held", "priority"),
}


def sent_to(path: str, count: int) -> list[BrokeredMessage]:
    """Every kind of message, in turn."""
    kinds = [
        BrokeredMessage(b"plain"),
        BrokeredMessage(b"short-lived", time_to_live=timedelta(hours=1)),
        BrokeredMessage(b"of a session", session_id="blue"),
        BrokeredMessage(b"labelled", subject="label", correlation_id="c", content_type="text/x"),
        BrokeredMessage(b"with properties", properties={"colour": "red", "size": 5}),
        BrokeredMessage(
            b"all at once",
            session_id="green",
            time_to_live=timedelta(minutes=5),
            properties={"x": "y"},
        ),
    ]
    return [
        replace(kinds[number % len(kinds)], message_id=f"{path}-{number}")
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Homeward:
    """One backlog, with brokers of its own."""

    name: str = "backlog over brokers"
    unit: str = "backlogs"
    rounds_max: int = 1
    has_processes: bool = True

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        for number in range(self.rounds_max):
            home = directory / str(number)
            home.mkdir()
            with Pair(home) as pair:
                yield asyncio.run(_Backlog(Scene(pair, queue_count=QUEUE_COUNT)).complaints())


class _Backlog:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._open = scene.destination()
        self._picky = scene.destination(requires_session=True)
        self._late = scene.destination(status="SendDisabled")
        self._sent = {
            self._open: sent_to(self._open, 60),
            self._picky: [BrokeredMessage(b"no session", message_id=f"p{n}") for n in range(5)],
            self._late: sent_to(self._late, 12),
        }

    async def complaints(self) -> list[str]:
        await self._fill()
        await self._move()
        complaints = self._left()
        home = [*await self._taken(self._open), *await self._taken(self._late)]
        dead = await self._dead()
        await self._scene.close()
        complaints += _strayed([*home, *dead])
        home = [each for each in home if each.message_id not in FOREIGN]
        return [*complaints, *self._compared(home), *_reasons(dead), *self._lost(home, dead)]

    async def _fill(self) -> None:
        driver = self._scene.driver(self._scene.pair.secondary)
        for path, messages in self._sent.items():
            for number, message in enumerate(messages):
                queue = self._scene.queues[number % len(self._scene.queues)]
                parcel = OutgoingMessage(alias(encode_message(message), path))
                await driver.sender(queue).send([parcel], timeout_s=TIMEOUT_S)

        foreign = [BrokeredMessage(b"not ours", message_id=each) for each in FOREIGN]
        for message in foreign:
            parcel = OutgoingMessage(alias(encode_message(message), self._open, OTHER_PAIR))
            await driver.sender(self._scene.queues[0]).send([parcel], timeout_s=TIMEOUT_S)

    async def _move(self) -> None:
        pair = self._scene.pair
        drivers = self._scene.driver(pair.secondary), self._scene.driver(pair.primary)
        options = self._scene.options(discovery_interval_s=1.0)
        rules = replace(options.rules, owner=owner_mark(drivers[1].address, self._scene.name))
        options = replace(options, rules=rules)
        search = BacklogSearch(drivers[0].receiver, self._scene.name)
        mover = Mover(*drivers, self._scene.queues[:QUEUES_KNOWN], options, search=search)
        running = asyncio.create_task(mover.run())
        with suppress(TimeoutError):
            late = len(self._sent[self._late])
            await until(
                lambda: mover.report.receipt_counts.counts[ReceiptOutcome.DEFERRED] >= late,
                HOME_S_MAX,
            )
        self._scene.enable(self._late)
        with suppress(TimeoutError):
            await until(lambda: self._scene.left() == len(FOREIGN), HOME_S_MAX)
        mover.stop()
        await running

    def _left(self) -> list[str]:
        left = self._scene.left() - len(FOREIGN)
        return [f"left behind: {left} in the backlog"] if left else []

    async def _taken(self, path: str) -> list[BrokeredMessage]:
        return await _drained(self._scene.driver(self._scene.pair.primary), path)

    async def _dead(self) -> list[BrokeredMessage]:
        driver = self._scene.driver(self._scene.pair.secondary)
        queues = [f"{queue}/$DeadLetterQueue" for queue in self._scene.queues]
        return [message for queue in queues for message in await _drained(driver, queue)]

    def _compared(self, home: list[BrokeredMessage]) -> Iterator[str]:
        sent = {each.message_id: each for messages in self._sent.values() for each in messages}
        for message in home:
            for name in (each.name for each in fields(message) if each.name not in NOT_COMPARED):
                was, is_now = getattr(sent[message.message_id], name), getattr(message, name)
                if was != is_now:
                    yield f"not as it was sent: {name} of {message.message_id}: {was!r}, {is_now!r}"

    def _lost(self, home: list[BrokeredMessage], dead: list[BrokeredMessage]) -> Iterator[str]:
        found = Counter(message.message_id for message in (*home, *dead))
        everything = [each for messages in self._sent.values() for each in messages]
        missing = [each.message_id for each in everything if not found[each.message_id]]
        left = self._scene.left() - len(FOREIGN)
        if len(missing) > left:
            yield f"lost: {len(missing) - left} of {missing}"
        for message_id, count in found.items():
            if count > 1:
                yield f"came twice: {message_id}"


def _strayed(found: list[BrokeredMessage]) -> list[str]:
    strayed = [each.message_id for each in found if each.message_id in FOREIGN]
    return [f"not ours: {strayed}"] if strayed else []


def _reasons(dead: list[BrokeredMessage]) -> list[str]:
    return [
        f"dead-lettered without a reason: {message.message_id}"
        for message in dead
        if not message.dead_letter_reason
    ]


async def _drained(driver: AmqpDriver, path: str) -> list[BrokeredMessage]:
    receiver, found = driver.receiver(path), []
    while delivered := await receiver.receive(100, wait_s=0.5):
        found += [decode_message(each) for each in delivered]
        await receiver.complete(delivered, timeout_s=TIMEOUT_S)
    return found
