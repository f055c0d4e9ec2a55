"""Time to live and schedules, with nobody around or with somebody in the way."""

from __future__ import annotations

import pytest

from tests.support.engine.driver import Answer, Driver, bodies
from twinbus.broker.engine.outcomes import ABANDON, COMPLETE, DEFER, RELEASE, SettlementOutcome
from twinbus.broker.engine.store_requests import size_of


def counts(driver: Driver) -> tuple[int, int]:
    """Messages in the queue and in its dead-letter queue."""
    return driver.queue.message_count, driver.dead.message_count


@pytest.mark.parametrize(("dead_letters", "expected"), [(False, (1, 0)), (True, (1, 1))])
def test_an_expired_message_goes_though_nobody_receives(
    dead_letters: bool, expected: tuple[int, int]
) -> None:
    """M3: time to live, with and without dead-lettering."""
    driver = Driver(dead_lettering_on_expiration=dead_letters)
    driver.sent("short", ttl_s=10)
    driver.sent("long", ttl_s=60)
    assert driver.queue.next_timer_s(driver.now) == driver.now.monotonic_s + 10

    driver.at(9.999)
    driver.wake()
    assert counts(driver) == (2, 0)
    driver.at(10)
    driver.wake()

    assert counts(driver) == expected
    driver.restart()
    assert counts(driver) == expected


def test_an_expired_message_is_handed_to_nobody() -> None:
    """M3: also when the sweeper has not come by yet."""
    driver = Driver()
    driver.sent("short", ttl_s=10)
    driver.sent("for ever")
    driver.client()

    driver.at(10)

    assert bodies(driver.receive()) == ["for ever"]


def test_an_expired_message_says_so_in_the_dead_letter_queue() -> None:
    driver = Driver(dead_lettering_on_expiration=True)
    driver.sent("short", ttl_s=10)
    driver.at(10)
    driver.wake()

    driver.client(queue=driver.dead)
    (dead,) = driver.receive(queue=driver.dead)

    assert dead.message.application_properties is not None
    assert dead.message.application_properties["DeadLetterReason"] == "TTLExpiredException"


def test_a_second_message_expires_after_the_first_was_completed() -> None:
    """M3: a look that finds nothing is not the last one."""
    # Given two chunks with different expiries, of which the earlier one is completed
    driver = Driver()
    driver.sent("a", ttl_s=10)
    driver.sent("b", ttl_s=20)
    driver.client(credit=1)
    driver.settle(driver.receive()[0], COMPLETE)
    driver.commit()

    # When both times pass with nothing else happening
    driver.at(10)
    driver.wake()
    driver.at(20)
    driver.wake()

    # Then the other one has gone too
    assert counts(driver) == (0, 0)


def test_a_locked_message_may_be_completed_after_it_expired() -> None:
    """M3: the receiver has it; it is too late to take it away."""
    driver = Driver(lock_duration_ms=30_000)
    driver.sent("a", ttl_s=10)
    driver.client()
    (message,) = driver.receive()
    driver.at(15)
    driver.wake()
    assert counts(driver) == (1, 0)

    answer = driver.settle(message, COMPLETE)
    driver.commit()

    assert answer.is_stored
    assert counts(driver) == (0, 0)


@pytest.mark.parametrize("outcome", [ABANDON, RELEASE, DEFER])
def test_a_message_that_expired_in_a_lock_goes_when_the_lock_does(
    outcome: SettlementOutcome,
) -> None:
    """M3: it comes back too late to be handed out again."""
    driver = Driver(lock_duration_ms=30_000)
    driver.sent("a", ttl_s=10)
    client = driver.client()
    (message,) = driver.receive()
    driver.at(15)
    driver.wake()

    driver.settle(message, outcome)
    driver.queue.detach(client)
    driver.wake()

    assert counts(driver) == (0, 0)


def test_a_message_that_expired_in_a_lock_stays_expired_after_a_restart() -> None:
    """M3: the restart voids the lock and not the expiry."""
    driver = Driver(lock_duration_ms=30_000)
    driver.sent("a", "b", ttl_s=10)
    driver.client(credit=1)
    driver.receive()
    driver.at(15)
    driver.wake()
    assert counts(driver) == (1, 0)

    driver.restart()

    driver.client()
    assert driver.receive() == []
    driver.at(60)
    driver.wake()
    assert counts(driver) == (0, 0)


def test_a_deferred_message_expires_too() -> None:
    driver = Driver()
    driver.sent("a", ttl_s=10)
    driver.client()
    (message,) = driver.receive()
    driver.settle(message, DEFER)
    driver.commit()

    driver.at(10)

    assert driver.take(message.seq) is None
    driver.wake()
    assert (counts(driver), driver.queue.deferred_count) == ((0, 0), 0)


# -- schedules --------------------------------------------------------------------------------


def test_a_scheduled_message_appears_when_it_is_due() -> None:
    """M3: scheduled messages; it is enqueued then, behind what came before."""
    driver = Driver()
    assert driver.sent("later", due_s=60) == [1]
    driver.sent("now")
    driver.client(deletes=True)
    assert bodies(driver.receive()) == ["now"]

    driver.at(59.999)
    driver.wake()
    assert driver.queue.scheduled_count == 1
    driver.at(60)
    driver.wake()

    (message,) = driver.receive()
    assert (message.body, message.seq) == ("later", 3)
    assert driver.queue.scheduled_count == 0


def test_a_message_that_is_due_before_it_is_stored_appears_all_the_same() -> None:
    """M3: the look for it comes after the commit, not before."""
    # Given a message that is due at once, and a timer that goes off before the commit
    driver = Driver()
    driver.send("a", due_s=0)
    driver.queue.handle_timer(driver.now)
    driver.read()

    # When it is stored and the clock goes on
    driver.commit()
    driver.wake()

    # Then it is there
    driver.client()
    assert bodies(driver.receive()) == ["a"]


def test_a_cancelled_message_never_appears_and_the_others_do() -> None:
    """M3: cancel."""
    # Given two scheduled messages, of which the earlier one is cancelled
    driver = Driver()
    (seq,) = driver.sent("a", due_s=10)
    driver.sent("b", due_s=20)
    answer = Answer()
    (row,) = driver.store.load_scheduled(driver.queue.queue_id, seq - 1, 1)
    driver.queue.cancel_scheduled([size_of(row)], answer)
    driver.commit()
    assert answer.is_stored
    assert driver.queue.scheduled_count == 1

    # When both times pass
    for seconds in (10, 20):
        driver.at(seconds)
        driver.wake()

    # Then only the other one appears
    driver.client()
    assert bodies(driver.receive()) == ["b"]


def test_a_scheduled_message_appears_once_although_two_looks_see_it() -> None:
    """M3 and M8: a look that began before the commit is answered after it."""
    # Given a due message, and two looks for it that both saw it on disk
    driver = Driver()
    driver.sent("a", due_s=10)
    driver.at(10)
    driver.queue.handle_timer(driver.now)
    (first,) = driver.begin_read()
    driver.queue.times_found(None, driver.now.wall_ms)
    driver.queue.handle_timer(driver.now)
    (second,) = driver.begin_read()

    # When the first is answered and its change stored before the second is answered
    first()
    driver.commit()
    second()
    driver.commit()

    # Then the message is there once
    assert (driver.queue.message_count, driver.queue.scheduled_count) == (1, 0)


def test_the_time_to_live_of_a_scheduled_message_begins_when_it_is_due() -> None:
    driver = Driver()
    driver.sent("a", ttl_s=10, due_s=60)

    driver.at(69)
    driver.wake()
    assert counts(driver) == (1, 0)
    driver.at(70)
    driver.wake()

    assert counts(driver) == (0, 0)


def test_schedules_and_expiries_are_found_again_after_a_restart() -> None:
    """M3 and M8: nobody has to touch the queue for it."""
    driver = Driver()
    driver.sent("gone", ttl_s=30)
    driver.sent("there", due_s=60)

    driver.restart()
    assert driver.queue.next_timer_s(driver.now) == driver.now.monotonic_s + 30
    driver.at(60)
    driver.wake()

    driver.client()
    assert bodies(driver.receive()) == ["there"]


def test_thousands_of_locks_run_out_a_few_at_a_time() -> None:
    """M13: the timer comes back at once for the rest; nobody settles with what has run out."""
    driver = Driver(lock_duration_ms=10_000)
    for number in range(3_000):
        driver.send(f"{number}")
    driver.commit()
    received = []
    for _ in range(3):
        driver.client(credit=1_000)
    while more := driver.receive():
        received += more
    assert driver.queue.locked_count == 3_000

    driver.at(10)
    driver.queue.handle_timer(driver.now)
    left = driver.queue.locked_count
    assert 1_000 < left < 3_000
    assert driver.queue.next_timer_s(driver.now) == driver.now.monotonic_s

    last = received[-1]
    assert last.run is not None
    assert driver.queue.settle(last.run, last.mask, COMPLETE, driver.now, None) == 0
    while driver.queue.locked_count:
        driver.queue.handle_timer(driver.now)
        driver.commit()
    assert driver.queue.next_timer_s(driver.now) is None
