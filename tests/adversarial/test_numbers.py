"""Sequence numbers and schedules that are not one's own (cases 86 to 88).

The management node is asked for what its caller cannot have; the queue stays as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.adversarial.guards import wait_until
from tests.adversarial.talk import (
    BAD_REQUEST,
    BATCH,
    NOT_FOUND,
    OUT_OF_RANGE,
    ask,
    batch_of,
    longs,
    put,
    refused,
    sequence_number,
    take,
)
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.codec.types import Array, Int, Long, Timestamp, ULong
from twinbus.amqp.delivery_states import Accepted, Modified, Rejected
from twinbus.amqp.message.message import Message

YEAR_1_MS, YEAR_9999_MS = -62_135_596_800_000, 253_402_300_799_999
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with connected(broker.port, broker.token()) as connected_client:
        yield connected_client


@pytest.fixture
def queue(broker: BrokerProcess) -> str:
    return broker.fresh_queue()


def deferred(client: WireClient, queue: str, *bodies: bytes) -> list[int]:
    """Put messages aside; their sequence numbers."""
    put(client, queue, *bodies)
    events = take(client, queue, len(bodies))
    for event in events:
        client.settled(event.delivery_id, Modified(True, True))
    return [sequence_number(event) for event in events]


def receiving(numbers: Any) -> dict[str, Any]:
    return {"sequence-numbers": numbers, "receiver-settle-mode": Int(0)}


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(longs(-1), id="case-86-minus-one"),
        pytest.param(longs(0), id="case-86-zero"),
        pytest.param(longs(INT64_MAX), id="case-86-largest-long"),
        pytest.param(longs(INT64_MIN), id="case-86-smallest-long"),
        pytest.param([ULong(2**63)], id="case-86-beyond-a-long"),
        pytest.param([ULong(2**64 - 1)], id="case-86-largest-ulong"),
        pytest.param(longs(10**12), id="case-86-never-given"),
    ],
)
def test_a_number_that_nobody_deferred_is_not_found(
    broker: BrokerProcess, client: WireClient, queue: str, numbers: Any
) -> None:
    """M2: and nothing is taken out, not even the good ones that stand beside it."""
    (good,) = deferred(client, queue, b"aside")
    before = broker.counts(queue)
    items = list(numbers.items) if isinstance(numbers, Array) else numbers
    for wanted in (numbers, [*items, Long(good)]):
        body = receiving(wanted)
        assert refused(client, queue, "receive-by-sequence-number", body) == NOT_FOUND
    assert broker.counts(queue) == before
    told = ask(client, queue, "receive-by-sequence-number", receiving(longs(good)))
    assert told.status == 200 and len(told.body["messages"]) == 1


def test_case_86_the_numbers_of_another_queue_mean_nothing_here(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M2: both queues have a message with that number; only one of them was deferred."""
    other = broker.fresh_queue()
    (theirs,) = deferred(client, other, b"theirs")
    put(client, queue, b"active")
    before = broker.counts(queue), broker.counts(other)
    body = receiving(longs(theirs))
    assert refused(client, queue, "receive-by-sequence-number", body) == NOT_FOUND
    assert (broker.counts(queue), broker.counts(other)) == before


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([], id="case-86-none"),
        pytest.param(["1"], id="case-86-text"),
        pytest.param([1.0], id="case-86-float"),
        pytest.param([True], id="case-86-boolean"),
        pytest.param([None], id="case-86-null"),
        pytest.param(longs(*range(1, 1_002)), id="case-86-1001"),
        pytest.param({"1": 1}, id="case-86-map"),
    ],
)
def test_what_is_not_a_list_of_numbers_is_a_bad_request(
    broker: BrokerProcess, client: WireClient, queue: str, numbers: Any
) -> None:
    """M2: for receiving and for cancelling."""
    deferred(client, queue, b"aside")
    before = broker.counts(queue)
    for operation in ("receive-by-sequence-number", "cancel-scheduled-message"):
        assert refused(client, queue, operation, receiving(numbers)) == BAD_REQUEST
    assert broker.counts(queue) == before


def test_case_86_a_number_that_stands_twice_is_a_bad_request(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M2: it could be handed over once only."""
    (good,) = deferred(client, queue, b"aside")
    body = receiving(longs(good, good))
    assert refused(client, queue, "receive-by-sequence-number", body) == BAD_REQUEST
    assert broker.counts(queue)["deferred_message_count"] == 1


def peeking(first: Any, count: Any) -> dict[str, Any]:
    return {"from-sequence-number": first, "message-count": count}


def test_case_87_a_peek_of_a_thousand_million_is_capped(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M3: a thousand messages, whatever was asked for; nothing is locked by it."""
    sender = client.attach_sender(queue)
    messages = [Message(body=b"%d" % number).encode() for number in range(1_200)]
    assert client.send(sender, batch_of(*messages), message_format=BATCH) == Accepted()
    before = broker.counts(queue)
    for count in (Int(10**9), Long(10**9), ULong(2**64 - 1)):
        told = ask(client, queue, "peek-message", peeking(Long(INT64_MIN), count))
        assert told.status == 200 and len(told.body["messages"]) == 1_000
    assert broker.counts(queue) == before


def test_case_87_a_peek_of_large_messages_is_capped_by_bytes(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M3: about a megabyte, however many there are."""
    put(client, queue, *[b"x" * 200_000] * 10)
    told = ask(client, queue, "peek-message", peeking(Long(1), Int(10**9)))
    assert 1 <= len(told.body["messages"]) < 10
    assert sum(len(each["message"]) for each in told.body["messages"]) <= 1 << 20


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(Long(1), Int(0), id="case-87-count-zero"),
        pytest.param(Long(1), Int(-1), id="case-87-count-negative"),
        pytest.param(Long(1), "many", id="case-87-count-text"),
        pytest.param(Long(1), None, id="case-87-count-null"),
        pytest.param(Long(1), True, id="case-87-count-boolean"),
        pytest.param(1.5, Int(1), id="case-87-first-float"),
        pytest.param(None, Int(1), id="case-87-first-null"),
    ],
)
def test_a_peek_that_makes_no_sense_is_a_bad_request(
    client: WireClient, queue: str, first: Any, count: Any
) -> None:
    """M3: both are whole numbers, and at least one message is wanted."""
    assert refused(client, queue, "peek-message", peeking(first, count)) == BAD_REQUEST


@pytest.mark.parametrize("first", [Long(INT64_MAX), ULong(2**64 - 1), Long(2**40)])
def test_case_87_a_peek_behind_the_end_finds_nothing(
    client: WireClient, queue: str, first: int
) -> None:
    """M3: 204, which SDKs read as an empty list."""
    put(client, queue, b"one")
    assert ask(client, queue, "peek-message", peeking(first, Int(1))).status == 204


def scheduling(due: Any) -> dict[str, Any]:
    """The body of a schedule-message for one message."""
    message = Message(message_annotations={"x-opt-scheduled-enqueue-time": due}, body=b"later")
    return {"messages": [{"message-id": "x", "message": message.encode()}]}


def scheduled(client: WireClient, queue: str, due_ms: int) -> int:
    told = ask(client, queue, "schedule-message", scheduling(Timestamp(due_ms)))
    assert told.status == 200
    (number,) = told.body["sequence-numbers"].items
    return int(number)


def cancel(client: WireClient, queue: str, *numbers: int) -> tuple[int, str | None]:
    body = {"sequence-numbers": longs(*numbers)}
    told = ask(client, queue, "cancel-scheduled-message", body)
    return told.status, told.condition


def test_case_88_the_first_and_the_last_year_can_be_scheduled_for(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M3: the past means now; the year 9999 waits and does not hold up what is due before it."""
    far = scheduled(client, queue, YEAR_9999_MS)
    scheduled(client, queue, YEAR_1_MS)
    scheduled(client, queue, int(time.time() * 1000) + 500)
    wait_until(
        lambda: broker.queue(queue)["active_message_count"] == 2,
        lambda: f"nothing became due: {broker.counts(queue)}",
    )
    assert broker.queue(queue)["scheduled_message_count"] == 1
    assert cancel(client, queue, far) == (200, None)
    assert broker.queue(queue)["scheduled_message_count"] == 0


@pytest.mark.parametrize(
    "due",
    [
        pytest.param(Timestamp(-(2**62)), id="case-88-minus-2-to-the-62"),
        pytest.param(Timestamp(YEAR_1_MS - 1), id="case-88-before-year-1"),
        pytest.param(Timestamp(YEAR_9999_MS + 1), id="case-88-after-year-9999"),
        pytest.param(Timestamp(INT64_MAX), id="case-88-largest"),
        pytest.param("9999-12-31", id="case-88-text"),
        pytest.param(Long(YEAR_9999_MS), id="case-88-long"),
        pytest.param(1.0e300, id="case-88-float"),
    ],
)
def test_a_time_that_no_calendar_has_is_refused(
    broker: BrokerProcess, client: WireClient, queue: str, due: Any
) -> None:
    """M3: through management and on a plain send."""
    assert refused(client, queue, "schedule-message", scheduling(due)) == OUT_OF_RANGE
    state = client.send(client.attach_sender(queue), scheduling(due)["messages"][0]["message"])
    assert isinstance(state, Rejected) and state.error is not None
    assert state.error.condition == OUT_OF_RANGE[1]
    assert_well_put(state.error.description)
    assert set(broker.counts(queue).values()) == {0}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"messages": []}, id="case-88-none"),
        pytest.param({"messages": ["x"]}, id="case-88-no-map"),
        pytest.param({"messages": [{"message": "x"}]}, id="case-88-text"),
        pytest.param({"messages": [{"message": None}]}, id="case-88-null"),
        pytest.param({"messages": [{"message": b"x"}] * 1_001}, id="case-88-1001"),
    ],
)
def test_a_schedule_without_messages_is_a_bad_request(
    broker: BrokerProcess, client: WireClient, queue: str, body: Any
) -> None:
    """M3: and nothing is kept for later."""
    assert refused(client, queue, "schedule-message", body) == BAD_REQUEST
    assert set(broker.counts(queue).values()) == {0}


def test_case_88_one_bad_message_schedules_none(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M3: all or nothing."""
    body = scheduling(Timestamp(YEAR_9999_MS))
    body["messages"] += [{"message-id": "y", "message": b"\x00\x53\x75\xa0\x05x"}]
    assert refused(client, queue, "schedule-message", body) == (400, "amqp:decode-error")
    assert set(broker.counts(queue).values()) == {0}


def test_case_88_nobody_cancels_what_is_not_scheduled_here(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M3: unknown, somebody else's, active or already cancelled: not found, and nothing goes."""
    other = broker.fresh_queue()
    scheduled(client, other, YEAR_9999_MS)
    put(client, queue, b"active")
    own = scheduled(client, queue, YEAR_9999_MS)
    before = broker.counts(queue), broker.counts(other)
    for numbers in ((1,), (-1,), (0,), (INT64_MAX,), (INT64_MIN,), (10**12,), (own, 1)):
        assert cancel(client, queue, *numbers) == NOT_FOUND
    assert cancel(client, other, own) == NOT_FOUND
    assert (broker.counts(queue), broker.counts(other)) == before
    assert cancel(client, queue, own) == (200, None)
    assert cancel(client, queue, own) == NOT_FOUND
