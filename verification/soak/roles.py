"""Who does what: senders, receivers, session receivers and visitors.

Rule 1: a role works until it is told to stop, at a pace of its own, and reconnects when it must.
Rule 2: what was acknowledged and what was completed is written into one book.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from twinbus.amqp.codec.types import Int, Long
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Accepted, Modified
from verification.soak.client import SESSION_FILTER, Client, ClientError
from verification.soak.plan import SESSIONS_PER_QUEUE, Plan

CREDIT = 20
ABANDONED_SHARE = 0.02
VISIT_PAUSE_S = 2.0
SESSION_STAY_S = 3.0


@dataclass(slots=True)
class Book:
    """Copies that were promised and copies that arrived, by entity."""

    sent: Counter[str] = field(default_factory=Counter)
    promised: Counter[str] = field(default_factory=Counter)
    """What each queue or subscription must hand out."""
    completed: Counter[str] = field(default_factory=Counter)
    abandoned: int = 0
    visits: int = 0
    sessions: int = 0
    troubles: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Field:
    """What every role knows."""

    port: int
    token: Callable[[], str]
    plan: Plan
    book: Book
    chance: Random
    pause_s: float
    """Between two sends of one sender."""
    stops_sending: asyncio.Event
    stops: asyncio.Event

    async def connect(self) -> Client:
        return await Client.connect(self.port, self.token())


def message_for(field: Field, address: str, number: int) -> bytes:
    session = None
    if address in field.plan.session_queues:
        session = f"session-{field.chance.randrange(SESSIONS_PER_QUEUE)}"
    size = field.chance.choice((50, 250, 1_000, 4_000))
    return Message(
        properties=Properties(message_id=f"{address}-{number}", group_id=session),
        application_properties={"number": Int(number)},
        body=bytes(size),
    ).encode()


async def send(field: Field, address: str) -> None:
    """Send to one place until told to stop; connections last a while and are made anew."""
    number = 0
    while not field.stops_sending.is_set():
        client = await field.connect()
        try:
            link = await client.sender(address)
            for _ in range(200):
                if field.stops_sending.is_set():
                    break
                number += 1
                await client.send(link, message_for(field, address, number))
                _promise(field, address, number)
                await asyncio.sleep(field.pause_s * (0.5 + field.chance.random()))
        finally:
            client.close()


def _promise(field: Field, address: str, number: int) -> None:
    field.book.sent[address] += 1
    if address not in field.plan.topics:
        field.book.promised[address] += 1
        return
    field.book.promised[f"{address}/subscriptions/all"] += 1
    if number % 2:
        field.book.promised[f"{address}/subscriptions/odd"] += 1


class Receiving:
    """Completes what comes, gives a little of it back, and keeps count."""

    def __init__(self, field: Field, client: Client, address: str) -> None:
        self._field = field
        self._client = client
        self._address = address
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, event: DeliveryReceived) -> None:
        task = asyncio.get_running_loop().create_task(self._settle(event.delivery_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, delivery_id: int) -> None:
        book = self._field.book
        if self._field.chance.random() < ABANDONED_SHARE:
            await self._client.settle(delivery_id, Modified(delivery_failed=True))
            book.abandoned += 1
        elif await self._client.settle(delivery_id, Accepted()) == Accepted():
            book.completed[self._address] += 1
        else:
            book.troubles["a completion was refused"] += 1

    async def finish(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def receive(field: Field, address: str) -> None:
    """Receive from one place until told to stop."""
    client = await field.connect()
    receiving = Receiving(field, client, address)
    link = await client.receiver(address, receiving.take)
    while not field.stops.is_set() and not client.is_closed:
        client.grant(link, CREDIT)
        await asyncio.sleep(0.2)
    client.grant(link, 0)
    await receiving.finish()
    client.close()


async def receive_sessions(field: Field, address: str) -> None:
    """Take a session, stay a while, leave it, take the next."""
    while not field.stops.is_set():
        client = await field.connect()
        receiving = Receiving(field, client, address)
        try:
            link = await client.receiver(address, receiving.take, filter={SESSION_FILTER: None})
            field.book.sessions += 1
            client.grant(link, CREDIT)
            for _ in range(int(SESSION_STAY_S / 0.2)):
                if field.stops.is_set():
                    break
                await asyncio.sleep(0.2)
                client.grant(link, CREDIT)
            client.grant(link, 0)
            await asyncio.sleep(0.05)
            await receiving.finish()
        except (ClientError, TimeoutError):
            # Nobody had anything for it, or the session was lost: the next one will do.
            field.book.troubles["a session was not granted or lost"] += 1
            await asyncio.sleep(0.5)
        finally:
            client.close()


async def visit(field: Field) -> None:
    """Come, peek somewhere, and go: connections and links that live for a moment."""
    while not field.stops.is_set():
        client = await field.connect()
        try:
            address = field.chance.choice(field.plan.queues)
            body = {"from-sequence-number": Long(1), "message-count": Int(5)}
            await client.manage(address, "peek-message", body)
            field.book.visits += 1
        finally:
            client.close()
        await asyncio.sleep(VISIT_PAUSE_S * (0.5 + field.chance.random()))
