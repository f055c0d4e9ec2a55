"""The health of one entity: what turns sends away, and what brings them home."""

from __future__ import annotations

import pytest

from twinbus.failover.events import (
    Diverted,
    EntityHeld,
    PingFailed,
    PingPrimary,
    PingRefused,
    PingSent,
    Restored,
    RestoreDelayed,
    Suspected,
    SuspicionCleared,
)
from twinbus.failover.state_machine import (
    TRANSITIONS,
    EntityFailover,
    FailoverPolicy,
    Health,
    Signal,
)


def entity(interval_s: float = 10, ping_interval_s: float = 60) -> EntityFailover:
    policy = FailoverPolicy(failover_interval_s=interval_s, ping_interval_s=ping_interval_s)
    return EntityFailover("orders", policy)


def diverted(at_s: float = 100, ping_interval_s: float = 60) -> EntityFailover:
    """An entity whose sends went away at that moment, and whose first ping is under way."""
    failover = entity(interval_s=0, ping_interval_s=ping_interval_s)
    failover.send_failed(at_s, "refused")
    failover.handle_timer(at_s)
    return failover


@pytest.mark.parametrize(("interval_s", "next_s"), [(5, 110), (15, 115), (600, 700)])
def test_a_new_ping_interval_counts_from_the_last_ping(interval_s: float, next_s: float) -> None:
    """P11: one that would have been due before now is due now."""
    failover = diverted(at_s=100)
    failover.ping_answered(failover.epoch, 101, "refused")
    assert failover.next_timer() == 160
    failover.set_ping_interval(interval_s, 110)
    assert failover.next_timer() == next_s


def test_a_ping_that_is_due_stays_due_with_a_longer_interval() -> None:
    """P11: the first ping of a diversion waits for no interval."""
    failover = entity(interval_s=0)
    failover.send_failed(100, "refused")
    failover.set_ping_interval(600, 100)
    assert failover.next_timer() == 100


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == set(Health)
    assert all(set(row) == set(Signal) for row in TRANSITIONS.values())


def test_an_entity_is_diverted_when_sends_fail_for_the_whole_interval() -> None:
    """P6: the timer runs from the first failure."""
    # Given an entity whose sends began to fail at 100 s
    failover = entity(interval_s=10)
    assert failover.send_failed(100, "refused") == [Suspected("orders", 100, "refused")]
    assert failover.next_timer() == 110

    # When the failover interval passes without a success
    effects = failover.handle_timer(110)

    # Then sends are diverted and the primary is pinged at once
    assert effects == [
        Diverted("orders", 110, "refused"),
        PingSent("orders", 110),
        PingPrimary("orders", 1),
    ]
    assert failover.is_diverted


def test_more_failures_do_not_restart_the_timer() -> None:
    """P6: from the first failure, not from the last."""
    failover = entity(interval_s=10)
    failover.send_failed(100, "refused")
    assert failover.send_failed(109, "refused") == []
    assert failover.next_timer() == 110


def test_nothing_is_diverted_before_the_interval_has_passed() -> None:
    """P6: a timer that rings early changes nothing."""
    failover = entity(interval_s=10)
    failover.send_failed(100, "refused")
    assert failover.handle_timer(109.9) == []
    assert failover.health is Health.SUSPECT


def test_any_success_cancels_the_timer() -> None:
    """P6: a success by any sender of the factory."""
    failover = entity(interval_s=10)
    failover.send_failed(100, "refused")
    assert failover.send_succeeded(105) == [SuspicionCleared("orders", 105, "a send succeeded")]
    assert failover.next_timer() is None
    assert failover.handle_timer(110) == []

    # And the next failure begins a new interval.
    failover.send_failed(200, "refused")
    assert failover.next_timer() == 210


def test_with_interval_zero_the_first_failure_diverts() -> None:
    """P6: failover interval 0."""
    failover = entity(interval_s=0)
    assert failover.send_failed(100, "refused") == [
        Suspected("orders", 100, "refused"),
        Diverted("orders", 100, "refused"),
    ]


def test_a_late_success_of_an_old_send_does_not_restore() -> None:
    """P11: only a ping does."""
    failover = diverted()
    assert failover.send_succeeded(101) == []
    assert failover.is_diverted


def test_a_good_ping_restores_and_pings_stop() -> None:
    """P11: the next send of every client goes to the primary."""
    failover = diverted(at_s=100)
    assert failover.ping_answered(1, 101, None) == [Restored("orders", 101, "a ping succeeded")]
    assert not failover.is_diverted
    assert failover.next_timer() is None


def test_a_failed_ping_is_told_and_repeated_after_an_interval() -> None:
    """P11: then every ping interval."""
    failover = diverted(at_s=100, ping_interval_s=60)
    assert failover.ping_answered(1, 105, "refused") == [PingFailed("orders", 105, "refused")]
    assert failover.next_timer() == 160
    assert failover.handle_timer(160) == [PingSent("orders", 160), PingPrimary("orders", 1)]


def test_at_most_one_ping_is_pending() -> None:
    """P11: a ping without an answer holds back the next one."""
    failover = diverted(at_s=100, ping_interval_s=1)
    assert failover.next_timer() is None
    assert failover.handle_timer(200) == []


def test_a_ping_of_an_earlier_diversion_means_nothing() -> None:
    """P11: its answer says how the primary was, not how it is."""
    # Given an entity that was restored by hand and diverted again while a ping was under way
    failover = diverted(at_s=100)
    failover.mark_healthy(101)
    failover.send_failed(102, "refused")

    # When the first ping is answered
    # Then nothing changes
    assert failover.ping_answered(1, 170, None) == []
    assert failover.is_diverted
    assert failover.epoch == 2


def test_at_most_one_restore_in_a_ping_interval() -> None:
    """P11: the flap limit."""
    # Given an entity that was restored at 101 s and is diverted again at 110 s
    failover = diverted(at_s=100, ping_interval_s=60)
    failover.ping_answered(1, 101, None)
    failover.send_failed(110, "refused")
    failover.handle_timer(110)

    # When the first ping succeeds
    # Then it stays away until an interval has passed since the restore
    assert failover.ping_answered(2, 111, None) == [RestoreDelayed("orders", 111, 161)]
    assert failover.is_diverted
    due_s = failover.next_timer()
    assert due_s is not None and due_s >= 161

    # And the next ping brings it home
    failover.handle_timer(due_s)
    assert failover.ping_answered(2, due_s + 1, None)
    assert not failover.is_diverted


def test_a_forced_failover_waits_an_interval_before_it_pings() -> None:
    """P16: a healthy primary would undo the command at once."""
    failover = entity(ping_interval_s=60)
    assert failover.force(100) == [Diverted("orders", 100, "forced")]
    assert failover.next_timer() == 160


def test_an_entity_can_begin_diverted_and_asks_at_once() -> None:
    """P17: the primary was out of reach before the first send."""
    failover = entity()
    assert failover.start_diverted(5, "refused") == [Diverted("orders", 5, "refused")]
    assert failover.next_timer() == 5


def test_an_entity_that_is_marked_healthy_is_home() -> None:
    """P16: whatever it was before."""
    failover = diverted(at_s=100)
    assert failover.mark_healthy(105) == [Restored("orders", 105, "marked healthy")]
    assert not failover.is_diverted


def test_a_held_entity_stays_where_it_is() -> None:
    """P16: neither failures nor pings move it."""
    home = entity(interval_s=0)
    assert home.hold(100) == [EntityHeld("orders", 100, False, "held")]
    assert home.send_failed(101, "refused") == []
    assert home.health is Health.HELD_ON_PRIMARY

    away = diverted(at_s=100)
    assert away.hold(101) == [EntityHeld("orders", 101, True, "held")]
    assert away.ping_answered(1, 102, None) == []
    assert away.next_timer() is None
    assert away.is_diverted


@pytest.mark.parametrize("is_away", [False, True])
def test_a_hold_ends_by_a_command_only(is_away: bool) -> None:
    """P16: force_failover and mark_path_healthy."""
    failover = diverted() if is_away else entity()
    failover.hold(101)
    assert failover.force(102) == [Diverted("orders", 102, "forced")]
    failover.hold(103)
    assert failover.mark_healthy(104) == [Restored("orders", 104, "marked healthy")]
    assert failover.health is Health.HEALTHY


def test_a_success_of_a_healthy_entity_makes_nothing() -> None:
    """P0: while the primary is healthy nothing changes."""
    failover = entity()
    assert failover.send_succeeded(1) == []
    assert failover.since_s == 0.0


def test_a_machine_that_slept_diverts_and_pings_when_it_wakes() -> None:
    """P6: what was due meanwhile happens at once, and only once."""
    failover = entity(interval_s=10)
    failover.send_failed(100, "refused")
    effects = failover.handle_timer(4_000)
    assert [type(effect) for effect in effects] == [Diverted, PingSent, PingPrimary]
    assert failover.handle_timer(4_001) == []


def test_a_failure_after_the_interval_diverts_also_before_the_timer_had_its_turn() -> None:
    """P6, P10: a loop that was busy, or a machine that slept, makes no difference."""
    failover = EntityFailover("orders", FailoverPolicy(failover_interval_s=10, ping_interval_s=60))
    failover.send_failed(100, "refused")
    failover.send_failed(109.9, "refused")
    assert failover.health is Health.SUSPECT
    assert failover.send_failed(110, "refused") == [Diverted("orders", 110, "refused")]


def test_a_ping_that_says_not_found_is_reported_once_for_each_diversion() -> None:
    """P23: sends to an entity that is not there must not be accepted in silence."""
    # Given a diverted entity whose ping reports that it does not exist
    failover = diverted(at_s=100)
    assert failover.ping_answered(1, 101, "not there", refusal="not found") == [
        PingFailed("orders", 101, "not there"),
        PingRefused("orders", 101, "not found", "not there"),
    ]
    # Then the pings after it add nothing, unless they are refused for another cause
    failover.handle_timer(160)
    assert failover.ping_answered(1, 161, "not there", refusal="not found") == [
        PingFailed("orders", 161, "not there")
    ]
    failover.handle_timer(220)
    assert failover.ping_answered(1, 221, "no claim", refusal="unauthorized") == [
        PingFailed("orders", 221, "no claim"),
        PingRefused("orders", 221, "unauthorized", "no claim"),
    ]
    # And the next diversion reports it again
    failover.mark_healthy(230)
    failover.send_failed(240, "refused")
    failover.handle_timer(240)
    assert PingRefused("orders", 241, "not found", "not there") in failover.ping_answered(
        2, 241, "not there", refusal="not found"
    )


def test_a_refusal_that_lasts_is_reported_again_every_hour() -> None:
    """P23: sends are accepted all the time, so nothing else would remind an operator."""
    failover = diverted(at_s=0, ping_interval_s=60)
    reported_s: list[float] = []
    for now_s in range(1, 2 * 3_600 + 60, 60):
        events = failover.ping_answered(1, now_s, "no key", refusal="unauthorized")
        reported_s += [each.at_s for each in events if isinstance(each, PingRefused)]
        failover.handle_timer(now_s + 59)
    assert reported_s == [1, 3_601, 7_201]


def test_a_refusal_says_what_to_do() -> None:
    """P23: the way out of ``unauthorized`` is a key, the way out of ``not found`` an entity."""
    assert "a key with the Send claim" in PingRefused("orders", 1, "unauthorized", "no").advice
    assert "Create the entity" in PingRefused("orders", 1, "not found", "no").advice


def test_the_error_of_the_last_ping_is_kept_until_one_succeeds() -> None:
    """P23: it shows in health()."""
    failover = diverted(at_s=100)
    failover.ping_answered(1, 101, "refused")
    assert failover.last_ping_error == "refused"
    failover.handle_timer(160)
    failover.ping_answered(1, 161, None)
    assert failover.last_ping_error == ""


def test_a_diversion_begins_without_the_ping_error_of_an_earlier_one() -> None:
    failover = diverted(at_s=100)
    failover.ping_answered(1, 101, "refused")
    failover.mark_healthy(102)
    assert failover.last_ping_error == ""
