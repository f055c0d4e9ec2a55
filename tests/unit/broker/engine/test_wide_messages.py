"""Messages with more properties than one may send today: older stores hold them (M13)."""

from __future__ import annotations

from twinbus.amqp.limits import STORED_LIMITS
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker.engine.filters.message_view import MessageView
from twinbus.broker.engine.outcomes import DeadLetter, dead_lettered_at_once
from twinbus.broker.engine.stored_message import PLAIN, facts_of, unpack_record

COUNT = 8_000
WIDE = Message(
    properties=Properties(message_id="7"),
    application_properties={str(number): number for number in range(COUNT)},
    body=b"x",
).encode()


def test_what_was_taken_once_is_read_dead_lettered_and_filtered() -> None:
    moved = dead_lettered_at_once(PLAIN + WIDE, DeadLetter("reason", "why"), "q").record
    again = dead_lettered_at_once(moved, DeadLetter("another", "why"), "q").record
    record = unpack_record(again, 0, len(again))

    assert facts_of(again).message_id == "7"
    assert len(MessageView(record).user) == COUNT + 2
    properties = Message.decode(record.bare, STORED_LIMITS).application_properties or {}
    assert properties["DeadLetterReason"] == "another"
