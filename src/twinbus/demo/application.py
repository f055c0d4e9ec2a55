"""The application of the demo: it sends through the pair and receives from the primary.

It has one sender for each entity, and one receiver for each queue and subscription.

    async with Application.paired(scenario, deliveries, addresses, files) as application:
        application.start()
        ...                                   # the outage of the primary
        await application.stop_sending()

Rule 1: a send is counted as acknowledged when it returns, and as failed when it raises an error;
        the application never repeats a send.
Rule 2: a message is counted as arrived before it is completed: the broker may have stored the
        completion without an answer, and then the message is not received again.
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
    "metered_factory",
    "receive_all",
]

SEND_TIMEOUT_S: Final = 30.0
TICK_S: Final = 0.05
# What was due during a slow send is sent in several batches.
BATCH_MAX: Final = 100
RECEIVE_COUNT: Final = 200
# A receive without a message costs an operation; a message ends it at once.
RECEIVE_WAIT_S: Final = 10.0
RETRY_S: Final = 0.2


class RateLimitedSender:
    """Sends to one entity at a constant rate until stop()."""

    def __init__(
        self,
        sender: MessageSender,
        deliveries: DeliveryCheck,
        bodies: Iterator[bytes],
        *,
        rate_per_s: float,
        is_diverted: Callable[[], bool],
    ) -> None:
        self.entity = sender.path
        self._sender = sender
        self._deliveries = deliveries
        self._bodies = bodies
        self._rate_per_s = rate_per_s
        self._is_diverted = is_diverted
        self._sent_count = 0
        self._stops = asyncio.Event()
        self.first_diverted_s: float | None = None
        """When, on the monotonic clock, the backlog has accepted the first message."""

    async def run(self) -> None:
        began_s = time.monotonic()
        while not self._stops.is_set():
            due = int((time.monotonic() - began_s) * self._rate_per_s) - self._sent_count
            if due > 0:
                await self._send(min(due, BATCH_MAX))
            else:
                await asyncio.sleep(TICK_S)

    def stop(self) -> None:
        self._stops.set()

    async def _send(self, count: int) -> None:
        numbers = range(self._sent_count, self._sent_count + count)
        self._sent_count += count
        ids = [f"{self.entity}-{number:06d}" for number in numbers]
        messages = [
            BrokeredMessage(body, message_id=each)
            for each, body in zip(ids, islice(self._bodies, count), strict=True)
        ]
        self._deliveries.attempt(self.entity, ids)
        try:
            await self._sender.send_batch(messages, timeout=SEND_TIMEOUT_S)
        except TwinbusError:
            self._deliveries.fail(count)
            return
        is_diverted = self._is_diverted()
        self._deliveries.acknowledge(self.entity, ids, is_diverted=is_diverted)
        if is_diverted and self.first_diverted_s is None:
            self.first_diverted_s = time.monotonic()


async def receive_all(receiver: MessageReceiver, deliveries: DeliveryCheck) -> None:
    """Receive, count and complete, until cancelled; retries while the broker is unreachable."""
    while True:
        try:
            messages = await receiver.receive_batch(RECEIVE_COUNT, max_wait_time=RECEIVE_WAIT_S)
            for message in messages:
                deliveries.arrive(receiver.path.lower(), str(message.message_id))
            await asyncio.gather(*(_complete(message) for message in messages))
        except TwinbusError:
            await asyncio.sleep(RETRY_S)


async def _complete(message: BrokeredMessage) -> None:
    try:
        await message.complete()
    except TwinbusError:
        return  # It is received again, and counted as a duplicate.


FAILOVER_INTERVAL_S: Final = 0.0
PING_INTERVAL_S: Final = 1.0


class Application:
    """The senders and receivers, and the events of the pair."""

    def __init__(
        self, scenario: DemoScenario, deliveries: DeliveryCheck, primary: MessagingFactory
    ) -> None:
        self._primary = primary
        self._deliveries = deliveries
        self._senders = [
            RateLimitedSender(
                primary.create_message_sender(entity),
                deliveries,
                scenario.bodies(entity),
                rate_per_s=scenario.rate_per_s / len(DESTINATIONS),
                is_diverted=partial(self._is_diverted, entity),
            )
            for entity in DESTINATIONS
        ]
        self._sending: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []
        self.events: Counter[str] = Counter()
        """Number of events of the pair, by name."""

    @classmethod
    @asynccontextmanager
    async def paired(
        cls,
        scenario: DemoScenario,
        deliveries: DeliveryCheck,
        addresses: Mapping[str, str],
        files: Files,
    ) -> AsyncIterator[Application]:
        """Pair both namespaces; everything is closed at the end of the block."""
        async with (
            metered_factory(addresses[SECONDARY], files) as secondary,
            NamespaceManager.from_connection_string(addresses[SECONDARY]) as manager,
            metered_factory(addresses[PRIMARY], files) as primary,
        ):
            application = cls(scenario, deliveries, primary)
            await primary.pair_namespace(
                SendAvailabilityPairedNamespaceOptions(
                    manager,
                    secondary,
                    BACKLOG_QUEUES,
                    failover_interval=timedelta(seconds=FAILOVER_INTERVAL_S),
                    ping_primary_interval=timedelta(seconds=PING_INTERVAL_S),
                    namespace_name=PRIMARY,
                    journal=files.journal,
                    on_event=application._count_event,
                )
            )
            try:
                yield application
            finally:
                await application._end()

    def start(self) -> None:
        """Start senders and receivers."""
        self._sending = [asyncio.create_task(sender.run()) for sender in self._senders]
        self._receiving = [
            asyncio.create_task(
                receive_all(self._primary.create_message_receiver(place), self._deliveries)
            )
            for places in DESTINATIONS.values()
            for place in places
        ]

    async def stop_sending(self) -> None:
        """Stop the senders, and return after the last answer."""
        for sender in self._senders:
            sender.stop()
        await asyncio.gather(*self._sending)

    def check(self) -> None:
        """Raise the error that has ended a sender or a receiver, if any."""
        for task in (*self._sending, *self._receiving):
            if task.done():
                task.result()

    @property
    def diverted(self) -> list[str]:
        """The entities that are diverted now."""
        return [entity for entity in DESTINATIONS if self._is_diverted(entity)]

    @property
    def messages_diverted(self) -> int:
        """Messages that this application has sent to the backlog."""
        return sum(self._primary.health(entity).messages_diverted for entity in DESTINATIONS)

    def failover_s(self, killed_s: float) -> float | None:
        """From the kill until the backlog had accepted a message of every entity; None before
        that."""
        moments = [sender.first_diverted_s for sender in self._senders]
        known = [moment for moment in moments if moment is not None]
        return max(known) - killed_s if len(known) == len(moments) else None

    def _is_diverted(self, entity: str) -> bool:
        return self._primary.health(entity).is_diverted

    def _count_event(self, record: EventRecord) -> None:
        self.events[record.name] += 1

    async def _end(self) -> None:
        tasks = (*self._sending, *self._receiving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def metered_factory(address: str, files: Files) -> MessagingFactory:
    """A factory with metering and audit; both sides need it to count diverted messages."""
    return MessagingFactory.from_connection_string(
        address, driver="amqp", metering=files.client, audit=True
    )
