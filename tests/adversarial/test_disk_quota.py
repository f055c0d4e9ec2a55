"""Disk that is taken without a message being sent (cases 158 to 162)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adversarial.filling import fill
from tests.adversarial.guards import wait_until
from tests.adversarial.prober import attacked
from tests.adversarial.talk import ask, put, refused, settling, take
from tests.adversarial.talk import lock_token as token_of
from tests.adversarial.test_sessions import accept
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.delivery_states import Accepted, Error, Rejected
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties

QUOTA_BYTES = 1 << 20
FULL = (403, "amqp:resource-limit-exceeded")
STATE = bytes(200_000)
# What 4,096 characters take at most, for the reason and for its description.
TEXT = "\U0001f600" * 4_096


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with connected(broker.port, broker.token()) as connected_client:
        connected_client.timeout_s = 30
        yield connected_client


def set_state(client: WireClient, queue: str, session: str, state: bytes | None) -> Any:
    body = {"session-id": session, "session-state": state}
    return ask(client, queue, "set-session-state", body)


def test_case_158_states_of_sessions_count_against_the_quota(
    broker: BrokerProcess, client: WireClient
) -> None:
    """M3, M13: 100 sessions with 200 KB each do not fit into a queue of 1 MB."""
    queue = broker.fresh_queue(requires_session=True, max_size_mb=1)
    outcomes = []
    for number in range(100):
        accept(client, queue, f"s{number}")
        outcomes.append(set_state(client, queue, f"s{number}", STATE))

    assert [told.status for told in outcomes] == [200] * 5 + [FULL[0]] * 95
    assert {told.condition for told in outcomes[5:]} == {FULL[1]}
    size = broker.counts(queue)["size_in_bytes"]
    assert 5 * len(STATE) <= size <= QUOTA_BYTES
    # A message does not fit either, and a state that is there can be replaced or forgotten
    sender = client.attach_sender(queue)
    message = Message(properties=Properties(group_id="s0"), body=bytes(100_000)).encode()
    assert isinstance(client.send(sender, message), Rejected)
    assert set_state(client, queue, "s0", STATE[1:]).status == 200
    assert set_state(client, queue, "s1", None).status == 200
    assert client.send(sender, message) == Accepted()
    got = ask(client, queue, "get-session-state", {"session-id": "s0"})
    assert got.body == {"session-state": STATE[1:]}


def test_case_158_empty_states_count_too(broker: BrokerProcess, client: WireClient) -> None:
    """M3, M13: each of them is a row."""
    queue = broker.fresh_queue(requires_session=True, max_size_mb=1)
    before = broker.counts(queue)["size_in_bytes"]
    accept(client, queue, "empty")
    assert set_state(client, queue, "empty", b"").status == 200
    assert broker.counts(queue)["size_in_bytes"] - before >= 64


def test_case_158_the_states_of_subscriptions_count_against_their_topic(
    broker: BrokerProcess, client: WireClient
) -> None:
    """M3, M13: for all subscriptions together."""
    topic = broker.fresh_topic(max_size_mb=1)
    statuses = []
    for number in range(4):
        broker.create_subscription(topic, f"sub{number}", requires_session=True)
        path = f"{topic}/Subscriptions/sub{number}"
        for session in ("a", "b"):
            accept(client, path, session)
            statuses.append(set_state(client, path, session, STATE).status)
    assert statuses == [200] * 5 + [FULL[0]] * 3
    sender = client.attach_sender(topic)
    outcome = client.send(sender, Message(body=bytes(100_000)).encode())
    assert isinstance(outcome, Rejected)


def test_case_159_dead_letter_texts_stay_within_the_quota(
    broker: BrokerProcess, client: WireClient
) -> None:
    """M2, M13: one frame with 32 KB of text dead-letters a thousand messages."""
    queue = broker.fresh_queue(max_size_mb=1)
    count = 1_000
    fill(broker, queue, count, b"x" * 100)
    events = take(client, queue, count)
    error = Error(
        "com.microsoft:dead-letter",
        "",
        {Symbol("DeadLetterReason"): TEXT, Symbol("DeadLetterErrorDescription"): TEXT},
    )
    first, last = events[0].delivery_id, events[-1].delivery_id
    client.settle(first, last, Rejected(error))
    _await_dead(broker, queue, count)

    size = broker.counts(queue)["size_in_bytes"]
    assert size <= QUOTA_BYTES + count * 300, f"{size >> 20} MB in a queue of 1 MB"
    # There is no room for the texts; each of them says at least why
    dead = take(client, f"{queue}/$DeadLetterQueue", count)
    texts = [Message.decode(event.payload).application_properties or {} for event in dead]
    assert [each["DeadLetterReason"][:64] for each in texts] == [TEXT[:64]] * count
    assert texts[-1] == {"DeadLetterReason": TEXT[:64]}


@pytest.mark.parametrize("way", ["case-159-disposition", "management"])
def test_a_text_is_cut_at_its_limit(broker: BrokerProcess, client: WireClient, way: str) -> None:
    """M2: 4,096 characters, as the clients of Azure allow."""
    queue = broker.fresh_queue()
    put(client, queue, b"bad")
    (event,) = take(client, queue)
    long = "y" * 30_000
    if way == "management":
        body = settling(token_of(event), status="suspended")
        texts = {"deadletter-reason": long, "deadletter-description": long}
        assert ask(client, queue, "update-disposition", {**body, **texts}).status == 200
    else:
        info = {Symbol("DeadLetterReason"): long, Symbol("DeadLetterErrorDescription"): long}
        state = client.settled(event.delivery_id, Rejected(Error("com.microsoft:x", "", info)))
        assert isinstance(state, Rejected)
    (dead,) = take(client, f"{queue}/$DeadLetterQueue")
    properties = Message.decode(dead.payload).application_properties
    assert properties == {
        "DeadLetterReason": long[:4_096],
        "DeadLetterErrorDescription": long[:4_096],
    }


def test_case_160_what_counts_is_counted_again_after_a_restart(tmp_path: Path) -> None:
    """M3, M8, M13: states, dead letters and ids take as much of the quota as before."""
    data = tmp_path / "data"
    with BrokerProcess(data, queues=()) as broker:
        queue = broker.fresh_queue(
            requires_session=True, max_size_mb=1, requires_duplicate_detection=True
        )
        with connected(broker.port, broker.token()) as client:
            sender = client.attach_sender(queue)
            for number in range(10):
                properties = Properties(group_id="a", message_id=f"id-{number}")
                message = Message(properties=properties, body=b"x" * 1_000).encode()
                assert client.send(sender, message) == Accepted()
            link = accept(client, queue, "a")
            link.grant(1)
            event = client.wait_for(DeliveryReceived)
            client.settled(event.delivery_id, Rejected(Error("com.microsoft:x", "broken")))
            for name in "abcd":
                if name != "a":
                    accept(client, queue, name)
                assert set_state(client, queue, name, STATE).status == 200
        before = broker.counts(queue)
    assert before["size_in_bytes"] >= 4 * len(STATE) + 10_000 + 10 * 16
    with BrokerProcess(data, queues=()) as broker:
        assert broker.counts(queue) == before
        with connected(broker.port, broker.token()) as client:
            for name in "ef":
                accept(client, queue, name)
            assert set_state(client, queue, "e", STATE).status == 200
            body = {"session-id": "f", "session-state": STATE}
            assert refused(client, queue, "set-session-state", body) == FULL


def test_case_161_ids_that_are_remembered_count_against_the_quota(
    broker: BrokerProcess, client: WireClient
) -> None:
    """M3, M13: a message that is gone leaves its id for as long as the window lasts."""
    queue = broker.fresh_queue(requires_duplicate_detection=True)
    sender = client.attach_sender(queue)
    for number in range(20):
        message = Message(properties=Properties(message_id=f"m{number}"), body=b"x").encode()
        assert client.send(sender, message) == Accepted()
    for event in take(client, queue, 20):
        client.complete(event.delivery_id)
    counts = broker.counts(queue)
    assert counts["active_message_count"] == 0
    assert counts["size_in_bytes"] == 20 * 16


def _await_dead(broker: BrokerProcess, queue: str, count: int) -> None:
    wait_until(
        lambda: broker.counts(queue)["dead_letter_message_count"] == count,
        lambda: f"{broker.counts(queue)} are not {count} dead letters",
        20,
    )


def test_case_162_thousands_of_dead_letters_by_one_frame_stop_nobody(tmp_path: Path) -> None:
    """M2, M13: they are moved a few at a time, and others have their turns in between."""
    count = 2_000  # A link may have 2,048 unsettled.
    error = Error(
        "com.microsoft:dead-letter",
        "",
        {Symbol("DeadLetterReason"): TEXT, Symbol("DeadLetterErrorDescription"): TEXT},
    )
    with BrokerProcess(tmp_path / "data", queues=()) as broker:
        queue = broker.fresh_queue()
        fill(broker, queue, 3 * count, b"x" * 100)
        with connected(broker.port, broker.token()) as client:
            client.timeout_s = 60
            link = client.attach_receiver(queue)
            with attacked(broker) as attack:
                for turn in range(1, 4):
                    link.grant(count)
                    events = [client.wait_for(DeliveryReceived) for _ in range(count)]
                    first, last = events[0].delivery_id, events[-1].delivery_id
                    client.settle(first, last, Rejected(error))
                    _await_dead(broker, queue, turn * count)
                attack.lasted(3.0)
