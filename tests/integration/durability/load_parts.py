"""Clients for the parts of the broker that have more to lose: sessions, topics, ids.

They write into the same histories as those of load.py, and add what only they can check.
"""

from __future__ import annotations

import time
import zlib
from random import Random
from typing import Any

from tests.integration.durability.history import Asked, History, Sent
from tests.integration.durability.load import STATES, Receiver, Sender, parsed
from tests.support.wire_client import WireClient
from twinbus.amqp.codec.types import Symbol, Timestamp
from twinbus.amqp.events import DeliveryReceived, DispositionReceived
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Disposition, Source

SESSIONS = ("s0", "s1", "s2", "s3", "s4")
FILTER = Symbol("com.microsoft:session-filter")
# Messages that one stay in a session takes at most, so that some are always left in it.
STAY_COUNT = 40
# Scheduled messages of a topic become due while the broker is being killed.
DUE_MS_MAX = 1_500
# How often a client sends again what was accepted long ago.
REPEATS = 0.1


def number_of(label: str) -> int:
    return int(label[1:])


def session_of(label: str) -> str:
    """The session of a message; a batch has several."""
    return SESSIONS[zlib.crc32(label.encode()) % len(SESSIONS)]


def is_red(label: str) -> bool:
    return number_of(label) % 3 == 0


def take_session(client: WireClient, address: str, session: str) -> ReceiverLink:
    source = Source(address=address, filter={FILTER: session})
    return client.attach_receiver(address, source=source)


def state_of(client: WireClient, queue: str, session: str) -> str | None:
    """What the holder of a session reads as its state."""
    body = {"session-id": session}
    reply = client.manage(queue, "com.microsoft:get-session-state", body).body
    assert isinstance(reply, AmqpValue)
    state = (reply.value or {}).get("session-state")
    return None if state is None else bytes(state).decode()


class SessionHistory(History):
    """Besides, for each session: the order of first deliveries, and its state."""

    def __init__(self) -> None:
        super().__init__()
        self._newest = dict.fromkeys(SESSIONS, -1)
        self._states: dict[str, list[str | None]] = {session: [None] for session in SESSIONS}
        """What the state may be: the last that was acknowledged, and all that came after it."""

    def delivered(self, label: str, seq: int, delivery_count: int) -> None:
        is_first = label in self.sent and self.sent[label].seq is None
        super().delivered(label, seq, delivery_count)
        session, number = session_of(label), number_of(label)
        if is_first and number < self._newest[session]:
            self.complain(f"comes behind m{self._newest[session]}", label)
        if is_first:
            self._newest[session] = number

    def given_back(self, labels: list[str]) -> None:
        """Their session was let go: they may be handed out again."""
        for label in labels:
            self.sent[label].delivered_in_life = None

    def state_asked(self, session: str, state: str) -> None:
        self._states[session].append(state)

    def state_kept(self, session: str) -> None:
        self.acknowledged["states"] += 1
        self._states[session] = self._states[session][-1:]

    def state_found(self, session: str, state: str | None) -> None:
        if state not in self._states[session]:
            self.complaints.append(f"the state of {session} is {state}: {self._states[session]}")


class SessionSender(Sender):
    """Every message is of a session; none is scheduled."""

    def message(self, label: str, **parts: Any) -> Message:
        return super().message(label, properties=Properties(group_id=session_of(label)), **parts)

    def schedules(self) -> bool:
        return False


class Holder(Receiver):
    """Takes one session after the other, settles some of it in order and notes down a state."""

    _history: SessionHistory
    _in_hand: list[str]

    def work(self, client: WireClient) -> None:
        waiting: dict[int, tuple[str, Asked]] = {}
        self._in_hand = []
        while not self._ends.is_set():
            session = self._random.choice(SESSIONS)
            link = take_session(client, self._queue, session)
            self._history.state_found(session, state_of(client, self._queue, session))
            self._stay(client, link, waiting)
            self._note_down(client, session)
            self._leave(client, link, waiting)

    def _stay(
        self, client: WireClient, link: ReceiverLink, waiting: dict[int, tuple[str, Asked]]
    ) -> None:
        link.grant(STAY_COUNT)
        until = time.monotonic() + self._random.uniform(0.01, 0.1)
        while time.monotonic() < until:
            self._look(client, link, waiting)

    def _look(
        self, client: WireClient, link: ReceiverLink, waiting: dict[int, tuple[str, Asked]]
    ) -> None:
        for event in self.events(client):
            if isinstance(event, DeliveryReceived) and event.link is link:
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
        self._in_hand.append(label)
        (what,) = self._random.choices([*Asked, None], [60, 10, 5, 10, 15])
        if what is not None and label in self._history.sent:
            self._history.asked(label, what)
            waiting[event.delivery_id] = (label, what)
            number = event.delivery_id
            client.session.send(Disposition(True, number, number, False, STATES[what]))

    def _note_down(self, client: WireClient, session: str) -> None:
        state = f"{self._history.life}-{self._random.getrandbits(32)}"
        self._history.state_asked(session, state)
        body = {"session-id": session, "session-state": state.encode()}
        reply = client.manage(self._queue, "com.microsoft:set-session-state", body)
        assert int((reply.application_properties or {})["statusCode"]) == 200, reply
        self._history.state_kept(session)

    def _leave(
        self, client: WireClient, link: ReceiverLink, waiting: dict[int, tuple[str, Asked]]
    ) -> None:
        """What was not settled goes back with the session; answers are waited for."""
        while waiting:
            self._look(client, link, waiting)
        link.detach()
        client.flush()
        self._history.given_back(self._in_hand)
        self._in_hand = []


class Publisher(Sender):
    """To a topic: with a session, often red, now or a little later."""

    def __init__(self, *arguments: Any, red: History) -> None:
        super().__init__(*arguments)
        self._red = red
        """The history of the subscription that gets the red ones."""

    def message(self, label: str, **parts: Any) -> Message:
        properties = Properties(group_id=session_of(label))
        colour = {"colour": "red" if is_red(label) else "blue"}
        return super().message(label, properties=properties, application_properties=colour, **parts)

    def later(self) -> Timestamp:
        return Timestamp(round(time.time() * 1_000) + self._random.randint(1, DUE_MS_MAX))

    def _labels(self, count: int, *, is_scheduled: bool = False) -> list[str]:
        labels = super()._labels(count, is_scheduled=is_scheduled)
        self._red.sent.update((label, Sent()) for label in labels if is_red(label))
        return labels


class Resender(Sender):
    """Gives every message an id, and sends again what was not acknowledged, and more."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        sent = self._history.sent.items()
        self._again = [label for label, each in sent if not each.is_accepted]

    def message(self, label: str, **parts: Any) -> Message:
        return super().message(label, properties=Properties(message_id=label), **parts)

    def schedules(self) -> bool:
        return False

    def _labels(self, count: int, *, is_scheduled: bool = False) -> list[str]:
        if self._again:
            labels, self._again = self._again[:count], self._again[count:]
            return labels
        if self._history.sent and self._random.random() < REPEATS:
            return [self._random.choice(list(self._history.sent))]
        return super()._labels(count)


def seeded(random: Random) -> Random:
    return Random(random.getrandbits(32))
