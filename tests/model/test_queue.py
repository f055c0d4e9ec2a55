"""The queue against its model: whatever clients do in whatever order, both say the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.entities.sim import mutants
from tests.model.queue_model import QueueModel, seen
from tests.model.rig import Rig
from tests.model.station import DEAD, RELEASE, STATES, STATUSES, Got, Station, encoded
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.namespace import Namespace
from twinbus.broker.store.memory import MemoryStore

PATH = "orders"
TTLS_MS = st.sampled_from([None, None, None, 500, 4_000, 60_000])
INDEX = st.integers(0, 30)


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
    )
    def schedule(self, delays_ms: list[int], ttl_ms: int | None) -> None:
        labels = [self.label() for _ in delays_ms]
        dues_ms = [self.rig.now().wall_ms + delay_ms for delay_ms in delays_ms]
        pairs = list(zip(labels, dues_ms, strict=True))
        payloads = [encoded(label, ttl_ms=ttl_ms, due_ms=due_ms) for label, due_ms in pairs]

        seqs = self.station.schedule(PATH, payloads)

        assert seqs == [self.model.schedule(label, due, ttl_ms) for label, due in pairs]

    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        seqs = sorted(self.model.scheduled) or [self.model.next_seq + 5]
        seq = seqs[index % len(seqs)]

        assert self.station.cancel(PATH, [seq]) == self.model.cancel(seq)

    # -- receiving ------------------------------------------------------------------------

    @rule(count=st.sampled_from([1, 1, 2, 5, 50]))
    def receive(self, count: int) -> None:
        expected = self.model.free(self.rig.now())[:count]

        got = self.station.receive(PATH, count)

        assert seen(got) == [message.seen() for message in expected]
        self.model.take(expected, got, self.rig.now())
        self.got += got

    @rule(count=st.sampled_from([1, 3]))
    def receive_and_delete(self, count: int) -> None:
        expected = self.model.free(self.rig.now())[:count]

        got = self.station.receive(PATH, count, deletes=True)

        assert seen(got) == [message.seen() for message in expected]
        self.model.delete(expected)

    @rule()
    def detach(self) -> None:
        """M2: message locks survive a detach."""
        self.station.close_receiver(PATH)
        self.got = [Got(each.label, each.seq, 0, each.token) for each in self.got]

    @precondition(lambda self: self.got)
    @rule(index=INDEX, outcome=st.sampled_from(sorted(STATES)))
    def settle(self, index: int, outcome: str) -> None:
        got = self.got[-1 - index % len(self.got)]
        message = self.model.holder(got)
        if got.delivery_id is not None:
            assert self.station.settle(got, outcome) == (message is not None)
        elif outcome != RELEASE:
            assert self.station.settle_by_token(PATH, got, outcome) == (message is not None)
        else:
            return
        if message is not None:
            self.model.settle(message, outcome, self.rig.now())

    @precondition(lambda self: self.got)
    @rule(index=INDEX, outcome=st.sampled_from(sorted(STATUSES)))
    def settle_by_token(self, index: int, outcome: str) -> None:
        """M2: the token is what counts."""
        got = self.got[-1 - index % len(self.got)]
        message = self.model.holder(got)

        assert self.station.settle_by_token(PATH, got, outcome) == (message is not None)

        if message is not None:
            self.model.settle(message, outcome, self.rig.now())

    @precondition(lambda self: self.got)
    @rule(index=INDEX)
    def renew(self, index: int) -> None:
        got = self.got[-1 - index % len(self.got)]
        message = self.model.holder(got)

        until_ms = self.station.renew(PATH, got)

        assert until_ms == (None if message is None else self.model.renew(message, self.rig.now()))

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

    @rule(first=st.integers(1, 12), count=st.sampled_from([1, 3, 250]))
    def peek(self, first: int, count: int) -> None:
        expected = self.model.peek(first, count, self.rig.now())

        assert seen(self.station.peek(PATH, first, count)) == [each.seen() for each in expected]

    @rule(count=st.sampled_from([1, 50]))
    def empty_the_dead_letters(self, count: int) -> None:
        self.come_to_rest()

        for got in self.station.receive(PATH + DEAD, count):
            assert self.model.dead.pop(got.label) == (got.reason or "")
            assert self.station.settle(got, "complete")

    # -- time and trouble -----------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 0.3, 0.999, 1.0, 5.0, 29.0, 31.0, 100.0]))
    def wait(self, seconds: float) -> None:
        end_s = self.rig.now().monotonic_s + seconds
        while (at_s := self.model.next_event_s(self.rig.now())) is not None and at_s <= end_s:
            self.rig.advance(at_s - self.rig.now().monotonic_s)
            self.model.at(self.rig.now())
        self.rig.advance(end_s - self.rig.now().monotonic_s)
        self.model.at(self.rig.now())

    @rule(seconds=st.sampled_from([-3_600.0, -1.0, 0.4, 30.0, 3_600.0]))
    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.rig.jump(seconds)
        self.model.at(self.rig.now())

    @rule()
    def restart(self) -> None:
        self.rig.restart()
        self.reconnect()

    @rule(is_stored=st.booleans())
    def crash_during_a_send(self, is_stored: bool) -> None:
        """M8: what was not acknowledged is there whole or not at all."""
        label = self.label()
        self.station.begin_send(PATH, encoded(label))
        self.rig.restart(while_storing=is_stored)
        if is_stored:
            self.model.send(label, self.rig.now())
        self.reconnect()

    def reconnect(self) -> None:
        self.station = Station(self.rig)
        self.got = []
        self.model.restarted(self.rig.now())

    def come_to_rest(self) -> None:
        """What expired under a lock that a restart ended is looked at when the lock would end."""
        self.wait(self.model.lock_duration_ms / 1_000)

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


def create_queue(namespace: Namespace, description: QueueDescription) -> None:
    if namespace.catalogue.find(description.path) is None:
        _queue, ops = namespace.catalogue.create(description)
        namespace.write(ops, None)


OPTIONS = settings(
    max_examples=500,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("half", (1, 2))
def test_a_queue_does_what_the_model_says(half: int) -> None:
    """M2, M3, M8: with schedules, expiry, locks, deferral, restarts and clock jumps."""
    run_state_machine_as_test(QueueAndModel, settings=OPTIONS)


@pytest.mark.parametrize(
    "plant",
    [
        mutants.count_no_attempt,
        mutants.forget_a_renewal,
        mutants.let_the_expired_live,
        mutants.schedule_it_again,
        mutants.settle_after_the_lock_ran_out,
    ],
    ids=lambda plant: plant.__name__,
)
def test_the_model_sees_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2, M3, M8: the comparison can fail, and does for each of these mistakes."""
    plant(monkeypatch)

    with pytest.raises(Exception):
        run_state_machine_as_test(
            QueueAndModel, settings=settings(OPTIONS, phases=[Phase.generate], derandomize=True)
        )
