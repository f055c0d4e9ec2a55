"""The application of the demo: a program that has paired its namespace, and goes on sending.

async with Application.paired(plan, books, addresses, files) as application:
    application.start()
    ...                                   # whatever happens to the primary
    await application.stop_sending()
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final

from twinbus.aio import (
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.demo.books import DeliveryCheck
from twinbus.demo.files import Files
from twinbus.demo.plan import BACKLOG_QUEUES, DESTINATIONS, PRIMARY, SECONDARY, DemoScenario
from twinbus.demo.workers import RateLimitedSender, receive_all
from twinbus.pairing.occurrence import EventRecord

__all__ = ["FAILOVER_INTERVAL_S", "PING_INTERVAL_S", "Application", "counted_factory"]

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
