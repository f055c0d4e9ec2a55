"""One paired application: a queue of its own, what became of its sends, and where they are."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

from tests.support.broker_process import BrokerProcess
from twinbus.aio import (
    BrokeredMessage,
    MessageSender,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.drivers.amqp import AmqpDriver
from twinbus.encoding.brokered_message import decode_message
from twinbus.errors import TwinbusError
from twinbus.failover.events import Diverted, Event, PingSent, Restored
from twinbus.pairing.client.factory_options import FactoryOptions
from twinbus.pairing.events import EventRecord

HOME, AWAY = "home", "away"
SEND_TIMEOUT_S = 20.0
"""For what is expected to go well; a busy machine may take long."""
BRIEF_S = 3.0
"""For what is expected to wait in vain: three quarters of it are the primary's."""
PATIENCE_S = 30.0
LOOK_S = 0.05

Kind = TypeVar("Kind", bound=Event)


class Scene:
    """A primary and a secondary factory, paired, and everything that happened."""

    def __init__(
        self,
        broker: BrokerProcess,
        driver: str,
        *,
        primary: str = "",
        secondary: str = "",
        factory: FactoryOptions | None = None,
        **options: Any,
    ) -> None:
        self._broker = broker
        self.name = f"home-{uuid4().hex[:8]}"
        """Backlog queues of its own: their names begin with it."""
        self._primary_string = primary or broker.connection_strings[HOME]
        self._secondary_string = secondary or broker.connection_strings.get(AWAY, "")
        self._options = {"failover_interval": 0, "ping_primary_interval": 1.0, **options}
        self._driver: Any = driver
        self._factory = factory or {}
        self._senders: dict[str, MessageSender] = {}
        self.events: list[Event] = []
        self.acknowledged: list[str] = []
        self.failed: list[tuple[str, TwinbusError]] = []
        self.queue = ""
        self.backlog: list[str] = []

    async def open(self, queue: str = "") -> Scene:
        self.queue = queue or self._broker.fresh_queue(lock_duration_ms=300_000)
        connect = MessagingFactory.from_connection_string
        self.primary = connect(self._primary_string, driver=self._driver, **self._factory)
        self._secondary = connect(self._secondary_string, driver=self._driver)
        self._manager = NamespaceManager.from_connection_string(self._secondary_string)
        options = SendAvailabilityPairedNamespaceOptions(
            self._manager,
            self._secondary,
            2,
            namespace_name=self.name,
            on_event=self._note,
            **self._options,
        )
        await self.primary.pair_namespace(options)
        self.backlog = [f"{self.name}/x-servicebus-transfer/{n}" for n in range(2)]
        return self

    async def close(self) -> None:
        await self.primary.close()
        await self._secondary.close()
        await self._manager.close()

    def _note(self, occurrence: EventRecord) -> None:
        self.events.append(occurrence.event)

    # -- sending ------------------------------------------------------------------------------

    async def send(
        self, value: str, *, timeout_s: float = SEND_TIMEOUT_S, queue: str = ""
    ) -> TwinbusError | None:
        """Send one message; None when it was acknowledged."""
        try:
            await self._sender(queue or self.queue).send(
                BrokeredMessage(value, message_id=value), timeout=timeout_s
            )
        except TwinbusError as error:
            self.failed.append((value, error))
            return error
        self.acknowledged.append(value)
        return None

    async def schedule(self, value: str) -> int:
        """Hand in a message for tomorrow; its number is negative when it went to the backlog."""
        due = datetime.now(UTC) + timedelta(days=1)
        message = BrokeredMessage(value, message_id=value, scheduled_enqueue_time_utc=due)
        return await self._sender(self.queue).schedule_message(message, timeout=SEND_TIMEOUT_S)

    def _sender(self, queue: str) -> MessageSender:
        if queue not in self._senders:
            self._senders[queue] = self.primary.create_message_sender(queue)
        return self._senders[queue]

    async def change_senders(self) -> None:
        """From now on others send, who choose their backlog queues anew."""
        for sender in self._senders.values():
            await sender.close()
        self._senders.clear()

    # -- what happened ------------------------------------------------------------------------

    def seen(self, kind: type[Kind], path: str = "") -> list[Kind]:
        """The events of a kind, of one entity if it is named."""
        return [
            event
            for event in self.events
            if isinstance(event, kind) and (not path or getattr(event, "path", path) == path)
        ]

    @property
    def is_diverted(self) -> bool:
        return len(self.seen(Diverted, self.queue)) > len(self.seen(Restored, self.queue))

    def first_ping_after_s(self) -> float:
        """How long after the diversion the first ping was sent."""
        return self.seen(PingSent, self.queue)[0].at_s - self.seen(Diverted, self.queue)[0].at_s

    async def until(self, is_so: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < end_s, f"it did not happen; events: {self.events}"
            await asyncio.sleep(LOOK_S)

    async def until_restored(self) -> None:
        await self.until(lambda: self.seen(Restored, self.queue))

    # -- where they are -----------------------------------------------------------------------

    async def at_home(self, queue: str = "") -> Counter[str]:
        """The values in the queue itself."""
        return await self._values(self._broker.connection_strings[HOME], [queue or self.queue])

    def count_at_home(self) -> int:
        """How many messages of the queue can be received."""
        return int(self._broker.queue(self.queue)["active_message_count"])

    async def in_backlog(self) -> Counter[str]:
        return await self._values(self._secondary_string, self.backlog)

    async def _values(self, connection_string: str, paths: list[str]) -> Counter[str]:
        driver = AmqpDriver.from_connection_string(connection_string)
        found: Counter[str] = Counter()
        try:
            for path in paths:
                receiver, number = driver.receiver(path), 1
                while peeked := await receiver.peek(
                    100, from_sequence=number, timeout_s=SEND_TIMEOUT_S
                ):
                    number = peeked[-1].sequence_number + 1
                    found.update(str(decode_message(each).message_id) for each in peeked)
        finally:
            await driver.close()
        return found
