"""A topic with its subscriptions over a store in memory, driven by hand like one queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.support.catalogue_changes import create
from tests.support.engine.driver import FULL, START_MS, START_S, Answer, Driver, Received
from twinbus.amqp.message.message import Message
from twinbus.broker.engine.descriptions import SubscriptionDescription, TopicDescription
from twinbus.broker.engine.filters import RuleDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.stored_message import IncomingMessage, Record, pack_record
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.namespace.catalogue import Catalogue
from twinbus.broker.storage.interface import Op, Store
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.common.clock import Instant


class TopicDriver(Driver):
    """The topic ``news``; what a queue's driver can do it can do with each subscription."""

    def __init__(self, store: Store | None = None, **properties: Any) -> None:
        self.now = Instant(START_S, START_MS)
        self.store = store or MemoryStore()
        self.catalogue = Catalogue(self.store.open(), Random(7))
        topic = create(self.catalogue, self.store, TopicDescription(path="news", **properties))
        assert isinstance(topic, Topic)
        self.topic = topic

    def subscribe(
        self, name: str, *rules: RuleDescription, with_rules: bool = True, **properties: Any
    ) -> Subscription:
        """A subscription with these rules, or with the usual one that lets everything in."""
        description = SubscriptionDescription(path=f"news/subscriptions/{name}", **properties)
        wanted: Sequence[RuleDescription] | None = rules or (None if with_rules else ())
        machine = create(self.catalogue, self.store, description, wanted)
        assert isinstance(machine, Subscription)
        return machine

    def restart(self) -> None:
        self.store.close()
        self.catalogue = Catalogue(self.store.open(), Random(8))
        topic = self.catalogue.find("news")
        assert isinstance(topic, Topic)
        self.topic = topic
        self.read()

    def subscription(self, name: str) -> Subscription:
        return self.topic.subscriptions[name]

    # -- sending and writing --------------------------------------------------------------

    def send(
        self,
        *bodies: str,
        ttl_s: float | None = None,
        due_s: float | None = None,
        **properties: Any,
    ) -> Answer:
        answer = Answer()
        due_ms = None if due_s is None else START_MS + round(due_s * 1_000)
        messages = [self.typed_message(body, ttl_s, due_ms, properties) for body in bodies]
        self.topic.enqueue(messages, answer)
        return answer

    def typed_message(
        self, body: str, ttl_s: float | None, due_ms: int | None, properties: dict[str, Any]
    ) -> IncomingMessage:
        expires_ms = None
        if ttl_s is not None:
            expires_ms = (self.now.wall_ms if due_ms is None else due_ms) + round(ttl_s * 1_000)
        message = Message(body=body.encode(), application_properties=properties or None)
        record = Record(message.encode(), expires_ms=expires_ms, ttl_ms=None)
        return IncomingMessage(pack_record(record), expires_ms, due_ms)

    def turns(self) -> None:
        """Give every machine all the time it wants."""
        for machine in self.machines():
            while machine.wants_turn:
                machine.take_turn(self.now)

    def _close(self) -> tuple[list[Queue], list[Op]]:
        self.turns()
        together: dict[Queue, None] = {}
        for machine in self.machines():
            if machine.is_dirty:
                together[machine] = None
                for companion in machine.joined_queues(self.now):
                    together[companion] = None
        dirty = [machine for machine in together if machine.is_dirty]
        return dirty, [op for machine in dirty for op in machine.close_batch(self.now)]

    def machines(self) -> list[Queue]:
        return list(self.catalogue.machines())

    def begin_read(self) -> list[Callable[[], None]]:
        return [
            self._begin(machine, request)
            for machine in self.machines()
            for request in machine.take_requests()
        ]

    def wake(self) -> None:
        for _ in range(10):
            for machine in self.machines():
                machine.handle_timer(self.now)
            self.read()
            self.commit()
            self.read()

    def received_from(self, queue: Queue | str) -> list[Received]:
        """Everything that a new receiver of a subscription gets."""
        machine = self.subscription(queue) if isinstance(queue, str) else queue
        client = self.client(queue=machine)
        received = self.receive(client, machine)
        machine.detach(client)
        return received

    def is_disk_full(self) -> None:
        """The store takes nothing of what is open now."""
        machines, _ops = self._close()
        for machine in machines:
            for ticket in machine.failed():
                ticket.failed(FULL)
