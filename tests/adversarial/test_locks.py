"""Lock tokens that are not one's own, or not any more (cases 80 to 82).

The clock that decides is monotonic: what happens when the wall clock jumps, and what takes too
long for a test over a wire, is in test_machine.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.adversarial.guards import wait_until
from tests.adversarial.talk import (
    BAD_REQUEST,
    LOCK_LOST,
    ask,
    lock_token,
    put,
    refused,
    sequence_number,
    settling,
    take,
    uuids,
)
from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.delivery_states import Accepted, Modified, Rejected
from twinbus.amqp.message.message import Message


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with connected(broker.port, broker.token()) as connected_client:
        yield connected_client


@pytest.fixture
def queue(broker: BrokerProcess) -> str:
    return broker.fresh_queue()


STATUSES = ["completed", "abandoned", "defered", "suspended"]


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: f"case-80-{status}")
def test_a_made_up_lock_token_settles_nothing(
    broker: BrokerProcess, client: WireClient, queue: str, status: str
) -> None:
    """M2: random, all zeros, or the right one with a bit changed."""
    put(client, queue, b"held", b"free")
    held = lock_token(take(client, queue)[0])
    before = broker.counts(queue)
    for token in (uuid4(), UUID(int=0), UUID(int=held.int ^ 1), UUID(int=held.int ^ 1 << 127)):
        body = settling(token, status=status)
        assert refused(client, queue, "update-disposition", body) == LOCK_LOST
        assert refused(client, queue, "renew-lock", {"lock-tokens": uuids(token)}) == LOCK_LOST
    assert broker.counts(queue) == before
    assert ask(client, queue, "update-disposition", settling(held, status=status)).status == 200


def test_case_80_a_lock_token_settles_once(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M2: by disposition or by management, the second time it is lost."""
    put(client, queue, b"one", b"two")
    first, second = take(client, queue, 2)
    client.complete(first.delivery_id)
    abandoning = settling(lock_token(second), status="abandoned")
    assert ask(client, queue, "update-disposition", abandoning).status == 200
    for event in (first, second):
        again = settling(lock_token(event))
        assert refused(client, queue, "update-disposition", again) == LOCK_LOST
        state = client.settled(event.delivery_id, Accepted())
        assert isinstance(state, Rejected) and state.error is not None
        assert state.error.condition == LOCK_LOST[1]
        assert_well_put(state.error.description)
    assert broker.counts(queue)["active_message_count"] == 1


def test_case_80_an_abandoned_message_cannot_be_settled_under_its_old_lock(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M2: the same message is held by somebody else now."""
    put(client, queue, b"one")
    (old,) = take(client, queue)
    state = client.settled(old.delivery_id, Modified(True, False))
    assert state == Modified(True, False)
    with connected(broker.port, broker.token()) as other:
        (new,) = take(other, queue)
        assert sequence_number(new) == sequence_number(old)
        assert refused(client, queue, "update-disposition", settling(lock_token(old))) == LOCK_LOST
        state = client.settled(old.delivery_id, Accepted())
        assert isinstance(state, Rejected)
        assert broker.queue(queue)["locked_message_count"] == 1
        other.complete(new.delivery_id)


def test_case_80_one_wrong_token_among_good_ones_settles_none(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M2: all or nothing, also when a good one stands twice."""
    put(client, queue, b"one", b"two")
    good = [lock_token(event) for event in take(client, queue, 2)]
    before = broker.counts(queue)
    for tokens in ([uuid4(), *good], [*good, uuid4()], [good[0], uuid4(), good[1]]):
        assert refused(client, queue, "update-disposition", settling(*tokens)) == LOCK_LOST
    twice = settling(*good, good[0])
    assert refused(client, queue, "update-disposition", twice) == BAD_REQUEST
    assert broker.counts(queue) == before
    assert ask(client, queue, "update-disposition", settling(*good)).status == 200
    assert broker.counts(queue)["active_message_count"] == 0


def test_case_80_the_lock_of_another_queue_is_no_lock_here(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M2: the token is looked for in the queue that was asked, and its dead letters are another."""
    other = broker.fresh_queue()
    put(client, other, b"theirs")
    held = lock_token(take(client, other)[0])
    for place in (queue, f"{other}/$DeadLetterQueue"):
        assert refused(client, place, "update-disposition", settling(held)) == LOCK_LOST
        assert refused(client, place, "renew-lock", {"lock-tokens": uuids(held)}) == LOCK_LOST
    assert broker.queue(other)["locked_message_count"] == 1


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("completed", id="case-80-no-map"),
        pytest.param({}, id="case-80-empty-map"),
        pytest.param({"disposition-status": "completed"}, id="case-80-no-tokens"),
        pytest.param(settling(), id="case-80-empty-tokens"),
        pytest.param(settling(*map(UUID, ["0" * 32] * 1_001)), id="case-80-1001-tokens"),
        pytest.param(
            {"disposition-status": "completed", "lock-tokens": ["0" * 32]}, id="case-80-text"
        ),
        pytest.param({"disposition-status": "completed", "lock-tokens": 7}, id="case-80-number"),
        pytest.param(settling(UUID(int=7), status="eaten"), id="case-80-unknown-status"),
        pytest.param({"disposition-status": None, "lock-tokens": []}, id="case-80-null-status"),
    ],
)
def test_a_settlement_that_makes_no_sense_is_a_bad_request(
    broker: BrokerProcess, client: WireClient, queue: str, body: Any
) -> None:
    """M2: and the next request is answered as ever."""
    put(client, queue, b"one")
    held = lock_token(take(client, queue)[0])
    assert refused(client, queue, "update-disposition", body) == BAD_REQUEST
    assert ask(client, queue, "update-disposition", settling(held)).status == 200


@pytest.mark.parametrize(
    "operation", ["", "renew", "com.microsoft:renew-lock", "x" * 10_000, "renew-lock\r\nX: y"]
)
def test_case_80_an_unknown_operation_is_told_so(
    client: WireClient, queue: str, operation: str
) -> None:
    """M2: 501, with little of the name repeated."""
    told = refused(client, queue, operation, {})
    assert told == (501, "amqp:not-implemented")


def test_case_81_settling_after_the_lock_has_run_out_is_refused(
    broker: BrokerProcess, client: WireClient
) -> None:
    """M2: by disposition, by management and for renewing; the attempt has been counted."""
    queue = broker.fresh_queue(lock_duration_ms=1_000)
    put(client, queue, b"late")
    (held,) = take(client, queue)
    wait_until(
        lambda: broker.queue(queue)["locked_message_count"] == 0, lambda: "the lock never ran out"
    )
    state = client.settled(held.delivery_id, Accepted())
    assert isinstance(state, Rejected) and state.error is not None
    assert state.error.condition == LOCK_LOST[1]
    token = lock_token(held)
    assert refused(client, queue, "update-disposition", settling(token)) == LOCK_LOST
    assert refused(client, queue, "renew-lock", {"lock-tokens": uuids(token)}) == LOCK_LOST
    with connected(broker.port, broker.token()) as other:
        (again,) = take(other, queue)
        header = Message.decode(again.payload).header
        assert header is not None and header.delivery_count == 1
        other.complete(again.delivery_id)


def test_case_82_a_lock_cannot_be_renewed_for_ever(
    broker: BrokerProcess, client: WireClient, queue: str
) -> None:
    """M2: 1,440 times, then it is left to run out."""
    put(client, queue, b"stuck")
    body = {"lock-tokens": uuids(lock_token(take(client, queue)[0]))}
    answers = [ask(client, queue, "renew-lock", body) for _ in range(1_441)]
    assert {told.status for told in answers[:1_440]} == {200}
    assert (answers[-1].status, answers[-1].condition) == LOCK_LOST
    assert broker.queue(queue)["locked_message_count"] == 1
