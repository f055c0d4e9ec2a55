"""The application of the demo: it sends through the pair and receives from the primary.

What the application does all the time: one sender for each entity, one receiver for each place.

The application of the demo: a program that has paired its namespace, and goes on sending.

async with Application.paired(plan, books, addresses, files) as application:
    application.start()
    ...                                   # whatever happens to the primary
    await application.stop_sending()

Rule 1: a send is counted as acknowledged when it returns, and as failed when it raises; nothing is
        sent again by hand.
Rule 2: a message is counted as arrived before it is completed: a completion can be on disk although
        its answer died with the broker, and then the message does not come again.
Rule 3: senders keep their rate by the clock: what was due during a slow send follows at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final

from twinbus.aio import (
    BrokeredMessage,
    MessageReceiver,
    MessageSender,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.demo.output_files import Files
from twinbus.demo.scenario import (
    BACKLOG_QUEUES,
    DESTINATIONS,
    PRIMARY,
    SECONDARY,
    DeliveryCheck,
    DemoScenario,
)
from twinbus.errors import TwinbusError
from twinbus.pairing.events import EventRecord

__all__ = [
    "FAILOVER_INTERVAL_S",
    "PING_INTERVAL_S",
    "Application",
    "RateLimitedSender",
    "counted_factory",
    "receive_all",
]

SEND_TIMEOUT_S: Final = 30.0
TICK_S: Final = 0.05
# What was due during a stall goes in several batches.
BATCH_MAX: Final = 100
RECEIVE_COUNT: Final = 200
# A wait that ends without a message costs an operation; a message ends it at once.
RECEIVE_WAIT_S: Final = 10.0
TRY_AGAIN_S: Final = 0.2


class RateLimitedSender:
    """Sends to one entity until it is told to stop."""

    def __init__(
        self,
        sender: MessageSender,
        books: DeliveryCheck,
        bodies: Iterator[bytes],
        *,
        rate_per_s: float,
        is_diverted: Callable[[], bool],
    ) -> None:
        self.entity = sender.path
        self._sender = sender
        self._books = books
        self._bodies = bodies
        self._rate_per_s = rate_per_s
        self._is_diverted = is_diverted
        self._made = 0
        self._stops = asyncio.Event()
        self.first_detour_s: float | None = None
        """When (on the monotonic clock) the first message was safe in the backlog."""

    async def run(self) -> None:
        began_s = time.monotonic()
        while not self._stops.is_set():
            due = int((time.monotonic() - began_s) * self._rate_per_s) - self._made
            if due > 0:
                await self._send(min(due, BATCH_MAX))
            else:
                await asyncio.sleep(TICK_S)

    def stop(self) -> None:
        self._stops.set()

    async def _send(self, count: int) -> None:
        numbers = range(self._made, self._made + count)
        self._made += count
        ids = [f"{self.entity}-{number:06d}" for number in numbers]
        messages = [
            BrokeredMessage(body, message_id=each)
            for each, body in zip(ids, islice(self._bodies, count), strict=True)
        ]
        self._books.attempt(self.entity, ids)
        try:
            await self._sender.send_batch(messages, timeout=SEND_TIMEOUT_S)
        except TwinbusError:
            self._books.fail(count)
            return
        is_detoured = self._is_diverted()
        self._books.acknowledge(self.entity, ids, is_detoured=is_detoured)
        if is_detoured and self.first_detour_s is None:
            self.first_detour_s = time.monotonic()


async def receive_all(receiver: MessageReceiver, books: DeliveryCheck) -> None:
    """Receive, count and complete, until cancelled; a broker that is away is waited for."""
    while True:
        try:
            messages = await receiver.receive_batch(RECEIVE_COUNT, max_wait_time=RECEIVE_WAIT_S)
            for message in messages:
                books.arrive(receiver.path.lower(), str(message.message_id))
            await asyncio.gather(*(_completed(message) for message in messages))
        except TwinbusError:
            await asyncio.sleep(TRY_AGAIN_S)


async def _completed(message: BrokeredMessage) -> None:
    try:
        await message.complete()
    except TwinbusError:
        return  # It comes again, and is counted as a duplicate then.


FAILOVER_INTERVAL_S: Final = 0.0
PING_INTERVAL_S: Final = 1.0


class Application:
    """Its senders and receivers, and what it noticed of the pair."""

    def __init__(self, plan: DemoScenario, books: DeliveryCheck, primary: MessagingFactory) -> None:
        self._primary = primary
        self._books = books
        self._senders = [
            RateLimitedSender(
                primary.create_message_sender(entity),
                books,
                plan.bodies(entity),
                rate_per_s=plan.rate_per_s / len(DESTINATIONS),
                is_diverted=partial(self._is_diverted, entity),
            )
            for entity in DESTINATIONS
        ]
        self._sending: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []
        self.events: Counter[str] = Counter()
        """What happened in the pair, by the words of its journal."""

    @classmethod
    @asynccontextmanager
    async def paired(
        cls, plan: DemoScenario, books: DeliveryCheck, addresses: Mapping[str, str], files: Files
    ) -> AsyncIterator[Application]:
        """Pair both namespaces; everything is closed at the end of the block."""
        async with (
            counted_factory(addresses[SECONDARY], files) as secondary,
            NamespaceManager.from_connection_string(addresses[SECONDARY]) as manager,
            counted_factory(addresses[PRIMARY], files) as primary,
        ):
            application = cls(plan, books, primary)
            await primary.pair_namespace(
                SendAvailabilityPairedNamespaceOptions(
                    manager,
                    secondary,
                    BACKLOG_QUEUES,
                    failover_interval=timedelta(seconds=FAILOVER_INTERVAL_S),
                    ping_primary_interval=timedelta(seconds=PING_INTERVAL_S),
                    namespace_name=PRIMARY,
                    journal=files.journal,
                    on_event=application._notice,
                )
            )
            try:
                yield application
            finally:
                await application._end()

    def start(self) -> None:
        """Senders and receivers begin."""
        self._sending = [asyncio.create_task(sender.run()) for sender in self._senders]
        self._receiving = [
            asyncio.create_task(
                receive_all(self._primary.create_message_receiver(place), self._books)
            )
            for places in DESTINATIONS.values()
            for place in places
        ]

    async def stop_sending(self) -> None:
        """Return when the sends under way have been answered."""
        for sender in self._senders:
            sender.stop()
        await asyncio.gather(*self._sending)

    def check(self) -> None:
        """Raise what ended a sender or a receiver, if something did."""
        for task in (*self._sending, *self._receiving):
            if task.done():
                task.result()

    @property
    def diverted(self) -> list[str]:
        """Entities whose messages go to the backlog now."""
        return [entity for entity in DESTINATIONS if self._is_diverted(entity)]

    @property
    def detoured(self) -> int:
        """Messages that this application has put into the backlog."""
        return sum(self._primary.health(entity).messages_diverted for entity in DESTINATIONS)

    def failover_s(self, killed_s: float) -> float | None:
        """From the kill until every entity had a message safe in the backlog; None: not yet."""
        moments = [sender.first_detour_s for sender in self._senders]
        known = [moment for moment in moments if moment is not None]
        return max(known) - killed_s if len(known) == len(moments) else None

    def _is_diverted(self, entity: str) -> bool:
        return self._primary.health(entity).is_diverted

    def _notice(self, occurrence: EventRecord) -> None:
        self.events[occurrence.name] += 1

    async def _end(self) -> None:
        tasks = (*self._sending, *self._receiving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def counted_factory(address: str, files: Files) -> MessagingFactory:
    """A factory that writes down what it does; both of a pair must, or detours are not seen."""
    return MessagingFactory.from_connection_string(
        address, driver="amqp", metering=files.client, audit=True
    )
