"""Sessions in the queue machine: who holds one, in which order, and what comes back how."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

import pytest

from tests.support.engine.driver import START_MS, START_S, Answer, Driver, Received, bodies
from twinbus.broker.engine import sessions as sessions_module
from twinbus.broker.engine.consumers import Consumer
from twinbus.broker.engine.outcomes import ABANDON, COMPLETE, DEFER, RELEASE
from twinbus.broker.engine.sessions import SessionLock, Sessions, Waiter
from twinbus.broker.storage.interface import session_state_bytes

LOCK_S = 60


class Holder:
    """A receiver of one session, driven by hand."""

    def __init__(self, driver: Driver, lock: SessionLock, credit: int = 100) -> None:
        self._driver = driver
        self.lock = lock
        self.consumer = Consumer(lambda _grant: None, 1_000, credit=credit, session=lock)
        driver.queue.attach(self.consumer)
        driver.queue.credit_available(self.consumer)

    def receive(self) -> list[Received]:
        return self._driver.receive(self.consumer)

    def close(self) -> None:
        self._driver.queue.detach(self.consumer)


class SessionDriver(Driver):
    """The queue ``orders`` with sessions."""

    def __init__(self, **properties: object) -> None:
        super().__init__(requires_session=True, **properties)
        self.told: list[str] = []

    @property
    def sessions(self) -> Sessions:
        assert self.queue.sessions is not None
        return self.queue.sessions

    def put(self, session: str, *bodies: str, ttl_s: float | None = None) -> None:
        """Send into a session, and commit."""
        messages = [self.message(body, ttl_s, session=session) for body in bodies]
        self.queue.enqueue(messages, None)
        self.commit()

    def accept(self, session: str, credit: int = 100) -> Holder | None:
        lock = self.sessions.accept(
            session, "me", lambda: self.told.append(f"lost {session}"), self.now
        )
        return None if lock is None else Holder(self, lock, credit)

    def hold(self, session: str, credit: int = 100) -> Holder:
        holder = self.accept(session, credit)
        assert holder is not None
        return holder

    def wait(self, name: str, seconds: float = 65) -> Waiter:
        """Ask for the next session; ``told`` hears which."""
        waiter = Waiter(
            "me",
            self.now.monotonic_s + seconds,
            lambda lock: self.told.append(f"{name} got {lock.session}"),
            lambda: self.told.append(f"{name} timed out"),
            lambda: self.told.append(f"{name} lost it"),
        )
        self.sessions.wait(waiter)
        return waiter

    def tell(self) -> list[str]:
        """What the receivers were told since the last time."""
        self.sessions.serve_waiters(self.now)
        while self.sessions.notify_some():
            pass
        told, self.told = self.told, []
        return told


# -- holding ----------------------------------------------------------------------------------


def test_only_the_holder_gets_the_messages_of_a_session() -> None:
    """M3: in order, whatever lies between them."""
    driver = SessionDriver()
    driver.put("a", "a1")
    driver.put("b", "b1")
    driver.put("a", "a2", "a3")

    holder = driver.hold("a")

    assert bodies(holder.receive()) == ["a1", "a2", "a3"]
    assert driver.accept("a") is None
    driver.put("b", "b2")
    driver.put("a", "a4")
    # Nobody has to ask for what comes while there is room for it
    assert bodies(driver.pump()) == ["a4"]
    assert bodies(driver.hold("b").receive()) == ["b1", "b2"]


def test_numbers_follow_the_order_of_arrival() -> None:
    """M3: also when one commit takes messages of several sessions."""
    driver = SessionDriver()
    sent = [("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("b", "5")]
    driver.queue.enqueue([driver.message(body, session=name) for name, body in sent], None)
    driver.commit()

    got = [*driver.hold("a").receive(), *driver.hold("b").receive()]

    assert {message.body: message.seq for message in got} == {body: int(body) for _, body in sent}


def test_what_was_in_hand_goes_back_uncounted_when_the_holder_closes() -> None:
    """M2, M3: close, detach and a lost connection are no attempt."""
    driver = SessionDriver()
    driver.put("a", "a1", "a2", "a3")
    first = driver.hold("a", credit=2)
    received = first.receive()
    assert bodies(received) == ["a1", "a2"]

    first.close()

    again = driver.hold("a").receive()
    assert [(message.body, message.delivery_count) for message in again] == [
        ("a1", 0),
        ("a2", 0),
        ("a3", 0),
    ]
    # The old locks settle nothing
    assert driver.settle(received[0], COMPLETE).error is not None
    assert driver.queue.locked_count == 3


def test_what_went_back_is_there_for_the_next_holder_at_once() -> None:
    """M3: also from a chunk that stays in memory because of a settlement on its way."""
    driver = SessionDriver()
    driver.put("a", "a1", "a2", "a3", "a4")
    holder = driver.hold("a", credit=3)
    first, _second, third = holder.receive()
    driver.settle(third, RELEASE)
    driver.settle(first, COMPLETE)

    holder.close()

    assert bodies(driver.hold("a").receive()) == ["a2", "a3", "a4"]


def test_a_session_whose_time_runs_out_counts_as_tried() -> None:
    """M2, M3: and its holder is told."""
    driver = SessionDriver(lock_duration_ms=LOCK_S * 1_000)
    driver.put("a", "a1", "a2")
    held = driver.hold("a", credit=1).receive()
    assert driver.queue.next_timer_s(driver.now) == START_S + LOCK_S

    driver.at(LOCK_S)
    driver.queue.handle_timer(driver.now)

    assert driver.tell() == ["lost a"]
    assert driver.settle(held[0], COMPLETE).error is not None
    driver.commit()
    again = driver.hold("a").receive()
    assert [(message.body, message.delivery_count) for message in again] == [("a1", 1), ("a2", 0)]


def test_a_renewed_session_and_its_messages_last_longer() -> None:
    """M2, M3: a message has no time of its own."""
    driver = SessionDriver(lock_duration_ms=LOCK_S * 1_000)
    driver.put("a", "a1")
    holder = driver.hold("a")
    (held,) = holder.receive()

    for seconds in range(50, 500, 50):
        driver.at(seconds)
        driver.queue.handle_timer(driver.now)
        assert driver.sessions.renew(holder.lock, driver.now)
    assert holder.lock.locked_until_ms == START_MS + (450 + LOCK_S) * 1_000

    assert driver.tell() == []
    assert driver.settle(held, COMPLETE).error is None
    driver.at(450 + LOCK_S)
    driver.queue.handle_timer(driver.now)
    assert driver.tell() == ["lost a"]
    assert not driver.sessions.renew(holder.lock, driver.now)


def test_a_session_cannot_be_renewed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """M3: a stuck holder lets go in the end."""
    monkeypatch.setattr(sessions_module, "SESSION_RENEWALS_MAX", 3)
    driver = SessionDriver()
    lock = driver.hold("a").lock

    assert [driver.sessions.renew(lock, driver.now) for _ in range(4)] == [True] * 3 + [False]


def test_credit_for_a_session_that_is_over_is_ignored() -> None:
    """M3: a flow may come in the moment between the end of a lock and the news of it."""
    driver = SessionDriver()
    holder = driver.hold("a")
    other = driver.hold("b")
    driver.at(LOCK_S + 1)
    assert driver.sessions.held_by("a", "me", driver.now) is None

    holder.consumer.credit = 10
    driver.queue.credit_available(holder.consumer)

    assert holder.receive() == [] == other.receive()
    driver.queue.handle_timer(driver.now)
    assert driver.tell() == ["lost a", "lost b"]


def test_only_the_owner_has_the_lock() -> None:
    """M3: renewal and state belong to the connection that took the session."""
    driver = SessionDriver()
    lock = driver.hold("a").lock

    assert driver.sessions.held_by("a", "me", driver.now) is lock
    assert driver.sessions.held_by("a", "somebody else", driver.now) is None
    assert driver.sessions.held_by("b", "me", driver.now) is None
    driver.at(10_000)
    assert driver.sessions.held_by("a", "me", driver.now) is None


def test_a_jump_of_the_wall_clock_ends_no_session() -> None:
    """M2, M3: the monotonic clock decides."""
    driver = SessionDriver(lock_duration_ms=LOCK_S * 1_000)
    driver.hold("a")
    driver.now = driver.now._replace(wall_ms=driver.now.wall_ms + 86_400_000)

    driver.queue.handle_timer(driver.now)

    assert driver.tell() == []


# -- order ------------------------------------------------------------------------------------


def test_an_abandoned_message_is_not_overtaken() -> None:
    """M3: later messages wait until its delivery count is on disk."""
    driver = SessionDriver()
    driver.put("a", "a1", "a2", "a3")
    holder = driver.hold("a", credit=1)
    (first,) = holder.receive()
    driver.settle(first, ABANDON)
    holder.consumer.credit = 3

    # When the holder has room for more before the attempt is written down
    assert holder.receive() == []
    driver.commit()

    # Then it gets them in order
    assert bodies(holder.receive()) == ["a1", "a2", "a3"]


def test_the_next_holder_does_not_overtake_either() -> None:
    """M3: the session ran out and was accepted before the attempts are on disk."""
    driver = SessionDriver(lock_duration_ms=LOCK_S * 1_000)
    driver.put("a", "a1", "a2", "a3")
    driver.hold("a", credit=2).receive()
    driver.at(LOCK_S)
    driver.queue.handle_timer(driver.now)

    holder = driver.hold("a")
    assert holder.receive() == []
    # A disk that is full at that moment changes nothing
    driver.refuse()
    assert holder.receive() == []
    driver.commit()

    again = holder.receive()
    assert [(m.body, m.delivery_count) for m in again] == [("a1", 1), ("a2", 1), ("a3", 0)]


def test_released_messages_keep_their_place() -> None:
    """M2, M3."""
    driver = SessionDriver()
    driver.put("a", "a1", "a2", "a3")
    holder = driver.hold("a", credit=2)
    first, second = holder.receive()
    driver.settle(second, RELEASE)
    driver.settle(first, RELEASE)
    holder.consumer.credit = 5

    assert bodies(holder.receive()) == ["a1", "a2", "a3"]


def test_exhausted_messages_leave_for_a_dead_letter_queue_without_sessions() -> None:
    """M2, M3."""
    driver = SessionDriver(max_delivery_count=1)
    driver.put("a", "bad", "good")
    holder = driver.hold("a", credit=1)
    (bad,) = holder.receive()
    driver.settle(bad, ABANDON)
    driver.read()
    driver.commit()

    holder.consumer.credit = 1
    assert bodies(holder.receive()) == ["good"]
    client = driver.client(queue=driver.dead)
    assert bodies(driver.receive(client, driver.dead)) == ["bad"]


def test_deferred_messages_wait_for_their_holder() -> None:
    """M2, M3: they do not make a session available."""
    driver = SessionDriver()
    driver.put("a", "later")
    holder = driver.hold("a")
    (later,) = holder.receive()
    driver.settle(later, DEFER)
    driver.commit()
    holder.close()

    driver.wait("next")
    assert driver.tell() == []
    assert driver.queue.deferred_count == 1
    driver.restart()
    assert driver.sessions.names() == []


# -- the next one -----------------------------------------------------------------------------


def test_the_longest_waiting_session_goes_to_the_longest_waiting_receiver() -> None:
    """M3: and a session that was let go queues up behind the others."""
    driver = SessionDriver()
    for session in ("a", "b", "a", "c"):
        driver.put(session, "x")
    for name in ("one", "two"):
        driver.wait(name)
    assert driver.tell() == ["one got a", "two got b"]

    (lock,) = [lock for lock in driver.sessions._locks.values() if lock.session == "a"]
    driver.sessions.release(lock, is_failure=False)
    for name in ("three", "four", "five"):
        driver.wait(name)
    assert driver.tell() == ["three got c", "four got a"]

    driver.put("d", "x")
    assert driver.tell() == ["five got d"]


def test_whoever_waits_is_told_when_the_time_is_over() -> None:
    """M3."""
    driver = SessionDriver()
    driver.wait("brief", 5)
    driver.wait("long", 50)
    driver.sessions.give_up(driver.wait("gone", 50))
    assert driver.queue.next_timer_s(driver.now) == START_S + 5

    driver.at(5)
    driver.queue.handle_timer(driver.now)
    assert driver.tell() == ["brief timed out"]

    driver.put("a", "x")
    assert driver.tell() == ["long got a"]
    assert not driver.sessions._waiters


def test_an_empty_session_is_not_the_next_one() -> None:
    """M3: what was handed out and settled, or has expired, makes no session available."""
    driver = SessionDriver()
    driver.put("a", "a1")
    driver.put("brief", "b1", ttl_s=5)
    holder = driver.hold("a")
    (message,) = holder.receive()
    driver.settle(message, COMPLETE)
    driver.commit()
    holder.close()
    driver.at(6)
    driver.wake()

    driver.wait("next")

    assert driver.tell() == []
    assert driver.sessions.names() == []


def test_nothing_is_given_before_it_is_on_disk() -> None:
    """M3, M8."""
    driver = SessionDriver()
    driver.wait("next")
    driver.queue.enqueue([driver.message("a1", session="a")], None)
    tell_queue = driver.begin_commit()
    assert driver.tell() == []

    tell_queue()

    assert driver.tell() == ["next got a"]


# -- state ------------------------------------------------------------------------------------


def test_a_state_is_seen_at_once_and_kept_for_good() -> None:
    """M3, M8."""
    driver = SessionDriver()
    note = driver.sessions.note_state
    assert note("a", b"one", None, answer := Answer())
    assert driver.sessions.noted_state("a") == (b"one",)
    tell_queue = driver.begin_commit()
    assert not answer.is_stored
    assert driver.sessions.noted_state("a") == (b"one",)
    assert note("a", None, None, Answer())
    assert driver.sessions.noted_state("a") == (None,)
    tell_queue()
    assert answer.is_stored

    # When the disk is full, the change is refused and the old state stays
    driver.refuse()
    assert driver.sessions.noted_state("a") is None
    assert driver.store.load_session_state(driver.queue.queue_id, "a") == b"one"


def state_bytes_on_disk(driver: SessionDriver) -> int:
    """What a restart would count."""
    store = driver.store
    states = [(name, store.load_session_state(driver.queue.queue_id, name)) for name in "abc"]
    return sum(session_state_bytes(name, state) for name, state in states if state is not None)


def test_states_count_against_the_quota_and_are_refused_above_it() -> None:
    """M3, M13: what is replaced or forgotten makes room."""
    driver = SessionDriver(max_size_mb=1)
    queue, note = driver.queue, driver.sessions.note_state
    large = bytes(600_000)
    assert note("a", large, None, Answer())
    assert queue.used_bytes == queue.state_bytes == session_state_bytes("a", large)
    assert not queue.has_room_for(600_000)

    # When a second one would be too much, then nothing changes; a smaller one fits
    assert not note("b", large, None, Answer())
    assert driver.sessions.noted_state("b") is None
    assert note("a", large[1:], None, Answer())
    driver.commit()
    assert queue.state_bytes == state_bytes_on_disk(driver) == session_state_bytes("a", large[1:])

    # When it is forgotten, there is room again
    assert note("a", None, large[1:], Answer())
    driver.commit()
    assert queue.state_bytes == state_bytes_on_disk(driver) == 0
    assert note("b", large, None, Answer())


def test_a_state_that_the_store_refused_is_not_counted() -> None:
    """M3, M8: also when the next one was noted down on top of it."""
    driver = SessionDriver()
    queue, note = driver.queue, driver.sessions.note_state
    assert note("a", b"x" * 10, None, Answer())
    assert note("b", b"x" * 20, None, Answer())
    driver.commit()

    # Given one on its way and another one on top of it, for one of two sessions
    assert note("a", b"x" * 1_000, b"x" * 10, Answer())
    assert note("b", b"x" * 2_000, b"x" * 20, Answer())
    queue.close_batch(driver.now)
    assert note("a", b"x" * 30, None, Answer())

    # When the disk refuses the first
    queue.failed()

    # Then the other session has what it had, and this one what was noted down last
    expected = session_state_bytes("a", b"x" * 30) + session_state_bytes("b", b"x" * 20)
    assert queue.state_bytes == expected
    assert driver.sessions.noted_state("b") is None
    queue.close_batch(driver.now)
    queue.failed()
    assert queue.state_bytes == state_bytes_on_disk(driver)


def test_a_state_is_known_until_no_read_can_find_the_one_before() -> None:
    """M3: whoever began to read before the commit is answered with what was noted down."""
    driver = SessionDriver()
    read = driver.queue.chunk_cache.grace.begin_read()
    driver.sessions.note_state("a", b"new", b"old", Answer())
    driver.commit()
    assert driver.sessions.noted_state("a") == (b"new",)
    driver.queue.chunk_cache.grace.end_read(read)
    assert driver.sessions.noted_state("a") is None


# -- restart and memory -----------------------------------------------------------------------


def test_sessions_are_found_again_after_a_restart() -> None:
    """M3, M8: oldest first, and nobody holds one."""
    driver = SessionDriver()
    driver.put("b", "b1", "b2")
    driver.put("a", "a1")
    (first, _second) = driver.hold("b").receive()
    driver.settle(first, COMPLETE)
    driver.commit()

    driver.restart()

    driver.wait("one")
    driver.wait("two")
    assert driver.tell() == ["one got b", "two got a"]
    driver.restart()
    assert bodies(driver.hold("b").receive()) == ["b2"]


def test_memory_does_not_grow_with_messages_or_with_sessions_that_are_gone() -> None:
    """M3: nor with those who asked for a session and left."""
    driver = SessionDriver()
    for round_number in range(40):
        session = f"s{round_number}"
        driver.put(session, *[str(n) * 500 for n in range(50)])
        holder = driver.hold(session)
        for message in holder.receive():
            driver.settle(message, COMPLETE)
        driver.commit()
        holder.close()
        for _ in range(20):
            driver.sessions.give_up(driver.wait("gone"))

    sessions = driver.sessions
    assert not (sessions._counts or sessions._free or sessions._locks or sessions._waiters)
    assert driver.queue.chunk_cache._chunks == {}
    assert len(sessions._times) <= sessions_module.TIMES_SPARE + 2
    # Messages that nobody receives stay on disk
    driver.put("waiting", *["x" * 1_000 for _ in range(1_000)])
    assert driver.queue.chunk_cache._chunks == {}


# -- by chance --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_sessions_keep_their_promises(seed: int) -> None:
    """M2, M3, M8: one holder, in order, nothing lost or twice, over crashes and full disks."""
    story = Story(seed)
    for _ in range(120):
        story.step()
    story.finish()


class Story:
    """Random work on a queue with three sessions, and what every receiver knows of it.

    Reads and commits are begun and told apart, so that a read may be older than what it meets.
    """

    NAMES = ("a", "b", "")

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.driver = SessionDriver(lock_duration_ms=LOCK_S * 1_000, max_delivery_count=1_000)
        self.sent: dict[str, list[str]] = {name: [] for name in self.NAMES}
        self.completed: set[str] = set()
        self.durable: set[str] = set()
        """Completed, and on disk."""
        self.holders: dict[str, Holder] = {}
        self.in_hand: dict[str, list[Received]] = {name: [] for name in self.NAMES}
        self.reads: deque[Callable[[], None]] = deque()
        self.commit: Callable[[], None] | None = None
        self.number = 0

    def step(self) -> None:
        name = self.chance.choice(self.NAMES)
        action = self.chance.choice(
            (self.send, self.send, self.take, self.take, self.take, self.settle, self.settle,
             self.settle, self.hold, self.let_go, self.pass_time, self.begin_commit,
             self.end_commit, self.end_commit, self.end_read, self.end_read, self.end_read,
             self.refuse, self.crash)
        )  # fmt: skip
        if action != self.crash or self.chance.random() < 0.3:
            action(name)

    def send(self, name: str) -> None:
        count = self.chance.randint(1, 4)
        together = [f"{name}{self.number + n}" for n in range(count)]
        self.number += count
        self.sent[name] += together
        self.end_commit(name)
        # They are on disk before anything else happens, with all that was settled before.
        self.driver.put(name, *together)
        self.durable |= self.completed

    def hold(self, name: str) -> None:
        is_held = name in self.holders
        holder = self.driver.accept(name, credit=self.chance.randint(1, 4))
        self.hear()
        assert (holder is None) == is_held
        if holder is not None:
            self.holders[name] = holder

    def take(self, name: str) -> None:
        holder = self.holders.get(name)
        if holder is None:
            return
        holder.consumer.credit = self.chance.randint(1, 4)
        self.driver.queue.credit_available(holder.consumer)
        self.pump()

    def pump(self) -> None:
        for message in self.driver.pump():
            # Others may have had room for more as well.
            assert message.run is not None and message.run.session is not None
            self.took(message.run.session.session, message)
        self.reads.extend(self.driver.begin_read())

    def took(self, name: str, message: Received) -> None:
        assert message.body in self.sent[name], "only of its own session"
        assert message.body not in self.completed, "what was completed is gone"
        held = [other.body for other in self.in_hand[name]]
        assert message.body not in held, "nothing twice"
        for earlier in self.sent[name][: self.sent[name].index(message.body)]:
            is_over = earlier in held or earlier in self.completed
            assert is_over, f"{message.body} overtook {earlier}"
        self.in_hand[name].append(message)

    def settle(self, name: str) -> None:
        if not self.in_hand[name]:
            return
        message = self.in_hand[name].pop(self.chance.randrange(len(self.in_hand[name])))
        outcome = self.chance.choice((COMPLETE, COMPLETE, ABANDON, RELEASE))
        answer = self.driver.settle(message, outcome)
        assert answer.error is None, "the holder still has it"
        if outcome is COMPLETE:
            self.completed.add(message.body)

    def let_go(self, name: str) -> None:
        holder = self.holders.pop(name, None)
        if holder is not None:
            holder.close()
            self.in_hand[name] = []

    def pass_time(self, _name: str) -> None:
        elapsed_s = self.driver.now.monotonic_s - START_S
        self.driver.at(elapsed_s + self.chance.choice((1, 20, LOCK_S)))
        self.driver.queue.handle_timer(self.driver.now)
        self.hear()

    def hear(self) -> None:
        for told in self.driver.tell():
            lost = told.removeprefix("lost ")
            del self.holders[lost]
            self.in_hand[lost] = []

    def begin_commit(self, _name: str) -> None:
        if self.commit is None:
            self.commit = self.driver.begin_commit()
            self.durable |= self.completed

    def end_commit(self, _name: str) -> None:
        if self.commit is not None:
            self.commit()
            self.commit = None

    def end_read(self, _name: str) -> None:
        if self.reads:
            self.reads.popleft()()

    def refuse(self, _name: str) -> None:
        # What the machine was told stays in it, and is written later.
        if self.commit is None:
            self.driver.refuse()

    def crash(self, _name: str) -> None:
        self.driver.restart()
        self.reads.clear()
        self.commit = None
        self.holders.clear()
        for name in self.NAMES:
            self.in_hand[name] = []
        self.completed = set(self.durable)

    def finish(self) -> None:
        for name in self.NAMES:
            self.let_go(name)
        self.end_commit("")
        self.driver.commit()
        while self.reads:
            self.end_read("")
        for name in self.NAMES:
            left = bodies(self.driver.hold(name, credit=1_000).receive())
            assert left == [body for body in self.sent[name] if body not in self.completed]
