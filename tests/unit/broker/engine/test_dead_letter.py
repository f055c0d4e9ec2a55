"""A message on its way to the dead letters: what it remembers of its earlier ways."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine.driver import Answer, Driver, bodies
from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Long, Symbol
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.message import Message
from twinbus.broker.engine.consumers import DeliveryBatch
from twinbus.broker.engine.forwarding import forwarded
from twinbus.broker.engine.outcomes import DeadLetter, dead_lettered
from twinbus.broker.engine.stored_message import (
    IncomingMessage,
    MessageOrigin,
    Record,
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


def handed_out(driver: Driver, message: IncomingMessage) -> DeliveryBatch:
    """The message as the newest in a queue, in somebody's hands."""
    driver.queue.enqueue([message], None)
    driver.commit()
    driver.client()
    driver.read()
    while not (grants := driver.queue.deliver(driver.now)):
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

    # Then the audit sink gets where it was before
    assert (dead.trail, moved.trail, again.trail) == (
        MessageOrigin("first", 2),
        MessageOrigin("orders", 1),
        MessageOrigin("third", 1),
    )

    # Then it says so, and where it came from in the beginning
    assert sorted(annotations(again)) == [
        ("x-mine", "kept"),
        ("x-opt-deadletter-source", "third"),
        ("x-opt-enqueue-sequence-number", Long(2)),
    ]


def dead_lettered_in(grant: DeliveryBatch, source: str) -> IncomingMessage:
    grant.chunk.blob = grant.blob
    return dead_lettered(grant.chunk, grant.start, DeadLetter("why"), source, grant.blob)


def test_thousands_that_are_dead_lettered_at_once_take_their_turns() -> None:
    """M2, M13: one frame may name them all; nobody gets one of them meanwhile."""
    driver = Driver()
    driver.sent(*(f"message {number}" for number in range(1_000)))
    consumer = driver.client(1_000)
    received = driver.receive(consumer)
    assert len(received) == 1_000
    runs = {each.run: each.run.unsettled for each in received if each.run is not None}
    answers = [Answer() for _ in runs]

    # When everything is dead-lettered
    for (run, mask), answer in zip(runs.items(), answers, strict=True):
        assert driver.queue.settle(run, mask, DeadLetter("bad"), driver.now, answer) == mask

    # Then a few are moved at once, and the others wait for their turns
    assert driver.queue.wants_turn
    assert driver.dead.byte_count > 0 and len(driver.dead.batch.arrivals) == 2
    turn_count = 0
    while driver.queue.wants_turn:
        assert driver.queue.message_count >= 1
        assert driver.pump() == []
        driver.queue.take_turn(driver.now)
        turn_count += 1
        # What has been moved can be written at any time; the others are told later
        if turn_count == 3:
            driver.begin_commit_of_now()()
            assert not answers[-1].is_stored
    assert turn_count >= (1_000 - 128) // 64
    driver.commit()
    assert all(answer.is_stored for answer in answers)
    assert (driver.queue.message_count, driver.queue.byte_count) == (0, 0)
    assert driver.dead.message_count == 1_000

    # And nothing is lost or doubled on disk
    dead = driver.receive(driver.client(1_000, queue=driver.dead), driver.dead)
    assert sorted(bodies(dead)) == sorted(f"message {number}" for number in range(1_000))


def test_what_waits_for_its_turn_is_refused_when_the_queue_is_deleted() -> None:
    """M5: whoever waits is told."""
    driver = Driver()
    driver.sent(*(f"message {number}" for number in range(500)))
    received = driver.receive(driver.client(1_000))
    for run in {each.run: None for each in received}:
        assert run is not None
        driver.queue.settle(run, run.unsettled, DeadLetter("bad"), driver.now, answer := Answer())
    driver.read()
    assert driver.queue.wants_turn
    assert answer in driver.queue.discard()


def test_a_crash_between_two_turns_loses_and_doubles_nothing() -> None:
    """M8: each message leaves its queue in the transaction in which it enters the other."""
    driver = Driver()
    driver.sent(*(f"message {number}" for number in range(500)))
    received = driver.receive(driver.client(1_000))
    for run in {each.run: None for each in received}:
        assert run is not None
        driver.queue.settle(run, run.unsettled, DeadLetter("bad"), driver.now, None)
    driver.read()
    driver.begin_commit_of_now()()
    driver.restart()
    left = driver.receive(driver.client(1_000))
    dead = driver.receive(driver.client(1_000, queue=driver.dead), driver.dead)
    assert len(dead) == 128
    everything = [f"message {number}" for number in range(500)]
    assert sorted(bodies(left) + bodies(dead)) == sorted(everything)


ODD_PROPERTIES: list[dict[str, Any]] = [
    {},
    {"a": 1},
    {"DeadLetterReason": "older", "a": 1},
    {"a": "DeadLetterReason"},
    {f"key {number}": "x" * 40 for number in range(60)},
]


@pytest.mark.parametrize("properties", ODD_PROPERTIES, ids=lambda each: f"{len(each)}-properties")
@pytest.mark.parametrize("outcome", [DeadLetter(), DeadLetter("why"), DeadLetter("é", "x" * 5_000)])
def test_texts_are_added_to_what_the_message_has(
    properties: dict[str, Any], outcome: DeadLetter
) -> None:
    """M2: the rest of the message is kept, in whatever way its properties are encoded."""
    for encoded in (properties or None, properties):
        bare = Message(application_properties=encoded, body=b"kept").encode()
        driver = Driver()
        grant = handed_out(driver, IncomingMessage(pack_record(Record(bare))))
        dead = dead_lettered(grant.chunk, grant.start, outcome, "orders", grant.blob)
        record = unpack_record(dead.record, 0, len(dead.record))
        message = Message.decode(record.bare)
        expected = dict(properties)
        if outcome.reason:
            expected["DeadLetterReason"] = outcome.reason
        if outcome.description:
            expected["DeadLetterErrorDescription"] = outcome.description[:4_096]
        assert (message.application_properties or {}) == expected
        assert message.body == b"kept"


def test_texts_that_make_much_of_little_are_written_in_portions() -> None:
    """M13: everybody waits for a commit, so it is never a large one."""
    driver = Driver()
    driver.sent(*(f"message {number}" for number in range(500)))
    received = driver.receive(driver.client(1_000))
    outcome = DeadLetter("x" * 4_096, "\U0001f600" * 4_096)
    for run in {each.run: None for each in received}:
        assert run is not None
        driver.queue.settle(run, run.unsettled, outcome, driver.now, None)
    driver.read()
    sizes, before = [], 0
    while driver.queue.message_count:
        driver.commit()
        sizes.append(driver.dead.byte_count - before)
        before = driver.dead.byte_count
    assert driver.dead.message_count == 500
    assert max(sizes) < 2 << 20 < sum(sizes)
