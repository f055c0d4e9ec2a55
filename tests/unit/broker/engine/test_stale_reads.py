"""Reads that are older, or younger, than what the machine knows."""

from __future__ import annotations

from tests.support.engine.driver import Driver, bodies
from twinbus.broker.engine.outcomes import ABANDON, COMPLETE, RELEASE


def test_a_read_that_is_older_than_a_settlement_brings_nothing_back() -> None:
    """M2 and M8: an acknowledged completion does not reappear."""
    # Given a message that is held, with no receiver and a sweep under way that saw it on disk
    driver = Driver()
    driver.sent("a", ttl_s=10)
    client = driver.client()
    (message,) = driver.receive()
    driver.queue.detach(client)
    driver.at(10)
    driver.queue.handle_timer(driver.now)
    (sweep,) = driver.begin_read()

    # When it is completed, and the completion stored, before the sweep is answered
    answer = driver.settle(message, COMPLETE)
    driver.commit()
    assert answer.is_stored
    sweep()
    driver.commit()

    # Then it stays gone, and is counted as gone once
    assert driver.queue.message_count == 0
    driver.client()
    assert driver.receive() == []


def test_a_read_that_is_younger_than_the_answer_of_a_commit_doubles_nothing() -> None:
    """M2: the disk has a message before the queue was told of it."""
    # Given a receiver that waits, and a message that is on disk but not yet told
    driver = Driver()
    driver.sent("a")
    client = driver.client(credit=1)
    assert bodies(driver.receive()) == ["a"]
    driver.queue.detach(client)
    driver.client()
    driver.send("b")
    tell = driver.begin_commit()

    # When a read sees it first
    first = driver.receive()
    tell()

    # Then it is handed out once
    assert bodies(first + driver.receive()) == ["b"]


def test_a_message_that_was_abandoned_before_its_commit_was_told_comes_back_once() -> None:
    """M2: received early, abandoned, and its receiver gone, all before the queue was told."""
    # Given two messages on disk that a read has seen before the queue was told of them
    driver = Driver()
    driver.sent("a")
    client = driver.client(credit=1)
    driver.send("b", "c")
    tell = driver.begin_commit()
    (a,) = driver.receive()
    client.credit = 1
    (b,) = driver.receive(client)
    assert (a.body, b.body) == ("a", "b")

    # When the second one is abandoned and its receiver leaves before the queue is told
    driver.settle(b, ABANDON)
    driver.queue.detach(client)
    tell()
    driver.commit()

    # Then it comes back, once
    driver.client()
    assert [(m.body, m.delivery_count) for m in driver.receive()] == [("b", 1), ("c", 0)]


def test_a_message_that_came_back_is_not_read_a_second_time() -> None:
    """M2: what is abandoned while nobody receives is handed out once."""
    # Given a message that was abandoned with nobody there to take it again
    driver = Driver()
    driver.sent("a", ttl_s=1_000)
    client = driver.client()
    (message,) = driver.receive()
    driver.queue.detach(client)
    driver.settle(message, ABANDON)
    driver.commit()

    # When receivers come
    driver.client()
    driver.client()

    # Then one of them gets it
    assert bodies(driver.receive()) == ["a"]
    assert driver.queue.locked_count == 1


def test_a_window_that_is_read_again_does_not_repeat_what_is_held() -> None:
    """M2: receivers come and go while others hold messages of the same chunk."""
    driver = Driver()
    driver.sent(*"abcd")
    first = driver.client(credit=2)
    held = driver.receive()
    driver.queue.detach(first)

    driver.client()

    assert bodies(driver.receive()) == ["c", "d"]
    driver.settle(held[0], RELEASE)
    assert bodies(driver.receive()) == ["a"]


def test_an_answer_that_comes_after_the_receiver_left_is_not_kept() -> None:
    # Given a read for a receiver that leaves before it is answered
    driver = Driver()
    driver.sent("a")
    client = driver.client()
    assert driver.pump() == []
    loaded = driver.begin_read()[-1]
    driver.queue.detach(client)

    # When the answer comes
    loaded()

    # Then nothing of it stays in memory, and the next receiver gets the message
    assert driver.queue.chunk_cache._chunks == {}
    driver.client()
    assert bodies(driver.receive()) == ["a"]
