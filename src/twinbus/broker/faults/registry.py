"""The faults of a namespace with their times and counts, and the subsystems of its entities.

    add() --> waiting --starts_after_s--> active --lasts_s--> gone
                  crash-subsystem:        down --down_s--> slow --slow_s--> gone

An entity belongs to one subsystem (rule F4). Unless it is assigned, that is one of four, chosen by
its name: the same name has the same subsystem in every namespace and after every restart.

Rule 1: while no fault is active, ``has_no_faults`` is True, and requests check nothing else.
Rule 2: time comes from the namespace's clock, random choices from the seed of each fault.
Rule 3: the registry only keeps the state. What a fault does when it begins or ends is done by the
        ``Effects``; what it does to a request is done where the request is handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import count
from random import Random
from typing import Any, Final, Protocol
from zlib import crc32

from twinbus.broker.faults.fault import KINDS, Fault, Scope
from twinbus.broker.throttle import Bucket
from twinbus.common.clock import Clock
from twinbus.common.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError

SUBSYSTEM_COUNT: Final = 4
SUBSYSTEM_NAME_LENGTH_MAX: Final = 64


def default_subsystem(path: str) -> str:
    """The subsystem of an entity that is not assigned to another."""
    return f"subsystem-{crc32(path.encode()) % SUBSYSTEM_COUNT}"


class Subsystems:
    """The assignments of one namespace."""

    def __init__(self) -> None:
        self._assigned: dict[str, str] = {}

    def of(self, path: str) -> str:
        """The subsystem of a canonical path."""
        return self._assigned.get(path) or default_subsystem(path)

    def assign(self, path: str, subsystem: str | None) -> None:
        path = parse_entity_path(path)
        if subsystem is None:
            self._assigned.pop(path, None)
            return
        is_name = isinstance(subsystem, str) and subsystem.isprintable() and subsystem.strip()
        if not is_name or len(subsystem) > SUBSYSTEM_NAME_LENGTH_MAX:
            raise ConfigurationError(
                "The name of a subsystem must be printable text of 1 to "
                f"{SUBSYSTEM_NAME_LENGTH_MAX} characters"
            )
        self._assigned[path] = subsystem


# Far more than a test combines, and few enough to check for every request.
FAULTS_MAX: Final = 100
# A timer of an event loop never fires early on purpose, but clocks are read one after the other.
TIMER_SLACK_S: Final = 0.001


# The registry has a method named ``list``.
Listing = list[dict[str, Any]]


class FaultPhase(StrEnum):
    """The phase of a fault."""

    WAITING = "waiting"
    ACTIVE = "active"
    DOWN = "down"
    SLOW = "slow"
    GONE = "gone"


class ActiveFault:
    """A fault in the registry, with its state."""

    def __init__(self, fault: Fault, now_s: float) -> None:
        self.fault = fault
        self.id = fault.id
        self.phase = FaultPhase.WAITING
        self.hit_count = 0
        self.random = Random(fault.seed)
        self.diagnostics_path = ""
        rate = fault.rate_per_s if fault.kind == "throttle" else None
        self.bucket = None if rate is None else Bucket(rate, now_s)
        self.next_tick_s: float | None = None
        self.pacing: set[object] = set()
        self.let_through: set[object] = set()
        self.plan = _plan(fault, now_s)

    @property
    def is_on(self) -> bool:
        return self.phase not in (FaultPhase.WAITING, FaultPhase.GONE)

    def covers(self, path: str, subsystem: str) -> bool:
        return self.fault.scope.covers(path, subsystem)

    def fires(self) -> bool:
        """Whether it affects a request now, by its probability; if so it is counted."""
        probability = self.fault.probability
        # Without this test a fault that always fires would use up random numbers.
        if probability < 1 and self.random.random() >= probability:
            return False
        self.hit_count += 1
        return True

    def is_applied(self) -> bool:
        """Whether an operation is carried out although it is not answered."""
        return self.random.random() < (self.fault.applied_probability or 0.0)

    def latency_s(self) -> float:
        """A delay of this fault, with its jitter."""
        jitter_ms = self.fault.jitter_ms or 0.0
        spread_ms = self.random.uniform(-jitter_ms, jitter_ms) if jitter_ms else 0.0
        return max(0.0, (self.fault.latency_ms or 0.0) + spread_ms) / 1000

    def next_timer_s(self, now_s: float) -> float | None:
        times = [at_s for at_s, _phase in self.plan if at_s > now_s + TIMER_SLACK_S]
        if self.next_tick_s is not None:
            times.append(self.next_tick_s)
        return min(times, default=None)

    def to_json(self, now_s: float) -> dict[str, Any]:
        """The fault with its state."""
        ends_s = self.plan[-1][0] if self.plan[-1][1] is FaultPhase.GONE else None
        values = {
            **self.fault.to_json(),
            "phase": str(self.phase),
            "hit_count": self.hit_count,
            "begins_in_s": max(0.0, round(self.plan[0][0] - now_s, 3)),
            "remaining_s": None if ends_s is None else max(0.0, round(ends_s - now_s, 3)),
        }
        if self.diagnostics_path:
            values["diagnostics_path"] = self.diagnostics_path
        return values


def _plan(fault: Fault, now_s: float) -> list[tuple[float, FaultPhase]]:
    """When each phase begins, in order."""
    begins_s = now_s + fault.starts_after_s
    ends_s = None if fault.lasts_s is None else begins_s + fault.lasts_s
    if fault.kind == "crash-subsystem":
        slow_s = begins_s + (fault.down_s or 0.0)
        gone_s = slow_s + (fault.slow_s or 0.0)
        if ends_s is not None:
            slow_s, gone_s = min(slow_s, ends_s), min(gone_s, ends_s)
        return [(begins_s, FaultPhase.DOWN), (slow_s, FaultPhase.SLOW), (gone_s, FaultPhase.GONE)]
    plan = [(begins_s, FaultPhase.ACTIVE)]
    if KINDS[fault.kind].is_moment and fault.rate_per_s is None:
        ends_s = begins_s
    if ends_s is not None:
        plan.append((ends_s, FaultPhase.GONE))
    return plan


class Effects(Protocol):
    """Carries out what happens when a fault begins, fires or ends."""

    def changed(self, active: ActiveFault, before: FaultPhase, after: FaultPhase) -> None:
        """The fault went from one phase to the next."""

    def tick(self, active: ActiveFault) -> None:
        """A fault with a rate fires."""


class Timers(Protocol):
    """What the registry needs of an event loop."""

    def call_later(
        self, delay: float, callback: Callable[..., object], /, *args: Any
    ) -> asyncio.TimerHandle: ...


class FaultRegistry:
    """The faults of one namespace. All methods are called on the event loop's thread."""

    def __init__(self, clock: Clock, timers: Timers, random: Random, effects: Effects) -> None:
        self.has_no_faults = True
        """No fault is active: the only thing that a request checks without faults."""
        self.subsystems = Subsystems()
        self._clock = clock
        self._timers = timers
        self._random = random
        self._effects = effects
        self._faults: dict[str, ActiveFault] = {}
        self._names = (f"fault-{number}" for number in count(1))
        self._timer: asyncio.TimerHandle | None = None

    # -- for operators and tests ----------------------------------------------------------

    def add(self, fault: Fault) -> str:
        """Add a fault; returns the id to clear it by."""
        if len(self._faults) >= FAULTS_MAX:
            raise ConfigurationError(
                f"The limit of {FAULTS_MAX} faults is reached", hint="Clear a fault first"
            )
        fault = fault.named(self._free_name(), self._random.getrandbits(32))
        if fault.id in self._faults:
            raise ConfigurationError(
                f"Fault {fault.id!r} already exists", hint="Clear it first, or use another id"
            )
        self._faults[fault.id] = ActiveFault(fault, self._now_s())
        self.run_due()
        return fault.id

    def list(self) -> Listing:
        """Every fault with its phase, remaining time and hit count."""
        now_s = self._now_s()
        return [active.to_json(now_s) for active in self._faults.values()]

    def get(self, fault_id: str) -> dict[str, Any] | None:
        active = self._faults.get(fault_id)
        return None if active is None else active.to_json(self._now_s())

    def clear(self, id: str | None = None) -> int:
        """Clear one fault, or all of them; returns how many there were."""
        if id is not None and id not in self._faults:
            raise ConfigurationError(f"Fault {id!r:.80} not found", hint=self.describe_names())
        chosen = list(self._faults) if id is None else [id]
        for each in chosen:
            self._move(self._faults[each], FaultPhase.GONE)
        self._arm()
        return len(chosen)

    def describe_names(self) -> str:
        """The ids that clear() accepts, as a hint."""
        names = ", ".join(map(ascii, self._faults))
        return f"Use one of: {names}" if names else "No fault exists"

    @contextmanager
    def on(self, fault: Fault | str, scope: Scope | None = None, **options: Any) -> Iterator[str]:
        """Have a fault for the length of a ``with`` block."""
        chosen_fault = (
            Fault(fault, scope or Scope(), **options) if isinstance(fault, str) else fault
        )
        fault_id = self.add(chosen_fault)
        try:
            yield fault_id
        finally:
            if fault_id in self._faults:
                self.clear(fault_id)

    def assign(self, path: str, subsystem: str | None) -> None:
        """Assign an entity to a subsystem; None assigns it to its default one."""
        self.subsystems.assign(path, subsystem)

    # -- for the places where requests are handled ----------------------------------------

    def active_of_kind(self, kind: str) -> Iterator[ActiveFault]:
        """The active faults of a kind."""
        for active in self._faults.values():
            if active.fault.kind == kind and active.is_on:
                yield active

    def covering(self, kind: str, path: str) -> Iterator[ActiveFault]:
        """The active faults of a kind that concern an entity."""
        subsystem = self.subsystems.of(path)
        for active in self.active_of_kind(kind):
            if active.covers(path, subsystem):
                yield active

    def fires(self, kind: str, path: str) -> ActiveFault | None:
        """The fault of that kind that affects a request for the entity now, if there is one."""
        for active in self.covering(kind, path):
            if active.fires():
                return active
        return None

    def crash_of(self, path: str, phase: FaultPhase) -> ActiveFault | None:
        """The crash of the entity's subsystem, if it is in that phase."""
        for active in self.covering("crash-subsystem", path):
            if active.phase is phase:
                return active
        return None

    def later(self, delay_s: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call ``action`` after a delay."""
        self._timers.call_later(delay_s, action, *arguments)

    # -- time -----------------------------------------------------------------------------

    def run_due(self) -> None:
        """Begin and end what is due. Also called when the clock was moved."""
        now_s = self._now_s()
        for active in list(self._faults.values()):
            self._go_through(active, now_s)
            tick_s = active.next_tick_s
            if tick_s is not None and now_s + TIMER_SLACK_S >= tick_s:
                active.next_tick_s = now_s + 1 / (active.fault.rate_per_s or 1.0)
                self._effects.tick(active)
        self._arm()

    def _go_through(self, active: ActiveFault, now_s: float) -> None:
        """Enter every phase that is due, also when the clock jumped over all of it."""
        for at_s, phase in active.plan:
            if now_s + TIMER_SLACK_S >= at_s and _ORDER[phase] > _ORDER[active.phase]:
                self._move(active, phase)

    def _move(self, active: ActiveFault, phase: FaultPhase) -> None:
        before, active.phase = active.phase, phase
        if phase is FaultPhase.GONE:
            self._faults.pop(active.id, None)
        elif active.fault.rate_per_s is not None and KINDS[active.fault.kind].is_moment:
            active.next_tick_s = self._now_s() + 1 / active.fault.rate_per_s
        self.has_no_faults = not any(each.is_on for each in self._faults.values())
        self._effects.changed(active, before, phase)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._now_s()
        times = [active.next_timer_s(now_s) for active in self._faults.values()]
        at_s = min((each for each in times if each is not None), default=None)
        if at_s is not None:
            self._timer = self._timers.call_later(max(0.0, at_s - now_s), self.run_due)

    def _free_name(self) -> str:
        return next(name for name in self._names if name not in self._faults)

    def _now_s(self) -> float:
        return self._clock.now().monotonic_s


_ORDER: Final = {phase: order for order, phase in enumerate(FaultPhase)}
