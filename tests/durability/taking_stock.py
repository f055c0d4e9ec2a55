"""Finding out where every message is, by taking everything out of a broker."""

from __future__ import annotations

import time
from collections import Counter

from tests.durability.history import Asked, Found, History
from tests.durability.load import parsed
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived, DispositionReceived
from twinbus.amqp.sections import AmqpValue, Message
from twinbus.amqp.types import Array, Long

LONG_ARRAY = 0x81
CREDIT = 1_000
PER_REQUEST_MAX = 500
TIMEOUT_S = 60.0


def take_stock(broker: BrokerProcess, queue: str, history: History) -> Found:
    """Receive, complete, look up and peek everything; compare the broker's own counts."""
    counts = broker.queue(queue)
    found = Found()
    with connected(broker.port, broker.token()) as client:
        waiting = drained(client, queue, counts["active_message_count"])
        for label, seq, delivery_count in waiting:
            history.delivered(label, seq, delivery_count)
            found.waiting[label] += 1
        dead_queue = f"{queue}/$deadletterqueue"
        for label, _seq, _count in drained(client, dead_queue, counts["dead_letter_message_count"]):
            found.dead[label] += 1
        found.deferred = deferred(client, queue, history, found.waiting + found.dead)
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


def deferred(
    client: WireClient, queue: str, history: History, elsewhere: Counter[str]
) -> Counter[str]:
    """The deferred messages, received by number: the sure ones together, the others singly."""
    sure, unsure = [], []
    for label, sent in history.sent.items():
        if sent.done is Asked.DEFER:
            sure.append(sent.seq or 0)
        elif Asked.DEFER in sent.asked and sent.done is None and label not in elsewhere:
            unsure.append([sent.seq or 0])
    together = [sure[at : at + PER_REQUEST_MAX] for at in range(0, len(sure), PER_REQUEST_MAX)]
    labels: Counter[str] = Counter()
    for seqs in together + unsure:
        numbers = Array.of(LONG_ARRAY, [Long(seq) for seq in seqs])
        body = {"sequence-numbers": numbers, "receiver-settle-mode": 1}
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
