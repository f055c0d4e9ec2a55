"""The queue with sessions against its model."""

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
from tests.unit.broker.model.queue_model import seen
from tests.unit.broker.model.rig import Rig, create_queue
from tests.unit.broker.model.session_model import SessionModel
from tests.unit.broker.model.station import STATES, STATUSES, Got, encoded
from twinbus.amqp.link import ReceiverLink
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.sessions import Sessions

NAMES = ("red", "green", "blue")
SESSION = st.sampled_from(NAMES)


class SessionsAndModel(Machine):
    """A queue with three sessions, and a client that takes them by name or as they come."""

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
            requires_session=True,
        )
        self.model = SessionModel(lock_s * 1_000, max_delivery_count, dead_letters_expired)
        rig = Rig(self.store(), lambda namespace: create_queue(namespace, description))
        self.begin(rig, {PATH: self.model})
        self.links: dict[str, ReceiverLink] = {}
        self.got: list[Got] = []

    # -- sending --------------------------------------------------------------------------

    @rule(session=SESSION, count=st.sampled_from([1, 1, 2, 4]), ttl_ms=TTLS_MS)
    def send(self, session: str, count: int, ttl_ms: int | None) -> None:
        for _ in range(count):
            label = self.label()
            self.station.send(PATH, encoded(label, ttl_ms=ttl_ms, session=session))
            self.model.send(label, self.rig.now(), ttl_ms, session)

    @rule(session=SESSION, delay_ms=st.sampled_from([1, 2_000]), cancels=st.booleans())
    def schedule(self, session: str, delay_ms: int, cancels: bool) -> None:
        label, due_ms = self.label(), self.rig.now().wall_ms + delay_ms

        seqs = self.station.schedule(PATH, [encoded(label, due_ms=due_ms, session=session)])

        assert seqs == [self.model.schedule(label, due_ms, session=session)]
        if cancels:
            assert self.station.cancel(PATH, seqs) == self.model.cancel(seqs[0])

    # -- holding sessions -----------------------------------------------------------------

    @rule(session=SESSION, is_next=st.booleans())
    def accept(self, session: str, is_next: bool) -> None:
        if is_next:
            self.accept_next()
            return
        granted = self.station.accept(PATH, session)

        assert (granted is not None) == self.model.accept(session, self.rig.now())
        if granted is not None:
            assert granted[0] == session
            self.links[session] = granted[1]

    def accept_next(self) -> None:
        waiting = self.model.waiting()

        granted = self.station.accept(PATH, None)

        if granted is None:
            assert not waiting
            return
        assert granted[0] in waiting
        assert self.model.accept(granted[0], self.rig.now())
        self.links[granted[0]] = granted[1]

    def held(self, session: str) -> str:
        """A session that is held; this one if none is."""
        if session not in self.links and self.links:
            return next(iter(self.links))
        if session not in self.links:
            self.accept(session, False)
        return session

    @rule(session=SESSION, locks=LOCKS)
    def renew(self, session: str, locks: float) -> None:
        session = self.held(session)

        until_ms = self.station.renew_session(PATH, session)

        assert until_ms == self.model.renew_session(session, self.rig.now())
        self.wait(locks)

    @rule(session=SESSION, state=st.sampled_from([None, b"", b"one", b"two"]))
    def note_state(self, session: str, state: bytes | None) -> None:
        session = self.held(session)
        assert self.station.noted_state(PATH, session) == self.model.states.get(session)

        assert self.station.note_state(PATH, session, state)

        self.model.states.pop(session, None)
        if state is not None:
            self.model.states[session] = state

    # -- receiving ------------------------------------------------------------------------

    @rule(session=SESSION, count=st.sampled_from([1, 1, 2, 50]))
    def receive(self, session: str, count: int) -> None:
        session = self.held(session)
        if not self.model.free_in(session, self.rig.now()):
            self.send(session, 1, None)
        expected = self.model.free_in(session, self.rig.now())[:count]

        got = self.station.receive_on(self.links[session], count)

        assert seen(got) == [message.seen() for message in expected]
        self.model.take(expected, got, self.rig.now())
        self.got += got

    @rule(index=INDEX, outcome=st.sampled_from(sorted(STATES)), by_token=st.booleans())
    def settle(self, index: int, outcome: str, by_token: bool) -> None:
        if not self.got:
            self.receive(NAMES[0], 1)
        live = [each for each in self.got if self.model.holder(each) is not None]
        got = chosen(self.got, live, index)
        message = self.model.holder(got)
        if outcome in STATUSES and by_token:
            session = NAMES[0] if message is None else message.session
            was_held = self.station.settle_by_token(PATH, got, outcome, **{"session-id": session})
        elif got.delivery_id is not None:
            was_held = self.station.settle(got, outcome)
        else:
            return
        assert was_held == (message is not None)
        if message is not None:
            self.model.settle(message, outcome, self.rig.now())

    @rule(index=INDEX)
    def take_deferred(self, index: int) -> None:
        aside = [m for m in self.model.held.values() if m.is_deferred and m.session in self.links]
        if not aside:
            return
        wanted = aside[index % len(aside)]
        message = self.model.deferred(wanted.seq, self.rig.now())

        got = self.station.take(PATH, wanted.seq, **{"session-id": wanted.session})

        assert (got is None) == (message is None)
        if message is not None and got is not None:
            assert seen([got]) == [message.seen()]
            self.model.take([message], [got], self.rig.now())
            self.got.append(got)

    @rule(first=st.integers(1, 12), buries=st.booleans())
    def look(self, first: int, buries: bool) -> None:
        if buries:
            self.empty_the_dead_letters(PATH, 50)
        expected = self.model.peek(first, 250, self.rig.now())

        assert seen(self.station.peek(PATH, first)) == [each.seen() for each in expected]

    # -- trouble --------------------------------------------------------------------------

    def look_at_the_clock(self) -> None:
        super().look_at_the_clock()
        self.forget_lost_sessions()

    def forget_lost_sessions(self) -> None:
        """M3: whose time ran out hears of it, and nobody else does."""
        for session, link in list(self.links.items()):
            assert self.station.was_lost(link) == (session not in self.model.holds)
            if session not in self.model.holds:
                self.forget(session)

    def forget(self, session: str) -> None:
        """Deliveries of a link that is gone cannot be settled on it any more."""
        del self.links[session]
        labels = {m.label for m in self.model.held.values() if m.session == session}
        self.got = [each for each in self.got if each.label not in labels]

    def detach(self) -> None:
        """M2: session locks do not survive a detach."""
        if self.links:
            session = next(iter(self.links))
            self.station.let_go(self.links[session])
            self.model.let_go(session, self.rig.now())
            self.forget(session)

    def begin_send(self) -> None:
        label = f"hasty{self.model.next_seq}"
        self.station.begin_send(PATH, encoded(label, session=NAMES[0]))

    def sent(self, is_stored: bool) -> None:
        self.got, self.links = [], {}
        if is_stored:
            label = f"hasty{self.model.next_seq}"
            self.model.send(label, self.rig.now(), session=NAMES[0])

    @invariant()
    def the_sessions_agree(self) -> None:
        if not hasattr(self, "rig"):
            return
        queue = self.rig.namespace.catalogue.find(PATH)
        assert queue is not None and queue.sessions is not None
        assert len(queue.sessions) == len(self.model.holds)
        locked = [each for each in self.model.held.values() if each.token is not None]
        assert queue.locked_count == len(locked)


@pytest.mark.parametrize("part", range(4))
def test_a_queue_with_sessions_does_what_the_model_says(part: int) -> None:
    """M2, M3, M8: sessions by name and as they come, their time, their state and their order."""
    run_state_machine_as_test(SessionsAndModel, settings=OPTIONS)


def test_a_session_ends_with_its_last_message() -> None:
    """M3: the lock runs out, the message was tried often enough: both are gone, nobody is hurt."""
    # Given a session with one message, which is in hand and may be tried once
    both = SessionsAndModel()
    both.create(lock_s=5, max_delivery_count=1, dead_letters_expired=False)
    both.receive("red", 1)

    # When the session's time runs out
    both.wait(1.0)

    # Then broker and model agree about the session and its dead letter
    both.the_sessions_agree()
    both.teardown()


def count_what_was_let_go(patch: pytest.MonkeyPatch) -> None:
    """A holder that closes its receiver has tried what it had in hand."""
    release = Sessions.release
    patch.setattr(
        Sessions, "release", lambda self, lock, *, is_failure: release(self, lock, is_failure=True)
    )


def forget_who_holds_it(patch: pytest.MonkeyPatch) -> None:
    """A session is given to whoever asks for it by name."""

    def accept(self: Sessions, session: str, owner: object, lost: Callable[[], None], now: object):
        return self._lock(session, owner, lost, now)  # type: ignore[arg-type]

    patch.setattr(Sessions, "accept", accept)


@pytest.mark.parametrize(
    ("plant", "seed_number"),
    [(count_what_was_let_go, 1), (forget_who_holds_it, 1), (mutants.count_no_attempt, 1)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_model_sees_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None],
    seed_number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M2, M3: the comparison can fail, and does for each of these mistakes."""
    plant(monkeypatch)

    assert_seen(SessionsAndModel, seed_number)
