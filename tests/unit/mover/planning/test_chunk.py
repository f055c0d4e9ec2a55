"""Who gets what of a chunk, and what an answer means."""

from __future__ import annotations

import pytest

from tests.support.mover.messages import backlog, plain
from twinbus import errors
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import (
    CommunicationError,
    EntityNotFound,
    MessageTooLarge,
    OperationTimeout,
    ServiceError,
)
from twinbus.mover.planning.chunk_ledger import RestoredDelivery
from twinbus.mover.planning.chunk_plan import (
    BATCH_COUNT_MAX,
    SINGLES_MAX,
    DeliveryRules,
    MoveErrorClass,
    classify_error,
    plan_chunk,
    poison_from_error,
    send_signal_for,
    split_batch,
    split_into_batches,
)
from twinbus.mover.planning.circuit_breaker import SendSignal

RULES = DeliveryRules(primary_name="east")
QUEUE = "east/x-servicebus-transfer/0"


def delivered(encoded: bytes, number: int = 1, delivery_count: int = 0) -> ReceivedMessage:
    return ReceivedMessage(
        path=QUEUE, encoded=encoded, sequence_number=number, delivery_count=delivery_count
    )


def item(size: int, delivery_count: int = 0, number: int = 1) -> RestoredDelivery:
    return RestoredDelivery(delivered(b"", number, delivery_count), "orders", "m", bytes(size))


def test_messages_are_restored_and_grouped_by_destination() -> None:
    """Y1: translating the aliases back."""
    chunk = [
        delivered(backlog("a", "orders"), 1),
        delivered(backlog("b", "news"), 2),
        delivered(backlog("c", "Orders"), 3),
    ]
    plan = plan_chunk(chunk, RULES, now_ms=0)
    shape = {
        path: [(each.message_id, each.encoded) for each in items]
        for path, items in plan.by_destination.items()
    }
    assert shape == {"orders": [("a", plain("a")), ("c", plain("c"))], "news": [("b", plain("b"))]}
    assert {each.destination for each in plan.by_destination["orders"]} == {"orders"}
    assert plan.poison == []


@pytest.mark.parametrize(
    ("encoded", "reason", "named"),
    [
        (plain("a"), "no-destination", ""),
        (backlog("a", "east/x-servicebus-transfer/3"), "destination-not-allowed", "3"),
        (backlog("a", "secret"), "destination-not-allowed", "secret"),
        (b"garbage", "malformed-message", ""),
    ],
)
def test_what_nobody_can_deliver_is_poison_with_a_reason(
    encoded: bytes, reason: str, named: str
) -> None:
    """Y4, Y6: no destination, not allowed, malformed."""
    rules = DeliveryRules(primary_name="east", allowed=("orders", "x-*"))
    chunk = [delivered(encoded, 1), delivered(backlog("good"), 2)]
    plan = plan_chunk(chunk, rules, now_ms=0)
    [poison] = plan.poison
    assert poison.reason == reason
    assert named in poison.description
    assert poison.item.delivered.sequence_number == 1
    assert [each.message_id for each in plan.by_destination["orders"]] == ["good"]


def test_batches_fit_into_one_send_and_keep_the_order() -> None:
    items = [item(1_000, number=number) for number in range(10)]
    batches = list(split_into_batches(items, limit_bytes=6_000))
    assert [each for batch in batches for each in batch] == items
    assert [len(batch) for batch in batches] == [4, 4, 2]


def test_a_batch_has_a_largest_number_of_messages() -> None:
    items = [item(1, number=number) for number in range(BATCH_COUNT_MAX + 1)]
    assert [len(each) for each in split_into_batches(items, limit_bytes=1 << 20)] == [
        BATCH_COUNT_MAX,
        1,
    ]


def test_a_message_that_was_out_often_travels_alone_in_the_end() -> None:
    items = [item(1, delivery_count=number, number=number) for number in (0, 3, 50, 51)]
    assert [len(each) for each in split_into_batches(items, limit_bytes=1 << 20)] == [2, 1, 1]


def test_messages_with_and_without_sessions_travel_apart() -> None:
    """Y4: a destination with sessions refuses all without, which are then among themselves."""
    items = [item(1, number=number) for number in range(4)]
    items[1:3] = [each._replace(session_id="s") for each in items[1:3]]
    batches = list(split_into_batches(items, limit_bytes=1 << 20))
    assert batches == [[items[0], items[3]], [items[1], items[2]]]


def test_a_refused_batch_is_halved_and_a_small_one_sent_one_by_one() -> None:
    items = [item(1, number=number) for number in range(SINGLES_MAX + 1)]
    assert split_batch(items) == [items[:4], items[4:]]
    assert split_batch(items[:3]) == [items[:1], items[1:2], items[2:3]]


def test_every_error_of_the_service_has_a_verdict() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    for kind in kinds:
        if issubclass(kind, ServiceError) and kind is not errors.TooLargeForBacklog:
            assert isinstance(classify_error(kind("it happened")), MoveErrorClass)


@pytest.mark.parametrize(
    ("error", "verdict", "sign"),
    [
        (CommunicationError("x", was_sent=False), MoveErrorClass.LATER, SendSignal.FAILED),
        (CommunicationError("x", was_sent=True), MoveErrorClass.AMBIGUOUS, SendSignal.FAILED),
        (OperationTimeout("x"), MoveErrorClass.AMBIGUOUS, SendSignal.FAILED),
        (errors.ServerBusy("x"), MoveErrorClass.LATER, SendSignal.FAILED),
        (errors.AccessRefused("x"), MoveErrorClass.LATER, SendSignal.FAILED),
        (errors.EntityDisabled("x"), MoveErrorClass.LATER, SendSignal.FAILED),
        (errors.QuotaExceeded("x"), MoveErrorClass.LATER, SendSignal.FAILED),
        (MessageTooLarge("x"), MoveErrorClass.REFUSED, SendSignal.ACCEPTED),
        (errors.MessageRefused("x"), MoveErrorClass.REFUSED, SendSignal.ACCEPTED),
        (EntityNotFound("x"), MoveErrorClass.GONE, SendSignal.GONE),
        (ServiceError("x"), MoveErrorClass.AMBIGUOUS, SendSignal.FAILED),
    ],
)
def test_an_error_means_what_the_table_says(
    error: ServiceError, verdict: MoveErrorClass, sign: SendSignal
) -> None:
    assert (classify_error(error), send_signal_for(error)) == (verdict, sign)


def test_a_refused_message_is_buried_with_its_destination_and_error() -> None:
    """Y4: a reason that names destination and error."""
    poison = poison_from_error(
        item(1), MessageTooLarge("the message has 300000 bytes" + "!" * 5_000)
    )
    assert poison.reason == "message-too-large"
    assert poison.description.startswith("orders: The message has 300000 bytes")
    assert len(poison.description) <= 1_000
