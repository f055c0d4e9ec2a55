"""``twinbus dlq list|show|resubmit|drop``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.support.access import connection_string_of, connection_string_with, entity_rule
from twinbus.aio import BrokeredMessage, MessagingFactory
from twinbus.amqp.codec.types import Short
from twinbus.broker.access.rules import Claim
from twinbus.errors import ServiceError
from twinbus.testing.namespaces import NamespaceFixture

TYPED = {"short": Short(7), "id": UUID(int=5), "ok": True, "text": "ä"}


def bury(
    bus: NamespaceFixture,
    path: str,
    *messages: BrokeredMessage,
    to: str | None = None,
    reason: str = "too bad",
) -> None:
    """Send messages and dead-letter each of them."""

    async def run() -> None:
        async with MessagingFactory.from_connection_string(bus.connection_string) as factory:
            sender = factory.create_message_sender(to or path)
            receiver = factory.create_message_receiver(path)
            for message in messages:
                await sender.send(message)
            for _ in messages:
                found = await receiver.receive(max_wait_time=5)
                assert found is not None
                await found.dead_letter(reason=reason, description="no such customer")

    asyncio.run(run())


def received(bus: NamespaceFixture, path: str) -> list[BrokeredMessage]:
    async def run() -> list[BrokeredMessage]:
        async with MessagingFactory.from_connection_string(bus.connection_string) as factory:
            return await factory.create_message_receiver(path).receive_batch(10, max_wait_time=1)

    return asyncio.run(run())


def test_dead_letters_are_counted_over_all_entities(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M5: queues and subscriptions; those without any when they are asked for."""
    servicebus.queue("empty")
    servicebus.queue("orders")
    servicebus.subscription("news", "all")
    bury(servicebus, "orders", BrokeredMessage(b"1"), BrokeredMessage(b"2"))
    bury(servicebus, "news/subscriptions/all", BrokeredMessage(b"3"), to="news")
    counts = {each["entity"]: each["dead_letters"] for each in typed.json("dlq", "list")}
    assert counts == {"orders": 2, "news/subscriptions/all": 1}
    assert len(typed.lines("dlq", "list", "--all")) == 3
    assert "orders" in typed("dlq", "list")

    shown = typed.json("dlq", "show", "orders")
    assert [each["body"] for each in shown] == ["1", "2"]
    assert shown[0]["dead_letter_reason"] == "too bad"
    assert shown[0]["dead_letter_description"] == "no such customer"
    table = typed("dlq", "show", "news/subscriptions/all")
    assert "too bad" in table and "no such customer" in table


def test_a_dead_letter_goes_back_as_it_was(typed: Any, servicebus: NamespaceFixture) -> None:
    """M2: body, ids and the types of its properties are kept; the reason is taken off."""
    queue = servicebus.queue("orders")
    sent = BrokeredMessage(b"\xff1", message_id="m1", subject="tea", properties=dict(TYPED))
    bury(servicebus, "orders", sent, BrokeredMessage(b"2"))
    would = typed.json("dlq", "resubmit", "orders", "--dry-run")
    assert would == {"would_resubmit": 2, "to": "orders"} and queue.dead_letter_message_count == 2
    done = typed("dlq", "resubmit", "orders", "--count", "1")
    assert done == "1 message sent from the dead-letter queue of 'orders' to 'orders'\n"
    assert queue.dead_letter_message_count == 1
    (back,) = received(servicebus, "orders")
    assert (back.body, back.message_id, back.subject) == (b"\xff1", "m1", "tea")
    assert back.properties == TYPED and isinstance(back.properties["short"], Short)


def test_dead_letters_are_chosen_by_id_number_or_reason(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M2: the others stay where they are, free for the next receiver."""
    queue = servicebus.queue("orders")
    bury(servicebus, "orders", *(BrokeredMessage(b"x", message_id=f"m{n}") for n in range(4)))
    bury(servicebus, "orders", BrokeredMessage(b"y", message_id="late"), reason="expired")
    numbers = {m["message_id"]: m["sequence_number"] for m in typed.json("dlq", "show", "orders")}
    resubmit = ("dlq", "resubmit", "orders")

    assert typed.json(*resubmit, "--reason", "EXPIRED", "--dry-run")["would_resubmit"] == 1
    assert typed.json(*resubmit, "--id", "m2", "--id", "none", "--dry-run")["would_resubmit"] == 1
    assert typed.json(*resubmit, "--id", "m2", "--id", "none")["resubmitted"] == 1
    assert typed.json(*resubmit, "--number", str(numbers["m0"]))["resubmitted"] == 1
    assert typed.json(*resubmit, "--reason", "expired")["resubmitted"] == 1
    assert typed.json(*resubmit, "--reason", "too bad", "--count", "1")["resubmitted"] == 1
    assert typed(*resubmit, "--id", "none").startswith("0 messages sent")
    assert {each.message_id for each in received(servicebus, "orders")} == {
        "m0",
        "m1",
        "m2",
        "late",
    }
    assert queue.dead_letter_message_count == 1
    (left,) = received(servicebus, "orders/$DeadLetterQueue")
    assert left.message_id == "m3"


def test_a_chosen_dead_letter_that_somebody_else_holds_is_told(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M2: its lock is another receiver's, and nothing is sent twice."""
    servicebus.queue("orders")
    bury(servicebus, "orders", BrokeredMessage(b"1", message_id="m1"))
    (held,) = received(servicebus, "orders/$DeadLetterQueue")
    assert held.message_id == "m1"
    told = typed.refused("dlq", "resubmit", "orders", "--id", "m1")
    assert "1 message of the dead-letter queue of 'orders' could not be received" in told


def test_a_dead_letter_is_not_dropped_as_a_duplicate_of_itself(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M3: where duplicates are detected it gets a new id, and that is said."""
    queue = servicebus.queue("orders", requires_duplicate_detection=True)
    bury(servicebus, "orders", BrokeredMessage(b"1", message_id="m1"))
    assert "with new ids" in typed("dlq", "resubmit", "orders")
    assert queue.active_message_count == 1 and queue.dead_letter_message_count == 0
    (back,) = received(servicebus, "orders")
    assert back.body == b"1" and back.message_id != "m1"


def test_who_cannot_find_out_about_duplicates_must_say(
    typed_with: Callable[[str], Any], servicebus: NamespaceFixture
) -> None:
    """M6: Listen and Send are enough then."""
    queue = servicebus.queue("orders")
    bury(servicebus, "orders", BrokeredMessage(b"1"))
    weak = typed_with(connection_string_with(servicebus, Claim.LISTEN | Claim.SEND))
    assert "--ids new" in weak.refused("dlq", "resubmit", "orders")
    assert queue.dead_letter_message_count == 1
    assert weak.json("dlq", "resubmit", "orders", "--ids", "keep")["resubmitted"] == 1
    assert queue.dead_letter_message_count == 0 and queue.active_message_count == 1


def test_dead_letters_are_reached_with_a_key_of_the_queue(
    typed_with: Callable[[str], Any], servicebus: NamespaceFixture
) -> None:
    """M6: the management of the namespace does not know such a key."""
    rules = entity_rule(Claim.LISTEN | Claim.SEND)
    queue = servicebus.queue("orders", authorization_rules=rules)
    bury(servicebus, "orders", BrokeredMessage(b"1"), BrokeredMessage(b"2"))
    weak = typed_with(connection_string_of(servicebus, "orders"))
    assert "--ids new" in weak.refused("dlq", "resubmit", "orders")
    resubmitted = weak.json("dlq", "resubmit", "orders", "--ids", "keep", "--count", "1")
    assert resubmitted["resubmitted"] == 1
    assert weak.json("dlq", "drop", "orders", "--yes") == {"removed": 1, "left": 0}
    assert queue.active_message_count == 1


def test_a_namespace_that_is_away_is_no_matter_of_ids(typed_with: Callable[[str], Any]) -> None:
    away = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;"
    with pytest.raises(ServiceError):
        typed_with(f"{away}UseDevelopmentEmulator=true")("dlq", "resubmit", "orders")


def test_nothing_is_lost_when_the_entity_takes_nothing(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M8: a dead letter goes only when its copy was accepted, and is free again at once."""
    queue = servicebus.queue("orders")
    bury(servicebus, "orders", BrokeredMessage(b"1"), BrokeredMessage(b"2"))
    with servicebus.outage("cannot-send", entity="orders"):
        typed.refused("dlq", "resubmit", "orders")
    assert queue.dead_letter_message_count == 2 and queue.active_message_count == 0
    assert typed.json("dlq", "resubmit", "orders")["resubmitted"] == 2
    assert queue.active_message_count == 2


def test_a_subscription_is_reached_through_its_topic_when_that_is_said(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M1: all its subscriptions get a copy, so nobody does it by accident."""
    one = servicebus.subscription("news", "all")
    bury(servicebus, "news/subscriptions/all", BrokeredMessage(b"3"), to="news")
    assert "--to news" in typed.refused("dlq", "resubmit", "news/subscriptions/all")
    typed("dlq", "resubmit", "news/subscriptions/all", "--to", "news")
    assert one.active_message_count == 1 and one.dead_letter_message_count == 0


def test_dead_letters_are_dropped_on_request(typed: Any, servicebus: NamespaceFixture) -> None:
    queue = servicebus.queue("orders")
    bury(servicebus, "orders", BrokeredMessage(b"1"))
    assert typed.json("dlq", "drop", "orders", "--dry-run") == {"would_remove": 1}
    assert "--yes" in typed.refused("dlq", "drop", "orders")
    assert typed.json("dlq", "drop", "orders", "--yes") == {"removed": 1, "left": 0}
    assert queue.dead_letter_message_count == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dlq", "show", "missing"], "missing"),
        (["dlq", "resubmit", "missing"], "missing"),
        (["dlq", "resubmit", "orders", "--to", "missing"], "missing"),
        (["dlq", "resubmit", "orders", "--ids", "some"], "--ids: 'some'"),
        (["dlq", "drop", "missing", "--yes"], "missing"),
        (["dlq", "list", "--output", "xml"], "--output: 'xml'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_hint(
    typed: Any, servicebus: NamespaceFixture, arguments: list[str], words: str
) -> None:
    servicebus.queue("orders")
    bury(servicebus, "orders", BrokeredMessage(b"1"))
    assert words in typed.refused(*arguments)
