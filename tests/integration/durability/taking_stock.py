"""Finding out where every message is, by taking everything out of a broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.integration.durability.history import Asked, Found, History
from tests.integration.durability.load import parsed
from tests.integration.durability.load_parts import session_of, take_session
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.codec.types import Array, Long
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived, DispositionReceived
from twinbus.amqp.message.message import AmqpValue, Message

LONG_ARRAY = 0x81
CREDIT = 1_000
PER_REQUEST_MAX = 500
TIMEOUT_S = 60.0
# Nothing more comes from a session that was silent for so long.
QUIET_S = 0.3


def take_stock(
    broker: BrokerProcess,
    queue: str,
    history: History,
    sessions: Sequence[str] = (),
    counts: dict[str, Any] | None = None,
) -> Found:
    """Receive, complete, look up and peek everything; compare the broker's own counts.

    With ``sessions``, the queue has those; a session queue in these tests has nothing scheduled.
    """
    counts = counts or broker.queue(queue)
    found = Found()
    with connected(broker.port, broker.token()) as client:
        active = counts["active_message_count"]
        if sessions:
            waiting = drained_sessions(client, queue, active, sessions)
        else:
            waiting = drained(client, queue, active)
        for label, seq, delivery_count in waiting:
            history.delivered(label, seq, delivery_count)
            found.waiting[label] += 1
        dead_queue = f"{queue}/$deadletterqueue"
        for label, _seq, _count in drained(client, dead_queue, counts["dead_letter_message_count"]):
            found.dead[label] += 1
        elsewhere = found.waiting + found.dead
        for session in sessions or (None,):
            found.deferred += deferred(client, queue, history, elsewhere, session)
        if not sessions:
            found.scheduled = peeked(client, queue)
    assert sum(found.deferred.values()) == counts["deferred_message_count"]
    # Taking a deferred message only locks it, so that a peek still shows it.
    found.scheduled -= found.deferred
    assert sum(found.scheduled.values()) == counts["scheduled_message_count"]
    return found


def drained(client: WireClient, address: str, count: int) -> list[tuple[str, int, int]]:
    """Receive and complete everything; it must be ``count`` messages and not one more."""
    link = client.attach_receiver(address)
    link.grant(CREDIT)
    messages: list[tuple[str, int, int]] = []
    settled = 0
    deadline = time.monotonic() + TIMEOUT_S
    while settled < count:
        assert time.monotonic() < deadline, f"{settled} of {count} messages came"
        client.pump()
        events, client.events = client.events, []
        arrived = [event for event in events if isinstance(event, DeliveryReceived)]
        answers = [event for event in events if isinstance(event, DispositionReceived)]
        settled += sum(answer.last - answer.first + 1 for answer in answers)
        if arrived:
            messages += [parsed(event.payload) for event in arrived]
            client.settle(arrived[0].delivery_id, arrived[-1].delivery_id, Accepted())
            link.replenish()
    client.pump(0.2)
    more = [event for event in client.events if isinstance(event, DeliveryReceived)]
    assert more == [], "there is more than was counted"
    link.detach()
    client.flush()
    return messages


def drained_sessions(
    client: WireClient, address: str, count: int, sessions: Sequence[str]
) -> list[tuple[str, int, int]]:
    """The same for an entity with sessions, one after the other."""
    messages: list[tuple[str, int, int]] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
        for session in sessions:
            messages += _drained_session(client, address, session)
    assert len(messages) == count, "there is more than was counted"
    return messages


def _drained_session(client: WireClient, address: str, session: str) -> list[tuple[str, int, int]]:
    """Receive and complete what comes until nothing comes any more."""
    link = take_session(client, address, session)
    link.grant(CREDIT)
    messages: list[tuple[str, int, int]] = []
    settled, quiet_at = 0, time.monotonic() + QUIET_S
    while time.monotonic() < quiet_at or settled < len(messages):
        client.pump(0.05)
        events, client.events = client.events, []
        arrived = [event for event in events if isinstance(event, DeliveryReceived)]
        answers = [event for event in events if isinstance(event, DispositionReceived)]
        settled += sum(answer.last - answer.first + 1 for answer in answers)
        if arrived:
            messages += [parsed(event.payload) for event in arrived]
            client.settle(arrived[0].delivery_id, arrived[-1].delivery_id, Accepted())
            link.replenish()
            quiet_at = time.monotonic() + QUIET_S
    link.detach()
    client.flush()
    return messages


def deferred(
    client: WireClient,
    queue: str,
    history: History,
    elsewhere: Counter[str],
    session: str | None = None,
) -> Counter[str]:
    """The deferred messages, received by number: the sure ones together, the others singly."""
    sure, unsure = [], []
    for label, sent in history.sent.items():
        if session is not None and session_of(label) != session:
            continue
        if sent.done is Asked.DEFER:
            sure.append(sent.seq or 0)
        elif Asked.DEFER in sent.asked and sent.done is None and label not in elsewhere:
            unsure.append([sent.seq or 0])
    together = [sure[at : at + PER_REQUEST_MAX] for at in range(0, len(sure), PER_REQUEST_MAX)]
    if session is not None:
        take_session(client, queue, session)
    named = {} if session is None else {"session-id": session}
    labels: Counter[str] = Counter()
    for seqs in together + unsure:
        numbers = Array.of(LONG_ARRAY, [Long(seq) for seq in seqs])
        body = {"sequence-numbers": numbers, "receiver-settle-mode": 1, **named}
        reply = client.manage(queue, "com.microsoft:receive-by-sequence-number", body)
        labels.update(label for label, _seq, _count in _messages(reply))
    return labels


def peeked(client: WireClient, queue: str) -> Counter[str]:
    """Everything that a peek shows."""
    labels: Counter[str] = Counter()
    first = 1
    while True:
        body = {"from-sequence-number": Long(first), "message-count": 250}
        reply = client.manage(queue, "com.microsoft:peek-message", body)
        messages = _messages(reply)
        if not messages:
            return labels
        labels.update(label for label, _seq, _count in messages)
        first = messages[-1][1] + 1


def _messages(reply: Message) -> list[tuple[str, int, int]]:
    assert isinstance(reply.body, AmqpValue)
    entries = (reply.body.value or {}).get("messages", [])
    return [parsed(entry["message"]) for entry in entries]
