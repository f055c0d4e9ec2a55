"""Both ends know every field of every message, and notice one that is not as it was sent."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from twinbus.amqp.codec.types import Int, Long
from twinbus.amqp.message.message import AmqpSequence, AmqpValue, DataSections
from twinbus.encoding.brokered_message import decode_message, encode_message
from twinbus.encoding.transit import ReceivedMessage
from twinbus.message import BrokeredMessage
from verification.fault_campaign.messages import FIELDS, differences, message_of, print_of
from verification.fault_campaign.plan import Plan

PLAN = Plan(seed=3, began_s=1_800_000_000.0)
COUNT = 500
# What the service says about a message, and what its receiver keeps.
OF_THE_SERVICE = {
    "sequence_number", "enqueued_sequence_number", "enqueued_time_utc", "locked_until_utc",
    "delivery_count", "lock_token", "dead_letter_source", "held", "unread",
}  # fmt: skip


def test_every_field_that_an_application_can_set_is_compared() -> None:
    assert {each.name for each in fields(BrokeredMessage)} - OF_THE_SERVICE == set(FIELDS)


def test_a_message_follows_from_seed_and_value() -> None:
    assert print_of(message_of(PLAN, "s-1")) == print_of(message_of(PLAN, "s-1"))
    assert print_of(message_of(PLAN, "s-1")) != print_of(message_of(PLAN, "s-2"))
    other = replace(PLAN, seed=4)
    assert print_of(message_of(PLAN, "s-1")) != print_of(message_of(other, "s-1"))


def test_messages_have_all_shapes() -> None:
    drawn = [message_of(PLAN, f"s-{number}") for number in range(COUNT)]
    assert {type(each.body) for each in drawn} == {bytes, DataSections, AmqpSequence, AmqpValue}
    for name in FIELDS:
        assert any(getattr(each, name) not in (None, {}) for each in drawn), name
    assert len({name for each in drawn for name in each.properties}) == 19


def test_what_was_encoded_has_the_same_print_when_it_is_decoded() -> None:
    for number in range(COUNT):
        sent = message_of(PLAN, f"s-{number}")
        found = decode_message(ReceivedMessage("orders", encode_message(sent), 1))
        assert differences(sent, found) == []
        assert print_of(sent) == print_of(found)


WHOLE = BrokeredMessage(b"body", message_id="s-1", properties={"n": Long(5)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("body", b"bodY"),
        ("body", DataSections((b"body",))),
        ("message_id", "s-2"),
        ("session_id", "berlin"),
        ("correlation_id", 7),
        ("correlation_id", "7"),
        ("subject", ""),
        ("to", "x"),
        ("reply_to", "x"),
        ("reply_to_session_id", "x"),
        ("content_type", "x"),
        ("content_encoding", "x"),
        ("partition_key", "x"),
        ("priority", 5),
        ("time_to_live", timedelta(seconds=1)),
        ("scheduled_enqueue_time_utc", datetime(2030, 1, 1, tzinfo=UTC)),
        ("properties", {}),
        ("properties", {"n": Int(5)}),
        ("properties", {"n": Long(5), "m": None}),
    ],
)
def test_one_field_that_differs_is_noticed(name: str, value: Any) -> None:
    other = replace(WHOLE, **{name: value})
    assert print_of(other) != print_of(WHOLE)
    assert differences(WHOLE, other) == [name]


def test_what_a_dead_letter_queue_adds_is_left_out() -> None:
    dead = replace(WHOLE, properties={**WHOLE.properties, "DeadLetterReason": "because"})
    assert print_of(dead) == print_of(WHOLE)
