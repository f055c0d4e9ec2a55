"""A message on its way to the dead letters: what it remembers of its earlier ways."""

from __future__ import annotations

from typing import Any

from tests.entities.driver import Driver
from twinbus.amqp.decode import decode_value
from twinbus.amqp.encode import encode_value
from twinbus.amqp.limits import Budget
from twinbus.amqp.sections import Message
from twinbus.amqp.types import Long, Symbol
from twinbus.broker.entities.consumer import Grant
from twinbus.broker.entities.dead_letter import dead_lettered
from twinbus.broker.entities.forwarding import forwarded
from twinbus.broker.entities.outcome import DeadLetter
from twinbus.broker.entities.record import (
    IncomingMessage,
    Record,
    Trail,
    pack_record,
    unpack_record,
)

USERS_OWN = encode_value(Symbol("x-mine")) + encode_value("kept")


def annotations(message: IncomingMessage) -> list[tuple[str, Any]]:
    """Every pair, also one that is there twice."""
    record = unpack_record(message.record, 0, len(message.record))
    raw, position, values = record.annotation_pairs, 0, []
    for _ in range(2 * record.annotation_count):
        value, position = decode_value(raw, position, len(raw), Budget())
        values.append(value)
    assert position == len(raw)
    return [(str(values[at]), values[at + 1]) for at in range(0, len(values), 2)]


def handed_out(driver: Driver, message: IncomingMessage) -> Grant:
    """The message as the newest in a queue, in somebody's hands."""
    driver.queue.enqueue([message], None)
    driver.commit()
    driver.client()
    driver.read()
    while not (grants := driver.queue.pump(driver.now)):
        driver.read()
    return grants[-1]


def test_a_message_that_was_moved_before_has_every_annotation_once() -> None:
    """M2, M3: the last source, the first number, and its own; a name twice is no message."""
    # Given a message that was dead-lettered in one queue and forwarded to another
    bare = Message(body=b"a").encode()
    sent = IncomingMessage(
        pack_record(Record(bare, annotation_count=1, annotation_pairs=USERS_OWN))
    )
    first, second, third = Driver(), Driver(), Driver()
    first.sent("something else")
    grant = handed_out(first, sent)
    assert grant.chunk.first_seq + grant.start == 2
    dead = dead_lettered_in(grant, "first")
    moved = forwarded(second.queue, handed_out(second, dead), 0, third.description, third.now)

    # When it is dead-lettered there, too
    again = dead_lettered_in(handed_out(third, moved), "third")

    # Then the witness hears where it was before
    assert (dead.trail, moved.trail, again.trail) == (
        Trail("first", 2),
        Trail("orders", 1),
        Trail("third", 1),
    )

    # Then it says so, and where it came from in the beginning
    assert sorted(annotations(again)) == [
        ("x-mine", "kept"),
        ("x-opt-deadletter-source", "third"),
        ("x-opt-enqueue-sequence-number", Long(2)),
    ]


def dead_lettered_in(grant: Grant, source: str) -> IncomingMessage:
    grant.chunk.blob = grant.blob
    return dead_lettered(grant.chunk, grant.start, DeadLetter("why"), source)
