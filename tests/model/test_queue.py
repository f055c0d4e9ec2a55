"""The queue against its model: whatever clients do in whatever order, both say the same."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.entities.sim import mutants
from tests.model.queue_model import QueueModel, seen
from tests.model.rig import Rig, create_queue
from tests.model.station import DEAD, STATES, STATUSES, Got, Station, encoded
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.store.memory import MemoryStore

PATH = "orders"
TTLS_MS = st.sampled_from([None, None, None, 500, 4_000, 60_000])
# Which of the messages received: mostly one of the last.
INDEX = st.sampled_from([1, 1, 1, 2, 3, 7, 0, 4])
# How long to wait, in lock durations: twice 0.6 is longer than a lock, and once is not.
LOCKS = st.sampled_from([0.6, 0.6, 0.6, 1.0, 1.0, 1.4, 40.0])


class QueueAndModel(RuleBasedStateMachine):
    """One queue, its dead letters, one client, and the model beside them."""

    @initialize(
        lock_s=st.sampled_from([1, 5, 30]),
        max_delivery_count=st.sampled_from([1, 2, 3, 10]),
        dead_letters_expired=st.booleans(),
    )
    def create(self, lock_s: int, max_delivery_count: int, dead_letters_expired: bool) -> None:
        description = QueueDescription(
            path=PATH,
            lock_duration_ms=lock_s * 1_000,
            max_delivery_count=max_delivery_count,
            dead_lettering_on_expiration=dead_letters_expired,
        )
        self.model = QueueModel(lock_s * 1_000, max_delivery_count, dead_letters_expired)
        self.rig = Rig(self.store(), lambda namespace: create_queue(namespace, description))
        self.station = Station(self.rig)
        self.labels = 0
        self.got: list[Got] = []
        """Everything received under a lock, lost or not, on this connection."""

    def store(self) -> Any:
        return MemoryStore()

    def label(self) -> str:
        self.labels += 1
        return f"m{self.labels}"

    # -- sending --------------------------------------------------------------------------

    @rule(count=st.sampled_from([1, 1, 1, 2, 5]), ttl_ms=TTLS_MS)
    def send(self, count: int, ttl_ms: int | None) -> None:
        for _ in range(count):
            label = self.label()
            self.station.send(PATH, encoded(label, ttl_ms=ttl_ms))
            self.model.send(label, self.rig.now(), ttl_ms)

    @rule(
        delays_ms=st.lists(st.sampled_from([1, 200, 2_000, 90_000]), min_size=1, max_size=3),
        ttl_ms=TTLS_MS,
        cancels=st.booleans(),
    )
    def schedule(self, delays_ms: list[int], ttl_ms: int | None, cancels: bool) -> None:
        labels = [self.label() for _ in delays_ms]
        dues_ms = [self.rig.now().wall_ms + delay_ms for delay_ms in delays_ms]
        pairs = list(zip(labels, dues_ms, strict=True))
        payloads = [encoded(label, ttl_ms=ttl_ms, due_ms=due_ms) for label, due_ms in pairs]

        seqs = self.station.schedule(PATH, payloads)

        assert seqs == [self.model.schedule(label, due, ttl_ms) for label, due in pairs]
        if cancels:
            for seq in (min(self.model.scheduled), seqs[0], self.model.next_seq):
                assert self.station.cancel(PATH, [seq]) == self.model.cancel(seq)

    # -- receiving ------------------------------------------------------------------------

    @rule(count=st.sampled_from([1, 1, 2, 5, 50]), deletes=st.sampled_from([False] * 4 + [True]))
    def receive(self, count: int, deletes: bool) -> None:
        if not self.model.free(self.rig.now()):
            self.send(1, None)
        expected = self.model.free(self.rig.now())[:count]

        got = self.station.receive(PATH, count, deletes=deletes)

        assert seen(got) == [message.seen() for message in expected]
        if deletes:
            self.model.delete(expected)
        else:
            self.model.take(expected, got, self.rig.now())
            self.got += got

    def received(self, index: int) -> Got:
        """One of the messages received; most often one whose lock is still there."""
        if not self.got:
            self.receive(1, False)
        live = [each for each in self.got if self.model.holder(each) is not None]
        candidates = live if live and index % 4 else self.got
        return candidates[-1 - index % len(candidates)]

    @rule(index=INDEX, outcome=st.sampled_from(sorted(STATES)), by_token=st.booleans())
    def settle(self, index: int, outcome: str, by_token: bool) -> None:
        """M2: the token is what counts, on the link and through management."""
        got = self.received(index)
        message = self.model.holder(got)
        if outcome in STATUSES and (by_token or got.delivery_id is None):
            assert self.station.settle_by_token(PATH, got, outcome) == (message is not None)
        elif got.delivery_id is not None:
            assert self.station.settle(got, outcome) == (message is not None)
        else:
            return
        if message is not None:
            self.model.settle(message, outcome, self.rig.now())

    @rule(index=INDEX, locks=LOCKS)
    def renew(self, index: int, locks: float) -> None:
        got = self.received(index)
        message = self.model.holder(got)

        until_ms = self.station.renew(PATH, got)

        assert until_ms == (None if message is None else self.model.renew(message, self.rig.now()))
        self.wait(locks)

    @rule(index=INDEX, deletes=st.booleans())
    def take_deferred(self, index: int, deletes: bool) -> None:
        seqs = [seq for seq, m in self.model.held.items() if m.is_deferred] or list(self.model.held)
        seq = seqs[index % len(seqs)] if seqs else 1
        message = self.model.deferred(seq, self.rig.now())

        got = self.station.take(PATH, seq, deletes=deletes)

        if message is None or got is None:
            assert got is None and message is None
            return
        assert seen([got]) == [message.seen()]
        if deletes:
            self.model.delete([message])
        else:
            self.model.take([message], [got], self.rig.now())
            self.got.append(got)

    # -- looking --------------------------------------------------------------------------

    @rule(first=st.integers(1, 12), count=st.sampled_from([1, 3, 250]), buries=st.booleans())
    def look(self, first: int, count: int, buries: bool) -> None:
        if buries:
            self.empty_the_dead_letters(count)
        expected = self.model.peek(first, count, self.rig.now())

        assert seen(self.station.peek(PATH, first, count)) == [each.seen() for each in expected]

    def empty_the_dead_letters(self, count: int) -> None:
        """What is there must be dead; what expired a moment ago may still be on its way."""
        for got in self.station.receive(PATH + DEAD, count):
            assert self.model.dead.pop(got.label) == (got.reason or "")
            assert self.station.settle(got, "complete")

    # -- time and trouble -----------------------------------------------------------------

    @rule(locks=LOCKS)
    def wait(self, locks: float) -> None:
        self.pass_time(locks * self.model.lock_duration_ms / 1_000)

    @rule(extra_s=st.sampled_from([-0.001, 0.0, 0.3]))
    def wait_for_the_next_event(self, extra_s: float) -> None:
        """Until something happens by itself, or nearly."""
        now_s = self.rig.now().monotonic_s
        at_s = self.model.next_event_s(self.rig.now())
        self.pass_time(max(0.0, (now_s if at_s is None else at_s) + extra_s - now_s))

    def pass_time(self, seconds: float) -> None:
        end_s = self.rig.now().monotonic_s + seconds
        while (at_s := self.model.next_event_s(self.rig.now())) is not None and at_s <= end_s:
            self.rig.advance(at_s - self.rig.now().monotonic_s)
            self.model.at(self.rig.now())
        self.rig.advance(end_s - self.rig.now().monotonic_s)
        self.model.at(self.rig.now())

    @rule(trouble=st.sampled_from(["detach", "jump", "restart"]), chance=st.randoms())
    def trouble(self, trouble: str, chance: Random) -> None:
        if trouble == "detach":
            self.detach()
        elif trouble == "jump":
            self.jump(chance.choice([-3_600.0, -1.0, 0.4, 30.0, 3_600.0]))
        else:
            self.restart(chance.random() < 0.5, chance.random() < 0.5)

    def detach(self) -> None:
        """M2: message locks survive a detach."""
        self.station.close_receiver(PATH)
        self.got = [Got(each.label, each.seq, 0, each.token) for each in self.got]

    def jump(self, seconds: float) -> None:
        """M2: ... and somebody who sets the wall clock."""
        self.rig.jump(seconds)
        self.model.at(self.rig.now())

    def restart(self, is_sending: bool, is_stored: bool) -> None:
        """M8: what was not acknowledged is there whole or not at all."""
        label = self.label()
        if is_sending:
            self.station.begin_send(PATH, encoded(label))
        self.rig.restart(while_storing=is_stored)
        if is_sending and is_stored:
            self.model.send(label, self.rig.now())
        self.station = Station(self.rig)
        self.got = []
        self.model.restarted(self.rig.now())

    def come_to_rest(self) -> None:
        """What expired under a lock that a restart ended is looked at when the lock would end."""
        self.pass_time(self.model.lock_duration_ms / 1_000)

    @invariant()
    def the_counts_agree(self) -> None:
        if not hasattr(self, "rig"):
            return
        queue = self.rig.namespace.catalogue.find(PATH)
        assert queue is not None
        assert queue.scheduled_count == len(self.model.scheduled)
        locked = [each for each in self.model.held.values() if each.token is not None]
        assert queue.locked_count == len(locked)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.come_to_rest()
        assert seen(self.station.peek(PATH)) == [
            message.seen() for message in self.model.peek(1, 250, self.rig.now())
        ]
        dead = self.station.peek(PATH + DEAD)
        assert {got.label: got.reason or "" for got in dead} == self.model.dead


OPTIONS = settings(
    max_examples=125,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


WITHOUT_SHRINKING = settings(OPTIONS, max_examples=500, phases=[Phase.generate], derandomize=True)


# Several tests, so that they share the processors and none comes near its time limit.
@pytest.mark.parametrize("part", range(8))
def test_a_queue_does_what_the_model_says(part: int) -> None:
    """M2, M3, M8: with schedules, expiry, locks, deferral, restarts and clock jumps."""
    run_state_machine_as_test(QueueAndModel, settings=OPTIONS)


@pytest.mark.parametrize(
    "plant",
    [
        mutants.count_no_attempt,
        mutants.forget_a_renewal,
        mutants.let_the_expired_live,
    ],
    ids=lambda plant: plant.__name__,
)
def test_the_model_sees_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2, M3, M8: the comparison can fail, and does for each of these mistakes."""
    plant(monkeypatch)

    with pytest.raises((AssertionError, KeyError, ValueError, RuntimeError)):
        run_state_machine_as_test(QueueAndModel, settings=WITHOUT_SHRINKING)
