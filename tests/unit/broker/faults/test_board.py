"""The board: times, chance and counts, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from twinbus.broker.faults import Fault, FaultRegistry, Scope
from twinbus.broker.faults.registry import FAULTS_MAX, ActiveFault, FaultPhase
from twinbus.common.clock import AdjustableClock, Instant
from twinbus.errors import ConfigurationError


class Witness:
    """A stage that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.ticks = 0

    def changed(self, active: ActiveFault, before: FaultPhase, after: FaultPhase) -> None:
        self.told.append((str(before), str(after)))

    def tick(self, active: ActiveFault) -> None:
        self.ticks += 1


class Handle:
    def cancel(self) -> None:
        """It never fires anyway."""


class Timers:
    """An event loop's timers, which never fire by themselves."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any:
        self.delays_s.append(delay)
        return Handle()


class World:
    def __init__(self) -> None:
        self.clock = AdjustableClock(Instant(1000.0, 0), is_manual=True)
        self.stage = Witness()
        self.timers = Timers()
        self.board = FaultRegistry(self.clock, self.timers, Random(1), self.stage)
        self.clock.subscribe(self.board.run_due)


@pytest.fixture
def world() -> World:
    return World()


def test_a_board_is_calm_until_a_fault_begins_and_after_it_ended(world: World) -> None:
    """F1: a fault begins and ends by the clock of the namespace."""
    board = world.board
    assert board.has_no_faults
    fault_id = board.add(Fault("cannot-send", starts_after_s=10, lasts_s=30))
    assert board.has_no_faults and world.timers.delays_s[-1] == pytest.approx(10)

    world.clock.advance(10)
    assert not board.has_no_faults and world.timers.delays_s[-1] == pytest.approx(30)
    (shown,) = board.list()
    assert (shown["id"], shown["phase"]) == (fault_id, "active")
    assert shown["remaining_s"] == pytest.approx(30)

    world.clock.advance(30)
    assert board.has_no_faults and board.list() == []
    assert world.stage.told == [("waiting", "active"), ("active", "gone")]


def test_a_jump_over_a_whole_crash_goes_through_all_of_it(world: World) -> None:
    """F4: down, then slow, then well, also when the clock is moved past it."""
    world.board.add(Fault("crash-subsystem", Scope(subsystem="billing"), down_s=5, slow_s=60))
    assert world.board.list()[0]["phase"] == "down"
    world.clock.advance(5)
    assert world.board.list()[0]["phase"] == "slow"
    world.clock.advance(3600)
    assert world.stage.told == [("waiting", "down"), ("down", "slow"), ("slow", "gone")]


def test_clearing_ends_one_or_all(world: World) -> None:
    """F1: what is switched on can be switched off."""
    board = world.board
    first, second = board.add(Fault("throttle")), board.add(Fault("disk-full"))
    assert board.clear(first) == 1
    assert [each["id"] for each in board.list()] == [second]
    board.add(Fault("throttle"))
    assert board.clear() == 2
    assert board.has_no_faults
    with pytest.raises(ConfigurationError, match="not found"):
        board.clear(first)


def test_a_with_block_clears_what_it_added_even_when_its_time_was_over(world: World) -> None:
    with world.board.on("throttle", Scope(entity="orders")) as fault_id:
        assert world.board.get(fault_id) is not None
    assert world.board.has_no_faults
    with world.board.on(Fault("throttle", lasts_s=1)):
        world.clock.advance(2)
    assert world.board.has_no_faults


def test_names_are_unique_and_faults_are_few(world: World) -> None:
    world.board.add(Fault("throttle", id="fault-1"))
    assert world.board.add(Fault("throttle")) == "fault-2"
    with pytest.raises(ConfigurationError, match="'fault-1'"):
        world.board.add(Fault("throttle", id="fault-1"))
    for _ in range(FAULTS_MAX - 2):
        world.board.add(Fault("throttle"))
    with pytest.raises(ConfigurationError, match=f"{FAULTS_MAX} faults"):
        world.board.add(Fault("throttle"))


def test_the_same_seed_strikes_the_same_requests(world: World) -> None:
    """F1: a failure that was seen once can be seen again."""

    def strikes(seed: int) -> list[bool]:
        with world.board.on("throttle", probability=0.5, seed=seed):
            return [world.board.fires("throttle", "orders") is not None for _ in range(64)]

    assert strikes(7) == strikes(7) != strikes(8)
    assert 10 < sum(strikes(7)) < 54


def test_a_seed_that_nobody_gave_is_shown(world: World) -> None:
    """F1: chance that was drawn can be drawn again."""
    world.board.add(Fault("throttle", probability=0.5))
    assert isinstance(world.board.list()[0]["seed"], int)


def test_only_what_is_covered_is_struck_and_counted(world: World) -> None:
    """F1: per entity."""
    world.board.add(Fault("cannot-send", Scope(entity="orders")))
    assert world.board.fires("cannot-send", "orders") is not None
    assert world.board.fires("cannot-send", "bills") is None
    assert world.board.fires("cannot-receive", "orders") is None
    assert world.board.list()[0]["hit_count"] == 1


def test_a_moment_happens_once_and_a_rate_again_and_again(world: World) -> None:
    """F1: a detach by force comes once, or at a rate."""
    world.board.add(Fault("detach"))
    assert world.stage.told == [("waiting", "active"), ("active", "gone")]
    world.board.add(Fault("detach", rate_per_s=2))
    for _ in range(4):
        world.clock.advance(0.5)
    assert world.stage.ticks == 4


def test_a_clock_goes_forward_only() -> None:
    clock = AdjustableClock(Instant(5.0, 1_000), is_manual=True)
    clock.advance(900)
    assert clock.now() == Instant(905.0, 901_000)
    for wrong in (-1, float("nan"), float("inf"), True, "3", 1e12):
        with pytest.raises(ConfigurationError):
            clock.advance(wrong)  # type: ignore[arg-type]
    assert clock.now() == Instant(905.0, 901_000)


def test_a_clock_that_runs_keeps_running_after_a_jump() -> None:
    clock = AdjustableClock()
    before = clock.now()
    clock.advance(900)
    after = clock.now()
    assert 900 <= after.monotonic_s - before.monotonic_s < 930
    assert 900_000 <= after.wall_ms - before.wall_ms < 930_000
