"""The queue against its model: whatever clients do in whatever order, both say the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from tests.support.queue_simulation import mutants
from tests.unit.broker.model.machine import (
    INDEX,
    LOCKS,
    OPTIONS,
    PATH,
    TTLS_MS,
    Machine,
    assert_seen,
    chosen,
)
from tests.unit.broker.model.queue_model import QueueModel, seen
from tests.unit.broker.model.rig import Rig, create_queue
from tests.unit.broker.model.station import STATES, STATUSES, Got, encoded
from twinbus.broker.engine.descriptions import QueueDescription


class QueueAndModel(Machine):
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
        rig = Rig(self.store(), lambda namespace: create_queue(namespace, description))
        self.begin(rig, {PATH: self.model})
        self.got: list[Got] = []
        """Everything received under a lock, lost or not, on this connection."""

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
        return chosen(self.got, live, index)

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
            self.empty_the_dead_letters(PATH, count)
        expected = self.model.peek(first, count, self.rig.now())

        assert seen(self.station.peek(PATH, first, count)) == [each.seen() for each in expected]

    # -- trouble --------------------------------------------------------------------------

    def detach(self) -> None:
        """M2: message locks survive a detach."""
        self.station.close_receiver(PATH)
        self.got = [Got(each.label, each.seq, 0, each.token) for each in self.got]

    def begin_send(self) -> None:
        self.station.begin_send(PATH, encoded(f"hasty{self.model.next_seq}"))

    def sent(self, is_stored: bool) -> None:
        self.got = []
        if is_stored:
            self.model.send(f"hasty{self.model.next_seq}", self.rig.now())

    @invariant()
    def the_counts_agree(self) -> None:
        if not hasattr(self, "rig"):
            return
        queue = self.rig.namespace.catalogue.find(PATH)
        assert queue is not None
        assert queue.scheduled_count == len(self.model.scheduled)
        locked = [each for each in self.model.held.values() if each.token is not None]
        assert queue.locked_count == len(locked)


@pytest.mark.parametrize("part", range(8))
def test_a_queue_does_what_the_model_says(part: int) -> None:
    """M2, M3, M8: with schedules, expiry, locks, deferral, restarts and clock jumps."""
    run_state_machine_as_test(QueueAndModel, settings=OPTIONS)


@pytest.mark.parametrize(
    ("plant", "seed_number"),
    [
        (mutants.count_no_attempt, 1),
        (mutants.forget_a_renewal, 3),
        (mutants.let_the_expired_live, 1),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_model_sees_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None],
    seed_number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M2, M3, M8: the comparison can fail, and does for each of these mistakes."""
    plant(monkeypatch)

    assert_seen(QueueAndModel, seed_number)
