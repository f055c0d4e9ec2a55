"""Sessions that are not one's own, odd filters and large states (cases 83 to 85, 157)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.adversarial.guards import Guard, wait_until
from tests.adversarial.talk import BAD_REQUEST, LOCK_LOST, ask, lock_token, longs, refused, settling
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.codec.types import Described, Int, Symbol, Timestamp, UInt
from twinbus.amqp.delivery_states import Accepted, Rejected
from twinbus.amqp.events import DeliveryReceived, LinkDetachedEvent
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Attach, Source, Target

FILTER = Symbol("com.microsoft:session-filter")
TIMEOUT = Symbol("com.microsoft:timeout")
SESSION_LOCK_LOST = (410, "com.microsoft:session-lock-lost")
STATE_BYTES_MAX = 256 * 1024


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with connected(broker.port, broker.token()) as connected_client:
        yield connected_client


@pytest.fixture
def other(broker: BrokerProcess) -> Iterator[WireClient]:
    with connected(broker.port, broker.token()) as connected_client:
        yield connected_client


@pytest.fixture
def queue(broker: BrokerProcess) -> str:
    return broker.fresh_queue(requires_session=True)


def filtered(queue: str, filters: Any) -> Source:
    return Source(address=queue, filter=filters)


def accept(client: WireClient, queue: str, session: Any, **fields: Any) -> ReceiverLink:
    """Ask for a session; the answer may be a refusal."""
    return client.attach_receiver(queue, source=filtered(queue, {FILTER: session}), **fields)


def granted(link: ReceiverLink) -> str | None:
    source = link.peer.source
    name: str | None = None if source is None else (source.filter or {})[FILTER]
    return name


def put(client: WireClient, queue: str, session: str | None, *bodies: bytes) -> list[Any]:
    sender = client.attach_sender(queue)
    properties = Properties(group_id=session)
    return [
        client.send(sender, Message(properties=properties, body=body).encode()) for body in bodies
    ]


def take(client: WireClient, link: ReceiverLink, count: int = 1) -> list[DeliveryReceived]:
    link.grant(count)
    return [client.wait_for(DeliveryReceived) for _ in range(count)]


# -- case 83 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        ({FILTER: "x" * 129}, "com.microsoft:argument-out-of-range"),
        ({FILTER: 5}, "com.microsoft:argument-error"),
        ({FILTER: b"a"}, "com.microsoft:argument-error"),
        ({FILTER: True}, "com.microsoft:argument-error"),
        ({FILTER: Symbol("a")}, "com.microsoft:argument-error"),
        ({FILTER: ["a"]}, "com.microsoft:argument-error"),
        ({FILTER: Described(Symbol("x"), "a")}, "com.microsoft:argument-error"),
        ({Symbol("apache.org:selector-filter:string"): "a = 1"}, "amqp:not-implemented"),
        ({FILTER: "a", Symbol("unknown:filter"): None}, "amqp:not-implemented"),
        ({Symbol("com.microsoft:Session-Filter"): "a"}, "amqp:not-implemented"),
        ({}, "amqp:not-allowed"),
        (None, "amqp:not-allowed"),
    ],
    ids=lambda value: f"case-83-{value!r:.60}" if not isinstance(value, str) else "",
)
def test_an_odd_session_filter_is_refused_and_never_ignored(
    broker: BrokerProcess, client: WireClient, queue: str, filters: Any, condition: str
) -> None:
    """M3: ignored, it would hand out messages that nobody asked for."""
    put(client, queue, "a", b"not for you")
    link = client.attach_receiver(queue, source=filtered(queue, filters))
    error = client.detach_error(link)
    assert str(error.condition) == condition
    assert_well_put(error.description)
    assert broker.counts(queue)["locked_message_count"] == 0


def test_case_83_null_is_the_next_session_and_empty_is_a_name(
    client: WireClient, other: WireClient, queue: str
) -> None:
    """M3: as in Azure."""
    put(client, queue, "a", b"of a")
    put(client, queue, "", b"of nobody")
    named = accept(client, queue, "")
    assert granted(named) == ""
    assert Message.decode(take(client, named)[0].payload).body == b"of nobody"
    following = accept(other, queue, None)
    assert granted(following) == "a"
    longest = accept(client, queue, "x" * 128)
    assert granted(longest) == "x" * 128


@pytest.mark.parametrize("filters", [{FILTER: "a"}, {FILTER: None}], ids=["case-83-name", "null"])
def test_a_queue_without_sessions_gives_none(
    broker: BrokerProcess, client: WireClient, queue: str, filters: Any
) -> None:
    """M3: neither does the dead-letter queue of one that has them."""
    for address in (broker.fresh_queue(), f"{queue}/$DeadLetterQueue"):
        link = client.attach_receiver(address, source=filtered(address, filters))
        assert client.refusal(link) == "amqp:not-allowed"


@pytest.mark.parametrize(
    "value", ["soon", -1, True, 1.5], ids=lambda value: f"case-83-timeout-{value!r}"
)
def test_an_odd_timeout_is_refused(client: WireClient, queue: str, value: Any) -> None:
    """M3."""
    link = accept(client, queue, None, properties={TIMEOUT: value})
    assert client.refusal(link) == "com.microsoft:argument-error"


def test_case_83_a_message_without_a_session_is_refused(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M3: alone and in the middle of others; a ping needs none (M7)."""
    (outcome,) = put(client, queue, None, b"lost?")
    assert isinstance(outcome, Rejected) and outcome.error is not None
    assert outcome.error.condition == "amqp:not-allowed"
    assert_well_put(outcome.error.description)
    (outcome,) = put(client, queue, "x" * 129, b"too long")
    assert isinstance(outcome, Rejected)
    assert broker.counts(queue)["active_message_count"] == 0


# -- case 84 ----------------------------------------------------------------------------------


def test_case_84_a_session_that_is_held_cannot_be_had(
    broker: BrokerProcess, client: WireClient, other: WireClient, queue: str
) -> None:
    """M3: nor touched, by whoever does not hold it, on whatever connection."""
    put(client, queue, "a", b"one", b"two")
    held = take(client, accept(client, queue, "a"))[0]

    for thief in (other, client):
        error = thief.detach_error(accept(thief, queue, "a"))
        assert error.condition == "com.microsoft:session-cannot-be-locked"
        assert_well_put(error.description)
    for operation, extra in (
        ("renew-session-lock", {}),
        ("get-session-state", {}),
        ("set-session-state", {"session-state": b"stolen"}),
        ("receive-by-sequence-number", {"sequence-numbers": longs(1)}),
    ):
        body = {"session-id": "a", **extra}
        assert refused(other, queue, operation, body) == SESSION_LOCK_LOST
    # Its messages have no lock of their own that could be renewed
    renewing = {"lock-tokens": settling(lock_token(held))["lock-tokens"]}
    assert refused(other, queue, "renew-lock", renewing) == (400, "amqp:not-allowed")
    # The holder does not notice
    assert ask(client, queue, "get-session-state", {"session-id": "a"}).body == {
        "session-state": None
    }
    client.complete(held.delivery_id)
    assert broker.counts(queue)["active_message_count"] == 1


def test_case_84_whoever_waits_and_leaves_is_given_nothing(
    broker: BrokerProcess, other: WireClient, queue: str
) -> None:
    """M3: a session must not end up with a client that is gone."""
    for _ in range(20):
        with connected(broker.port, broker.token()) as impatient:
            impatient.session.attach_receiver(
                Attach(
                    name="impatient",
                    handle=9,
                    role=True,
                    source=filtered(queue, {FILTER: None}),
                    target=Target(address="me"),
                )
            )
            impatient.flush()
            impatient.pump()
    put(other, queue, "a", b"still here")

    link = accept(other, queue, None, properties={TIMEOUT: UInt(5_000)})

    assert granted(link) == "a"
    assert Message.decode(take(other, link)[0].payload).body == b"still here"


def test_case_84_a_lost_connection_frees_its_session(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M2, M3: at once, and what was in hand is not counted."""
    put(client, queue, "a", b"one")
    with connected(broker.port, broker.token()) as careless:
        take(careless, accept(careless, queue, "a"))
    wait_until(
        lambda: broker.counts(queue)["locked_message_count"] == 0,
        lambda: "the session is still held",
    )
    (again,) = take(client, accept(client, queue, "a"))
    header = Message.decode(again.payload).header
    assert header is not None and not header.delivery_count


def test_case_84_a_session_that_ran_out_is_lost_for_its_holder(
    broker: BrokerProcess, client: WireClient, guard: Guard
) -> None:
    """M2, M3: the link is detached, and nothing can be done with the session any more."""
    queue = broker.fresh_queue(requires_session=True, lock_duration_ms=1_000)
    put(client, queue, "a", b"one")
    link = accept(client, queue, "a")
    (held,) = take(client, link)

    error = client.detach_error(link)

    assert error.condition == SESSION_LOCK_LOST[1]
    assert_well_put(error.description)
    settle = settling(lock_token(held))
    assert refused(client, queue, "update-disposition", settle) == LOCK_LOST
    named = {**settle, "session-id": "a"}
    assert refused(client, queue, "update-disposition", named) == SESSION_LOCK_LOST
    for operation in ("renew-session-lock", "get-session-state", "set-session-state"):
        assert refused(client, queue, operation, {"session-id": "a"}) == SESSION_LOCK_LOST
    (again,) = take(client, accept(client, queue, "a"))
    header = Message.decode(again.payload).header
    assert header is not None and header.delivery_count == 1
    client.complete(again.delivery_id)


def test_case_84_a_queue_that_is_deleted_ends_the_waiting(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M3, M5: with a sentence, and the link is refused in the standard way."""
    link = client.session.attach_receiver(
        Attach(
            name="waiting",
            handle=9,
            role=True,
            source=filtered(queue, {FILTER: None}),
            target=Target(address="me"),
        )
    )
    client.flush()
    client.pump()
    broker.delete_queue(queue)
    event = client.wait_for(LinkDetachedEvent, lambda detached: detached.link is link)
    assert event.error is not None and event.error.condition == "amqp:not-found"


# -- case 85 ----------------------------------------------------------------------------------


def test_case_85_a_state_has_its_limit(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M3: 256 KB of any bytes, and not one more; what is refused changes nothing."""
    accept(client, queue, "a")
    most = bytes(range(256)) * 1_024
    assert len(most) == STATE_BYTES_MAX
    setting: dict[str, Any] = {"session-id": "a", "session-state": most}
    assert ask(client, queue, "set-session-state", setting).status == 200

    too_much = {**setting, "session-state": most + b"x"}
    assert refused(client, queue, "set-session-state", too_much) == (
        400,
        "amqp:link:message-size-exceeded",
    )
    for odd in ("text", 5, [b"x"], {"a": b"x"}):
        wrong = {**setting, "session-state": odd}
        assert refused(client, queue, "set-session-state", wrong) == BAD_REQUEST
    got = ask(client, queue, "get-session-state", {"session-id": "a"})
    assert got.body == {"session-state": most}
    for odd_name in (None, 5, b"a", Symbol("a")):
        about = {"session-id": odd_name}
        assert refused(client, queue, "get-session-state", about) == BAD_REQUEST


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"last-updated-time": Timestamp(0), "skip": Int(-1), "top": Int(1)},
        {"last-updated-time": Timestamp(0), "skip": Int(0), "top": "all"},
        {"last-updated-time": "now", "skip": Int(0), "top": Int(1)},
    ],
    ids=lambda body: f"case-85-{len(body)}",
)
def test_an_odd_question_about_sessions_is_refused(
    client: WireClient, queue: str, body: dict[str, Any]
) -> None:
    """M3."""
    assert refused(client, queue, "get-message-sessions", body) == BAD_REQUEST


def test_case_85_sessions_are_listed_by_state_or_by_messages(
    client: WireClient, queue: str
) -> None:
    """M3: in pages that end."""
    assert put(client, queue, "with messages", b"x") == [Accepted()]
    accept(client, queue, "with state")
    noting = {"session-id": "with state", "session-state": b"x"}
    assert ask(client, queue, "set-session-state", noting).status == 200

    def listed(since_ms: int, skip: int = 0) -> list[str]:
        asked = {"last-updated-time": Timestamp(since_ms), "skip": Int(skip), "top": Int(10**9)}
        told = ask(client, queue, "get-message-sessions", asked)
        return [] if told.status == 204 else list(told.body["sessions-ids"].items)

    assert listed(253_402_300_800_000) == ["with messages"]
    assert listed(0) == ["with state"]
    assert listed(0, skip=1) == []
    assert listed(-(10**12)) == ["with state"]


# -- case 157 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status",
    ["completed", "abandoned", "defered", "suspended"],
    ids=lambda status: f"case-157-{status}",
)
def test_the_lock_of_a_session_is_its_holders_alone(
    broker: BrokerProcess, client: WireClient, other: WireClient, queue: str, status: str
) -> None:
    """M2, M3: a lock token of a session's message is worth nothing without the session."""
    put(client, queue, "a", b"one")
    put(client, queue, "b", b"of b")
    held = take(client, accept(client, queue, "a"))[0]
    take(other, accept(other, queue, "b"))
    before = broker.counts(queue)
    stolen = settling(lock_token(held), status=status)

    # Whichever session the thief names, its own among them
    for named in ({}, {"session-id": "a"}, {"session-id": "b"}):
        body = {**stolen, **named}
        assert refused(other, queue, "update-disposition", body) == SESSION_LOCK_LOST
    # Nor can the holder pass the message off as another session's
    wrong = {**stolen, "session-id": "b"}
    assert refused(client, queue, "update-disposition", wrong) == SESSION_LOCK_LOST

    assert broker.counts(queue) == before
    own = {**stolen, "session-id": "a"}
    assert ask(client, queue, "update-disposition", own).status == 200


def test_case_157_a_former_holders_token_is_worth_nothing(
    broker: BrokerProcess, client: WireClient, other: WireClient, queue: str
) -> None:
    """M2, M3: a session lock does not survive its link, and its tokens end with it."""
    put(client, queue, "a", b"one")
    link = accept(client, queue, "a")
    (old,) = take(client, link)
    link.detach()
    client.flush()
    wait_until(
        lambda: broker.counts(queue)["locked_message_count"] == 0,
        lambda: "the session is still held",
    )
    (new,) = take(other, accept(other, queue, "a"))

    assert refused(client, queue, "update-disposition", settling(lock_token(old))) == LOCK_LOST
    # Not even the token of the present holder helps the former one
    stolen = settling(lock_token(new))
    assert refused(client, queue, "update-disposition", stolen) == SESSION_LOCK_LOST
    for operation, extra in (
        ("renew-session-lock", {}),
        ("get-session-state", {}),
        ("set-session-state", {"session-state": b"stolen"}),
    ):
        body = {"session-id": "a", **extra}
        assert refused(client, queue, operation, body) == SESSION_LOCK_LOST
    other.complete(new.delivery_id)
    assert broker.counts(queue)["active_message_count"] == 0
