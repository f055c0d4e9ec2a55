"""Clients that keep a broker busy until it dies: one sends, one receives and settles.

Both pipeline: many deliveries are on their way when the lights go out, which is when a broker
that answers too early gives itself away.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from random import Random
from typing import Any

from tests.integration.durability.history import Asked, History, Sent
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.codec.types import Symbol, Timestamp
from twinbus.amqp.delivery_states import Accepted, Modified, Rejected
from twinbus.amqp.events import DeliveryReceived, DispositionReceived, Event
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.message.message import DataSections, Message
from twinbus.amqp.performatives import Disposition
from twinbus.broker.server.ingest import FORMAT_BATCH, FORMAT_MESSAGE

PIPELINE = 64
BATCH = 10
CREDIT = 200
HOUR_MS = 3_600_000
STATES: dict[Asked, Any] = {
    Asked.COMPLETE: Accepted(),
    Asked.ABANDON: Modified(delivery_failed=True),
    Asked.DEFER: Modified(undeliverable_here=True),
    Asked.DEAD_LETTER: Rejected(),
}
SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")


class Worker(threading.Thread):
    """A client in a thread of its own, from connecting to the end of the connection."""

    def __init__(self, port: int, token: str, queue: str, history: History, random: Random) -> None:
        super().__init__(daemon=True)
        self._port, self._token, self._queue = port, token, queue
        self._history = history
        self._random = random
        self._ends = threading.Event()
        self.has_begun = threading.Event()
        """Something was acknowledged."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with connected(self._port, self._token) as client:
                self.work(client)
        except (OSError, TimeoutError):
            # The broker is gone, which is the point.
            pass
        except BaseException as error:
            self.failure = error

    def end(self) -> None:
        self._ends.set()

    def finish(self) -> None:
        """Wait for the end of the thread; raise what went wrong in it."""
        self.end()
        self.join(10)
        if self.failure is not None:
            raise self.failure

    @abstractmethod
    def work(self, client: WireClient) -> None:
        """Until the broker or ``end()`` ends it."""

    def events(self, client: WireClient) -> list[Event]:
        client.pump(0.01)
        events, client.events = client.events, []
        return events


class Sender(Worker):
    """Sends single messages, batches and scheduled messages, many at a time."""

    def work(self, client: WireClient) -> None:
        link = client.attach_sender(self._queue)
        waiting: dict[int, list[str]] = {}
        while not self._ends.is_set():
            while len(waiting) < PIPELINE and link.credit > 0:
                labels, payload, message_format = self._next()
                tag = link.delivery_count.to_bytes(4, "big")
                number = link.send(payload, tag, settled=False, message_format=message_format)
                waiting[number] = labels
            for event in self.events(client):
                if isinstance(event, DispositionReceived):
                    self._answered(event, waiting)

    def _next(self) -> tuple[list[str], bytes, int]:
        chance = self._random.random()
        if chance < 0.1 and self.schedules():
            labels = self._labels(1, is_scheduled=True)
            message = self.message(labels[0], message_annotations={SCHEDULED: self.later()})
            return labels, message.encode(), FORMAT_MESSAGE
        if chance < 0.3:
            labels = self._labels(BATCH)
            messages = tuple(self.message(label).encode() for label in labels)
            return labels, Message(body=DataSections(messages)).encode(), FORMAT_BATCH
        labels = self._labels(1)
        return labels, self.message(labels[0]).encode(), FORMAT_MESSAGE

    def message(self, label: str, **parts: Any) -> Message:
        """What is sent for a label."""
        return Message(body=label.encode(), **parts)

    def schedules(self) -> bool:
        """Whether some messages are scheduled."""
        return True

    def later(self) -> Timestamp:
        """When a scheduled message is due."""
        return Timestamp(round(time.time() * 1_000) + HOUR_MS)

    def _labels(self, count: int, *, is_scheduled: bool = False) -> list[str]:
        sent = self._history.sent
        labels = [f"m{len(sent) + index}" for index in range(count)]
        for label in labels:
            sent[label] = Sent(is_scheduled)
        return labels

    def _answered(self, event: DispositionReceived, waiting: dict[int, list[str]]) -> None:
        for number in range(event.first, event.last + 1):
            labels = waiting.pop(number)
            if isinstance(event.state, Accepted):
                self._history.accepted(labels)
                self.has_begun.set()
            else:
                self._history.refused(labels)


class Receiver(Worker):
    """Receives, and completes, abandons, defers, dead-letters or just holds what it gets."""

    def work(self, client: WireClient) -> None:
        link = client.attach_receiver(self._queue)
        link.grant(CREDIT)
        waiting: dict[int, tuple[str, Asked]] = {}
        while not self._ends.is_set():
            for event in self.events(client):
                if isinstance(event, DeliveryReceived):
                    self._received(client, link, event, waiting)
                elif isinstance(event, DispositionReceived):
                    self._answered(event, waiting)

    def _received(
        self,
        client: WireClient,
        link: ReceiverLink,
        event: DeliveryReceived,
        waiting: dict[int, tuple[str, Asked]],
    ) -> None:
        label, seq, delivery_count = parsed(event.payload)
        self._history.delivered(label, seq, delivery_count)
        link.replenish()
        (what,) = self._random.choices([*Asked, None], [55, 10, 10, 10, 15])
        if what is not None and label in self._history.sent:
            self._history.asked(label, what)
            waiting[event.delivery_id] = (label, what)
            number = event.delivery_id
            client.session.send(Disposition(True, number, number, False, STATES[what]))

    def _answered(self, event: DispositionReceived, waiting: dict[int, tuple[str, Asked]]) -> None:
        for number in range(event.first, event.last + 1):
            label, what = waiting.pop(number)
            if isinstance(event.state, Rejected) and event.state.error is not None:
                self._history.complain(f"{what.name} was refused", label)
            else:
                self._history.answered(label, what)
                self.has_begun.set()


def parsed(payload: bytes) -> tuple[str, int, int]:
    """Label, sequence number and delivery count of a message as it is delivered."""
    message = Message.decode(payload)
    assert isinstance(message.body, bytes)
    annotations = message.message_annotations or {}
    count = 0 if message.header is None else message.header.delivery_count or 0
    return message.body.decode(), int(annotations[SEQUENCE_NUMBER]), int(count)
