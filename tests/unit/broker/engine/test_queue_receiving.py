"""Receiving: order, turns, limits, and how much of a long queue is in memory."""

from __future__ import annotations

import pytest

from tests.support.engine.driver import Driver, bodies
from twinbus.broker.engine import delivery_stream
from twinbus.broker.engine import queue as queue_module
from twinbus.broker.engine.descriptions import EntityStatus
from twinbus.broker.engine.outcomes import ABANDON, COMPLETE, RELEASE
from twinbus.broker.engine.queue import Queue

KILOBYTE = "x" * 1_000


def bytes_in_memory(queue: Queue) -> int:
    """What the bodies take that the queue has at hand."""
    return sum(len(chunk.blob or b"") for chunk in queue.chunk_cache._chunks.values())


def test_messages_come_oldest_first() -> None:
    """M1: store and forward, in the order of their numbers."""
    driver = Driver()
    for body in "abcdef":
        driver.sent(body)

    driver.client()

    assert bodies(driver.receive()) == list("abcdef")


def test_nobody_gets_more_than_its_credit_or_than_it_may_hold() -> None:
    driver = Driver()
    driver.sent(*"abcdef")
    poor = driver.client(credit=1)
    narrow = driver.client(unsettled_max=2)

    received = driver.receive()

    assert len(received) == 3
    assert (poor.credit, poor.unsettled, narrow.unsettled) == (0, 1, 2)
    # And room comes back with a settlement.
    held = [message for message in received if message.run and message.run.consumer is narrow]
    driver.settle(held[0], COMPLETE)
    assert len(driver.receive()) == 1


def test_competing_receivers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """M1: receivers share a queue."""
    monkeypatch.setattr(queue_module, "GRANT_COUNT_MAX", 2)
    driver = Driver()
    driver.sent(*"abcdef")
    first, second = driver.client(), driver.client()

    grants = driver.receive()

    owners = [message.run.consumer for message in grants if message.run]
    assert owners == [first, first, second, second, first, first]


def test_a_paused_receiver_gets_nothing_until_it_is_woken() -> None:
    driver = Driver()
    driver.sent("a")
    client = driver.client()
    client.is_paused = True
    assert driver.receive() == []

    client.is_paused = False

    assert bodies(driver.receive(client)) == ["a"]


def test_receive_and_delete_removes_what_it_hands_out() -> None:
    """M2: receive-and-delete."""
    driver = Driver()
    driver.sent("a", "b")
    driver.client(credit=1, deletes=True)

    received = driver.receive()
    driver.commit()

    assert [(message.body, message.run) for message in received] == [("a", None)]
    driver.restart()
    assert driver.queue.message_count == 1


def test_a_queue_that_may_not_be_received_from_hands_out_nothing() -> None:
    driver = Driver(status=EntityStatus.RECEIVE_DISABLED)
    driver.sent("a")
    driver.client()

    assert driver.receive() == []


def test_what_comes_back_keeps_its_place() -> None:
    """M2: an abandoned message is older than those behind it."""
    # Given six messages of which the first three are held
    driver = Driver()
    driver.sent(*"abcdef")
    client = driver.client(credit=3)
    a, b, c = driver.receive()

    # When two of them come back, one at once and one with the next commit
    driver.settle(c, RELEASE)
    driver.settle(a, ABANDON)
    driver.commit()

    # Then they go out before the younger ones
    client.credit = 10
    assert bodies(driver.receive(client)) == ["a", "c", "d", "e", "f"]
    assert b.run is not None


def test_an_abandoned_message_waits_for_its_delivery_count_to_be_on_disk() -> None:
    """M2 and M8: a delivery count that was shown never decreases."""
    driver = Driver()
    driver.sent("a")
    driver.client()
    (message,) = driver.receive()

    driver.settle(message, ABANDON)

    assert driver.receive() == []
    driver.commit()
    (again,) = driver.receive()
    assert (again.body, again.delivery_count) == ("a", 1)
    driver.restart()
    driver.client()
    assert driver.receive()[0].delivery_count == 1


def test_memory_does_not_grow_with_the_queue() -> None:
    """A queue of ten megabytes is handed out through a window of about two."""
    # Given ten thousand messages of a kilobyte, sent while nobody receives
    driver = Driver()
    for _ in range(20):
        driver.sent(*[KILOBYTE] * 500)
    assert bytes_in_memory(driver.queue) == 0

    # When a receiver takes and completes them
    client = driver.client(credit=100)
    received, most = 0, 0
    while True:
        messages = driver.receive(client)
        if not messages:
            break
        for message in messages:
            driver.settle(message, COMPLETE)
        driver.commit()
        received += len(messages)
        most = max(most, bytes_in_memory(driver.queue))
        client.credit = 100

    # Then all of them came, and never more than two reads were in memory
    assert received == 10_000
    assert most <= 2 * delivery_stream.READ_AHEAD_BYTES + 256 * 1024
    assert len(driver.queue.chunk_cache._chunks) <= 1


def test_sends_to_a_slow_receiver_do_not_pile_up_in_memory() -> None:
    driver = Driver()
    driver.client(credit=1)
    for _ in range(20):
        driver.sent(*[KILOBYTE] * 500)
        driver.receive()

    assert bytes_in_memory(driver.queue) <= 2 * delivery_stream.READ_AHEAD_BYTES


def test_a_queue_without_receivers_holds_no_bodies() -> None:
    driver = Driver()
    driver.sent(*[KILOBYTE] * 500)
    client = driver.client(credit=1)
    (message,) = driver.receive()
    assert bytes_in_memory(driver.queue) > 0

    driver.settle(message, RELEASE)
    driver.queue.detach(client)

    assert bytes_in_memory(driver.queue) == 0
    driver.client(credit=1_000)
    assert len(driver.receive()) == 500


def test_bytes_that_were_read_for_a_receiver_go_with_it() -> None:
    # Given a message that came back and was read again for a receiver
    driver = Driver()
    driver.sent(KILOBYTE)
    client = driver.client(credit=1)
    (message,) = driver.receive()
    driver.settle(message, RELEASE)
    client.credit = 1
    driver.queue.credit_available(client)
    assert driver.pump() == []
    driver.read()
    assert bytes_in_memory(driver.queue) > 0

    # When the receiver leaves before it gets it
    driver.queue.detach(client)

    # Then its bytes are given back, and the next receiver gets it all the same
    assert bytes_in_memory(driver.queue) == 0
    driver.client()
    assert bodies(driver.receive()) == [KILOBYTE]


def test_a_drain_ends_when_nothing_more_is_being_read() -> None:
    """The queue says when everything that was at hand has been handed out."""
    # Given a message on disk and a receiver that wants what there is
    driver = Driver()
    driver.sent("a")
    driver.client()

    # When the queue is asked, it first has to read
    assert driver.pump() == []
    assert driver.queue.is_reading

    # Then the message is handed out, and the queue has nothing more
    for tell in driver.begin_read():
        tell()
    assert bodies(driver.pump()) == ["a"]
    assert not driver.queue.is_reading


def test_locks_survive_a_detach() -> None:
    """M2: message locks survive a detach, and the token still settles."""
    driver = Driver()
    driver.sent("a")
    client = driver.client()
    (message,) = driver.receive()

    driver.queue.detach(client)
    driver.client()

    assert driver.receive() == []
    answer = driver.settle(message, COMPLETE)
    driver.commit()
    assert answer.is_stored
