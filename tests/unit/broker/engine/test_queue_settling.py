"""Settling: every outcome, and what a lock is worth."""

from __future__ import annotations

import pytest

from tests.support.engine.driver import Driver, bodies
from twinbus.broker.engine import queue as queue_module
from twinbus.broker.engine.outcomes import (
    ABANDON,
    COMPLETE,
    DEFER,
    RELEASE,
    DeadLetter,
    SettlementOutcome,
)

LOCK_S = 30.0


@pytest.fixture
def driver() -> Driver:
    """A queue with three messages and a lock of 30 s."""
    driver = Driver(lock_duration_ms=30_000, max_delivery_count=3)
    driver.sent("a", "b", "c")
    return driver


def counts(driver: Driver) -> tuple[int, int, int]:
    """Active, deferred, dead."""
    queue = driver.queue
    return queue.active_count, queue.deferred_count, driver.dead.message_count


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (COMPLETE, (2, 0, 0)),
        (ABANDON, (3, 0, 0)),
        (DEFER, (2, 1, 0)),
        (DeadLetter("bad", "why"), (2, 0, 1)),
    ],
    ids=["complete", "abandon", "defer", "dead-letter"],
)
def test_an_outcome_counts_once_it_is_on_disk(
    driver: Driver, outcome: SettlementOutcome, expected: tuple[int, int, int]
) -> None:
    """M2 and M8: complete, abandon, defer and dead-letter are durable when answered."""
    driver.client(credit=1)
    (message,) = driver.receive()

    answer = driver.settle(message, outcome)
    assert not answer.is_stored
    driver.commit()

    assert answer.is_stored
    assert counts(driver) == expected
    driver.restart()
    assert counts(driver) == expected


def test_a_released_message_comes_back_as_if_nothing_had_happened(driver: Driver) -> None:
    client = driver.client(credit=1)
    (message,) = driver.receive()

    driver.settle(message, RELEASE)

    client.credit = 1
    (again,) = driver.receive(client)
    assert (again.body, again.delivery_count) == ("a", 0)


def test_a_lock_settles_once(driver: Driver) -> None:
    """M2: a lock token settles at most once."""
    driver.client(credit=1)
    (message,) = driver.receive()

    driver.settle(message, COMPLETE)
    second = driver.settle(message, ABANDON)
    driver.commit()

    assert isinstance(second.error, KeyError)
    assert counts(driver) == (2, 0, 0)


def test_a_late_settlement_does_not_touch_a_newer_delivery(driver: Driver) -> None:
    """M2: the lock ran out, somebody else has the message now."""
    # Given a message whose lock ran out and that was handed to another receiver
    driver.client(credit=1)
    (old,) = driver.receive()
    driver.at(LOCK_S)
    driver.wake()
    driver.client(credit=1)
    (new,) = driver.receive()
    assert (new.body, new.delivery_count) == ("a", 1)

    # When the first one completes it after all
    late = driver.settle(old, COMPLETE)

    # Then that is refused, and the second one's settlement holds
    assert isinstance(late.error, KeyError)
    answer = driver.settle(new, COMPLETE)
    driver.commit()
    assert answer.is_stored
    assert counts(driver) == (2, 0, 0)


@pytest.mark.parametrize(("seconds", "held"), [(29.999, True), (30.0, False)])
def test_a_lock_ends_to_the_moment(driver: Driver, seconds: float, held: bool) -> None:
    """M2: also when no timer has noticed yet."""
    driver.client(credit=1)
    (message,) = driver.receive()

    driver.at(seconds)

    assert (driver.settle(message, COMPLETE).error is None) is held


def test_a_jump_of_the_wall_clock_ends_no_lock(driver: Driver) -> None:
    """M2: locks run on the monotonic clock."""
    driver.client(credit=1)
    (message,) = driver.receive()

    driver.now = driver.now._replace(wall_ms=driver.now.wall_ms + 3_600_000)
    driver.wake()

    assert driver.settle(message, COMPLETE).error is None


def test_a_lock_that_ran_out_is_a_failed_attempt(driver: Driver) -> None:
    """M2: delivery count."""
    client = driver.client(credit=3)
    assert len(driver.receive()) == 3

    driver.at(LOCK_S)
    assert driver.queue.next_timer_s(driver.now) == driver.now.monotonic_s
    driver.wake()

    client.credit = 10
    assert [(m.body, m.delivery_count) for m in driver.receive(client)] == [
        ("a", 1),
        ("b", 1),
        ("c", 1),
    ]


def test_the_last_attempt_leads_to_the_dead_letter_queue(driver: Driver) -> None:
    """M2: MaxDeliveryCount, whether the receiver abandons or its lock runs out."""
    client = driver.client(credit=1)
    for attempt in range(3):
        client.credit = 1
        (message,) = driver.receive(client)
        assert message.delivery_count == attempt
        if attempt == 1:
            driver.at(LOCK_S)
            driver.wake()
        else:
            driver.settle(message, ABANDON)
            driver.read()
            driver.commit()

    assert counts(driver) == (2, 0, 1)
    driver.client(queue=driver.dead)
    (dead,) = driver.receive(queue=driver.dead)
    assert dead.message.application_properties is not None
    assert dead.message.application_properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"


def test_a_dead_letter_says_why(driver: Driver) -> None:
    driver.client(credit=1)
    (message,) = driver.receive()
    driver.settle(message, DeadLetter("too blue", "it should be green"))
    driver.commit()

    driver.client(queue=driver.dead)
    (dead,) = driver.receive(queue=driver.dead)

    assert dead.message.application_properties == {
        "DeadLetterReason": "too blue",
        "DeadLetterErrorDescription": "it should be green",
    }
    assert (dead.body, dead.seq, dead.delivery_count) == ("a", 1, 0)


def test_a_message_in_the_dead_letter_queue_is_never_given_up(driver: Driver) -> None:
    driver.client(credit=1)
    driver.settle(driver.receive()[0], DeadLetter())
    driver.commit()

    client = driver.client(queue=driver.dead, credit=0)
    for attempt in range(5):
        client.credit = 1
        (dead,) = driver.receive(client, driver.dead)
        assert dead.delivery_count == attempt
        driver.settle(dead, ABANDON, queue=driver.dead)
        driver.commit()


def test_a_message_waits_for_its_bytes_before_it_moves(driver: Driver) -> None:
    """M8: a dead-letter settlement is answered when the message is in the other queue."""
    # Given a message whose chunk has given its bytes back
    client = driver.client(credit=3)
    a, b, _c = driver.receive()
    driver.queue.detach(client)

    # When it is dead-lettered
    answer = driver.settle(a, DeadLetter())
    driver.commit()

    # Then nobody is told and nothing has moved until the bytes are there
    assert not answer.is_stored
    assert driver.dead.message_count == 0
    driver.read()
    driver.commit()
    assert answer.is_stored
    assert counts(driver) == (2, 0, 1)
    assert b.run is not None


# -- deferred ---------------------------------------------------------------------------------


def test_a_deferred_message_is_received_by_its_number_only(driver: Driver) -> None:
    """M2: defer."""
    client = driver.client(credit=1)
    (message,) = driver.receive()
    driver.settle(message, DEFER)
    driver.commit()

    client.credit = 10
    assert bodies(driver.receive(client)) == ["b", "c"]
    taken = driver.take(message.seq)
    assert taken is not None and taken.body == "a"
    # While it is locked it cannot be taken again, and nothing else can be taken at all.
    assert driver.take(message.seq) is None
    assert driver.take(2) is None


def test_a_deferred_message_stays_deferred_until_it_is_settled(driver: Driver) -> None:
    """M2: abandoning or releasing it does not put it back into the queue."""
    driver.client(credit=1)
    (message,) = driver.receive()
    driver.settle(message, DEFER)
    driver.commit()

    for outcome in (RELEASE, ABANDON):
        taken = driver.take(message.seq)
        assert taken is not None
        driver.settle(taken, outcome)
        driver.commit()
        assert counts(driver) == (2, 1, 0)

    again = driver.take(message.seq)
    assert again is not None and again.delivery_count == 1
    driver.settle(again, COMPLETE)
    driver.commit()
    assert counts(driver) == (2, 0, 0)
    assert driver.take(message.seq) is None


def test_a_deferred_message_survives_a_restart(driver: Driver) -> None:
    """M2 and M8: deferred, counted, and still out of the way."""
    driver.client(credit=1)
    (message,) = driver.receive()
    driver.settle(message, DEFER)
    driver.commit()

    driver.restart()

    driver.client()
    assert bodies(driver.receive()) == ["b", "c"]
    taken = driver.take(message.seq)
    assert taken is not None and taken.body == "a"


def test_taking_a_deferred_message_skips_nobody(driver: Driver) -> None:
    """M2: after a restart the messages in front of it are still handed out."""
    # Given a queue in which the last message is deferred, loaded again after a restart
    driver.client()
    c = driver.receive()[-1]
    driver.settle(c, DEFER)
    driver.commit()
    driver.restart()
    client = driver.client(credit=1)
    assert bodies(driver.receive()) == ["a"]

    # When it is taken while the second one waits
    assert driver.take(c.seq) is not None

    # Then the second one is next
    client.credit = 1
    assert bodies(driver.receive(client)) == ["b"]


def test_a_message_on_its_way_to_the_dead_letter_queue_cannot_be_taken(driver: Driver) -> None:
    """M2: a settled message belongs to nobody, also while it waits for its bytes."""
    # Given a deferred message that was taken and dead-lettered, with no receiver around
    client = driver.client(credit=1)
    (message,) = driver.receive()
    driver.settle(message, DEFER)
    driver.commit()
    driver.queue.detach(client)
    taken = driver.take(message.seq)
    assert taken is not None
    driver.settle(taken, DeadLetter())

    # Then it cannot be taken again
    assert driver.take(message.seq) is None
    driver.read()
    driver.commit()
    assert counts(driver) == (2, 0, 1)


# -- renewals ---------------------------------------------------------------------------------


def test_a_renewed_lock_begins_anew(driver: Driver) -> None:
    """M2: renew lock."""
    driver.client(credit=2)
    a, b = driver.receive()
    now = driver.at(20)

    assert driver.queue.renew(a.token, now) == now.wall_ms + 30_000
    driver.at(40)

    assert driver.settle(a, COMPLETE).error is None
    assert driver.settle(b, COMPLETE).error is not None


def test_a_lost_lock_cannot_be_renewed(driver: Driver) -> None:
    """M2: not after it ran out, and not after it was used."""
    driver.client(credit=2)
    a, b = driver.receive()
    driver.settle(a, COMPLETE)

    assert driver.queue.renew(a.token, driver.now) is None
    assert driver.queue.renew(b.token, driver.at(LOCK_S)) is None


def test_a_lock_cannot_be_renewed_for_ever(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """M2: a stuck receiver gives its message up some day."""
    monkeypatch.setattr(queue_module, "RENEWALS_MAX", 3)
    driver.client(credit=1)
    (message,) = driver.receive()

    renewals = [driver.queue.renew(message.token, driver.now) for _ in range(4)]

    assert [until_ms is not None for until_ms in renewals] == [True, True, True, False]


def test_a_restart_voids_locks_and_keeps_the_rest(driver: Driver) -> None:
    """M2 and M8: same messages, same numbers, same counts."""
    driver.client(credit=2)
    a, b = driver.receive()
    driver.settle(b, ABANDON)
    driver.commit()

    driver.restart()

    driver.client()
    assert [(m.body, m.seq, m.delivery_count) for m in driver.receive()] == [
        ("a", 1, 0),
        ("b", 2, 1),
        ("c", 3, 0),
    ]
    assert driver.queue.renew(a.token, driver.now) is None
    assert driver.sent("d") == [4]
