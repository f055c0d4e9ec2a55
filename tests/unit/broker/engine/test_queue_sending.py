"""Sending: numbers, quota, batches, and what a full disk does."""

from __future__ import annotations

import pytest

from tests.support.engine.driver import FULL, Driver, bodies
from twinbus.broker.engine import write_batch
from twinbus.broker.engine.outcomes import COMPLETE, DeadLetter
from twinbus.broker.storage.interface import PutChunk


def test_a_sender_hears_of_its_messages_when_they_are_on_disk() -> None:
    """M8: no answer before the commit."""
    # Given a queue and a receiver that waits
    driver = Driver()
    driver.client()

    # When messages are sent
    answer = driver.send("a", "b")

    # Then neither sender nor receiver hears anything until they are on disk
    assert not answer.is_stored
    assert driver.receive() == []
    driver.commit()
    assert answer.seqs == [1, 2]
    assert bodies(driver.receive()) == ["a", "b"]


def test_numbers_go_up_without_a_gap_over_everything_that_is_sent() -> None:
    driver = Driver()

    first, second = driver.send("a", "b"), driver.send("c")
    later, mixed = driver.send("d", due_s=60), driver.send("e")
    driver.commit()

    # Scheduled messages have their numbers behind those that are visible at once.
    assert (first.seqs, second.seqs, mixed.seqs, later.seqs) == ([1, 2], [3], [4], [5])
    assert driver.queue.message_count == 4
    assert driver.queue.scheduled_count == 1


def test_a_refused_batch_leaves_no_gap() -> None:
    """M8: what was refused is not there, and its numbers are given out again."""
    # Given a disk that takes the first batch and is then full
    driver = Driver()
    driver.sent("a")
    refused, scheduled = driver.send("b", "c"), driver.send("d", due_s=60)
    driver.refuse()

    # Then the senders are told, and nothing of it remains
    assert refused.error is FULL and scheduled.error is FULL
    assert (driver.queue.message_count, driver.queue.scheduled_count) == (1, 0)

    # And the next message has the next number
    assert driver.sent("e") == [2]
    driver.client()
    assert bodies(driver.receive()) == ["a", "e"]


def test_the_bytes_of_a_refused_batch_are_free_again() -> None:
    driver = Driver()
    driver.sent("a")
    before = driver.queue.byte_count

    driver.send("b" * 1_000)
    driver.refuse()

    assert driver.queue.byte_count == before


def test_a_full_disk_does_not_stop_what_the_broker_itself_has_begun() -> None:
    """M8: a refused move to the dead-letter queue is neither lost nor doubled."""
    # Given a message whose receiver gives it up while the disk is full
    driver = Driver()
    driver.sent("a")
    driver.client()
    (message,) = driver.receive()
    answer = driver.settle(message, DeadLetter("bad", "really"))
    driver.read()
    driver.refuse()

    # Then the receiver is told that it failed
    assert answer.error is FULL

    # And when there is room again the message moves, once
    driver.commit()
    assert (driver.queue.message_count, driver.dead.message_count) == (0, 1)
    driver.client(queue=driver.dead)
    assert bodies(driver.receive(queue=driver.dead)) == ["a"]
    driver.restart()
    assert (driver.queue.message_count, driver.dead.message_count) == (0, 1)


def test_what_was_refused_twice_is_still_settled_once() -> None:
    driver = Driver()
    driver.sent("a", "b", "c")
    driver.client()
    first, second, _third = driver.receive()

    driver.settle(first, COMPLETE)
    driver.refuse()
    driver.settle(second, COMPLETE)
    driver.refuse()
    driver.commit()

    driver.restart()
    driver.client()
    assert bodies(driver.receive()) == ["c"]


def test_the_quota_counts_messages_dead_letters_and_schedules() -> None:
    """M3: MaxSizeInMegabytes."""
    # Given a queue of one megabyte with a bit more than half of it used
    driver = Driver(max_size_mb=1)
    body = "x" * 200_000
    driver.sent(body)
    driver.sent(body, due_s=3_600)
    driver.sent(body)

    # Then what does not fit is refused, wherever the used bytes are
    assert driver.queue.has_room_for(400_000)
    assert not driver.queue.has_room_for(450_000)
    driver.client(credit=1)
    driver.settle(driver.receive()[0], DeadLetter())
    driver.commit()
    assert not driver.queue.has_room_for(450_000)

    # And completing makes room
    driver.client(queue=driver.dead)
    driver.settle(driver.receive(queue=driver.dead)[0], COMPLETE, queue=driver.dead)
    driver.commit()
    assert driver.queue.has_room_for(450_000)


def test_a_long_batch_is_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given chunks of at most three messages and two hundred bytes
    monkeypatch.setattr(write_batch, "CHUNK_COUNT_MAX", 3)
    monkeypatch.setattr(write_batch, "CHUNK_BYTES_MAX", 200)
    driver = Driver()

    # When seven small messages and three larger ones are sent together
    answer = driver.send(*"abcdefg", "h" * 150, "i" * 150, "j" * 150)
    ops = driver.queue.close_batch(driver.now)

    # Then no chunk is larger than allowed, and the order is kept
    rows = [op.row for op in ops if isinstance(op, PutChunk)]
    assert [(row.first_seq, row.count) for row in rows] == [(1, 3), (4, 3), (7, 2), (9, 1), (10, 1)]
    driver.store.commit(ops)
    for ticket, seqs in driver.queue.committed():
        ticket.stored(seqs)
    assert answer.seqs == list(range(1, 11))


def test_a_deleted_queue_tells_everybody_who_waits() -> None:
    driver = Driver()
    sent, scheduled = driver.send("a"), driver.send("b", due_s=60)

    waiting = driver.queue.discard()

    assert waiting == [sent, scheduled]
    assert not driver.queue.is_dirty
