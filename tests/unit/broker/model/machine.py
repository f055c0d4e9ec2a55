"""What every comparison of a broker with its model needs: time, trouble, and the end.

A subclass adds the rules that clients follow. The rules here are those of the world: time
passes, somebody sets the clock, the process dies.
"""

from __future__ import annotations

import os
from random import Random
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.unit.broker.model.queue_model import QueueModel, seen
from tests.unit.broker.model.rig import Rig
from tests.unit.broker.model.station import DEAD, Station
from twinbus.broker.storage.interface import Store
from twinbus.broker.storage.memory_store import MemoryStore

PATH = "orders"
TTLS_MS = st.sampled_from([None, None, None, 500, 4_000, 60_000])
# Which of the messages received: mostly one of the last.
INDEX = st.sampled_from([1, 1, 1, 2, 3, 7, 0, 4])
# How long to wait, in lock durations: twice 0.6 is longer than a lock, and once is not.
LOCKS = st.sampled_from([0.6, 0.6, 0.6, 1.0, 1.0, 1.4, 40.0])
JUMPS_S = (-3_600.0, -1.0, 0.4, 30.0, 3_600.0)

EXAMPLES_PER_TEST = int(os.environ.get("TWINBUS_MODEL_EXAMPLES", "125"))
"""Several tests share the examples, and the processors: none comes near its time limit."""
OPTIONS = settings(
    max_examples=EXAMPLES_PER_TEST,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
WITHOUT_SHRINKING = settings(OPTIONS, max_examples=500, phases=[Phase.generate], database=None)
SEEN = (AssertionError, KeyError, ValueError, RuntimeError)
"""How a comparison fails when the broker has a bug."""


Each = TypeVar("Each")


def assert_seen(machine: type[Machine], seed_number: int) -> None:
    """The comparison fails. The seed is one that comes to the point soon: others take longer."""
    seeded = seed(seed_number)(type(machine.__name__, (machine,), {}))
    with pytest.raises(SEEN):
        run_state_machine_as_test(seeded, settings=WITHOUT_SHRINKING)


class Machine(RuleBasedStateMachine):
    """Some entities, one client, and the models beside them."""

    rig: Rig
    station: Station
    models: dict[str, QueueModel]
    """By the path to receive from."""

    def begin(self, rig: Rig, models: dict[str, QueueModel]) -> None:
        self.rig, self.models = rig, models
        self.station = Station(rig)
        self._label_count = 0
        self._settled_at_s = 0.0
        """From then on nothing is left of what was held before a restart."""

    def store(self) -> Store:
        """Where the broker keeps its messages."""
        return MemoryStore()

    def label(self) -> str:
        self._label_count += 1
        return f"m{self._label_count}"

    @property
    def lock_s(self) -> float:
        return max(model.lock_duration_ms for model in self.models.values()) / 1_000

    # -- time -----------------------------------------------------------------------------

    @rule(locks=LOCKS)
    def wait(self, locks: float) -> None:
        self.pass_time(locks * self.lock_s)

    @rule(extra_s=st.sampled_from([-0.001, 0.0, 0.3]))
    def wait_for_the_next_event(self, extra_s: float) -> None:
        """Until something happens by itself, or nearly."""
        now_s = self.rig.now().monotonic_s
        at_s = self.next_event_s()
        self.pass_time(max(0.0, (now_s if at_s is None else at_s) + extra_s - now_s))

    def next_event_s(self) -> float | None:
        times = [model.next_event_s(self.rig.now()) for model in self.models.values()]
        return min((at_s for at_s in times if at_s is not None), default=None)

    def pass_time(self, seconds: float) -> None:
        end_s = self.rig.now().monotonic_s + seconds
        while (at_s := self.next_event_s()) is not None and at_s <= end_s:
            self.rig.advance(at_s - self.rig.now().monotonic_s)
            self.look_at_the_clock()
        self.rig.advance(end_s - self.rig.now().monotonic_s)
        self.look_at_the_clock()

    def look_at_the_clock(self) -> None:
        for model in self.models.values():
            model.at(self.rig.now())

    # -- trouble --------------------------------------------------------------------------

    @rule(trouble=st.sampled_from(["detach", "jump", "restart"]), chance=st.randoms())
    def trouble(self, trouble: str, chance: Random) -> None:
        if trouble == "detach":
            self.detach()
        elif trouble == "jump":
            if self.rig.now().monotonic_s < self._settled_at_s:
                # What expired under a lock that the restart ended is still there: a clock that
                # goes back would bring it to life.
                self.pass_time(self.lock_s)
            self.rig.jump(chance.choice(JUMPS_S))
            self.look_at_the_clock()
        else:
            self.restart(chance.random() < 0.5, chance.random() < 0.5)

    def detach(self) -> None:
        """A receiver goes away."""
        raise NotImplementedError

    def restart(self, is_sending: bool, is_stored: bool) -> None:
        """M8: what was not acknowledged is there whole or not at all."""
        if is_sending:
            self.begin_send()
        self.rig.restart(while_storing=is_stored)
        self.sent(is_sending and is_stored)
        self.station = Station(self.rig)
        for model in self.models.values():
            model.restarted(self.rig.now())
        self._settled_at_s = self.rig.now().monotonic_s + self.lock_s

    def begin_send(self) -> None:
        """Hand the broker a message; it has no time to answer."""
        raise NotImplementedError

    def sent(self, is_stored: bool) -> None:
        """That message is on disk, or was lost."""
        raise NotImplementedError

    # -- the end --------------------------------------------------------------------------

    def empty_the_dead_letters(self, path: str, count: int) -> None:
        """What is there must be dead; what expired a moment ago may still be on its way."""
        for got in self.station.receive(path + DEAD, count):
            assert self.models[path].dead.pop(got.label) == (got.reason or "")
            assert self.station.settle(got, "complete")

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        # What expired under a lock that a restart ended is looked at when the lock would end.
        self.pass_time(self.lock_s)
        for path, model in self.models.items():
            left = model.peek(1, 250, self.rig.now())
            found = seen(self.station.peek(path))
            assert found == [message.seen() for message in left], "what is left differs"
            dead = self.station.peek(path + DEAD)
            reasons = {got.label: got.reason or "" for got in dead}
            assert reasons == model.dead, "the dead letters differ"


def chosen(candidates: list[Each], live: list[Each], index: int) -> Each:
    """One of the messages received; most often one whose lock is still there."""
    among = live if live and index % 4 else candidates
    return among[-1 - index % len(among)]
