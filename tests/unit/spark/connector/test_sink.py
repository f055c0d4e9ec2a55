"""Messages of one task on their way: batches, order, patience, and what is refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.pairing.fake_namespace import HANG, FakeNamespace
from twinbus.encoding.brokered_message import encode_message
from twinbus.errors import (
    CommunicationError,
    ConfigurationError,
    EntityNotFound,
    MessageTooLarge,
    OperationTimeout,
    ServerBusy,
    ServiceError,
)
from twinbus.message import BrokeredMessage
from twinbus.spark.connector import sink as module
from twinbus.spark.connector.row_encoder import EncodedRow
from twinbus.spark.connector.sink import LINKS_MAX, BatchSender


def outgoing(number: int, destination: str | None = None, size_bytes: int = 10) -> EncodedRow:
    body = f"{number:06}".encode().ljust(size_bytes, b".")
    message = BrokeredMessage(body, message_id=f"m-{number}")
    return EncodedRow(destination, encode_message(message), f"m-{number}")


def many(count: int, destination: str | None = None, size_bytes: int = 10) -> list[EncodedRow]:
    return [outgoing(number, destination, size_bytes) for number in range(count)]


def to(namespace: FakeNamespace, *, timeout_s: float = 5.0, in_flight: int = 4) -> BatchSender:
    return BatchSender(namespace, timeout_s=timeout_s, batches_in_flight_max=in_flight)


def encoded(messages: Sequence[EncodedRow]) -> list[bytes]:
    return [each.encoded for each in messages]


async def test_rows_go_where_they_say_and_else_where_the_option_says() -> None:
    namespace = FakeNamespace()
    rows = [outgoing(0), outgoing(1, "news"), outgoing(2), outgoing(3, "news")]

    dispatch = to(namespace)
    await dispatch.send_all(rows, default="orders")

    assert namespace.messages("orders") == encoded([rows[0], rows[2]])
    assert namespace.messages("news") == encoded([rows[1], rows[3]])
    assert {path: each.messages for path, each in dispatch.sent.items()} == {
        "orders": 2,
        "news": 2,
    }
    assert dispatch.sent["news"].size_bytes == sum(map(len, namespace.messages("news")))


async def test_a_row_without_a_destination_is_refused_before_anything_is_sent() -> None:
    namespace = FakeNamespace()

    with pytest.raises(ConfigurationError, match="no destination"):
        await to(namespace).send_all([outgoing(0, "orders"), outgoing(1)], default=None)

    assert namespace.attempts == []


async def test_messages_travel_in_batches_that_fit_and_in_order() -> None:
    namespace = FakeNamespace(message_bytes_max=20_000)
    rows = many(100, size_bytes=1_000)

    await to(namespace).send_all(rows, default="orders")

    assert namespace.messages("orders") == encoded(rows)
    assert 6 <= len(namespace.batches) <= 8
    assert all(count * 1_000 < 20_000 for _, count in namespace.batches)


async def test_a_batch_has_a_largest_number_of_messages() -> None:
    namespace = FakeNamespace(message_bytes_max=10_000_000)

    await to(namespace).send_all(many(2_500), default="orders")

    assert sorted(count for _, count in namespace.batches) == [500, 1_000, 1_000]


async def test_a_message_too_large_is_named_and_nothing_of_its_batch_is_sent() -> None:
    namespace = FakeNamespace(message_bytes_max=5_000)
    rows = [*many(5), outgoing(77, "news", 6_000), *many(5)]

    with pytest.raises(MessageTooLarge, match=r"'m-77' has 6,0\d\d bytes.*5,000") as caught:
        await to(namespace).send_all(rows, default="orders")

    assert caught.value.path == "news"
    assert namespace.attempts == []


async def test_a_missing_destination_costs_no_half_of_a_batch() -> None:
    namespace = FakeNamespace()
    namespace.answer("gone", EntityNotFound("there is no 'gone'", path="gone"))

    with pytest.raises(EntityNotFound, match="after 0 messages") as caught:
        await to(namespace).send_all([*many(5), outgoing(9, "gone")], default="orders")

    assert caught.value.path == "gone"
    assert namespace.messages("orders") == []


async def test_what_is_transient_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerBusy, "retry_after_s", 0.3)
    namespace = FakeNamespace()
    namespace.answer_once("orders", CommunicationError("lost"), ServerBusy("busy"))
    rows = many(3)

    began_s = asyncio.get_running_loop().time()
    await to(namespace).send_all(rows, default="orders")

    assert namespace.messages("orders") == encoded(rows)
    assert len(namespace.attempts) == 3
    assert asyncio.get_running_loop().time() - began_s >= 0.3


async def test_what_may_have_been_sent_twice_is_counted() -> None:
    """S1: at least once, and the task says how many may be there more than once."""
    namespace = FakeNamespace()
    namespace.answer_once(
        "orders",
        OperationTimeout("no answer"),
        CommunicationError("nobody is there", was_sent=False),
    )
    namespace.answer_once("news", CommunicationError("nobody is there", was_sent=False))

    dispatch = to(namespace)
    await dispatch.send_all([*many(3), *many(2, "news")], default="orders")

    shipped = {path: (each.messages, each.maybe_twice) for path, each in dispatch.sent.items()}
    assert shipped == {"orders": (3, 3), "news": (2, 0)}


async def test_a_busy_service_that_asks_for_more_time_than_there_is_ends_the_task() -> None:
    namespace = FakeNamespace()
    namespace.answer("orders", None)
    namespace.answer_once("orders", ServerBusy("busy"))

    with pytest.raises(ServerBusy, match="'orders' failed"):
        await to(namespace, timeout_s=1.0).send_all(many(1), default="orders")


async def test_the_deadline_ends_all_retries() -> None:
    namespace = FakeNamespace()
    namespace.answer_once("orders", *[CommunicationError("nobody is there")] * 100)

    began_s = asyncio.get_running_loop().time()
    with pytest.raises(CommunicationError, match=r"'orders' failed.*Nobody is there"):
        await to(namespace, timeout_s=1.0).send_all(many(1), default="orders")

    assert asyncio.get_running_loop().time() - began_s < 2.0
    assert len(namespace.attempts) < 8


async def test_no_answer_is_no_reason_to_wait_beyond_the_deadline() -> None:
    namespace = FakeNamespace()
    namespace.answer_once("orders", *[HANG] * 10)

    with pytest.raises(OperationTimeout, match="'orders' failed"):
        await to(namespace, timeout_s=0.5).send_all(many(1), default="orders")


async def test_a_failure_says_how_much_was_accepted_before() -> None:
    namespace = FakeNamespace()
    dispatch = to(namespace)
    await dispatch.send_all(many(7), default="orders")
    namespace.answer_once("orders", ServiceError("no"))

    with pytest.raises(ServiceError, match=r"after 7 messages.*: No"):
        await dispatch.send_all(many(3), default="orders")


async def test_one_batch_in_flight_keeps_the_order_through_a_retry() -> None:
    namespace = FakeNamespace(message_bytes_max=5_000)
    namespace.answer_once("orders", None, CommunicationError("lost"))
    rows = many(20, size_bytes=1_000)

    await to(namespace, in_flight=1).send_all(rows, default="orders")

    assert namespace.messages("orders") == encoded(rows)
    assert len(namespace.batches) > 5


async def test_any_number_of_destinations_shares_few_links() -> None:
    namespace = FakeNamespace()
    rows = [outgoing(number, f"q-{number}") for number in range(3 * LINKS_MAX)]

    await to(namespace).send_all(rows, default=None)

    assert all(len(namespace.messages(f"q-{n}")) == 1 for n in range(3 * LINKS_MAX))
    assert namespace.links_open <= LINKS_MAX


async def test_a_destination_is_asked_for_its_limits_once() -> None:
    namespace = FakeNamespace()
    dispatch = to(namespace)

    for _ in range(3):
        await dispatch.send_all(many(2), default="orders")

    assert namespace.attached == ["orders"]
    assert module.RETRIES.retry_total > 100  # The deadline ends retries, not their number.
