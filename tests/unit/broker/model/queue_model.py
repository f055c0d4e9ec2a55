"""What a queue is, as plainly as it can be said: a list of messages and a clock.

It knows nothing of chunks, commits or disks. Every method says what the client should see.

Rule 1: sequence numbers are given in order, also to scheduled messages, which get a new one when
        they appear.
Rule 2: the oldest free message goes first. A message that comes back keeps its place.
Rule 3: a lock ends by the monotonic clock, time to live and schedules by the wall clock.
Rule 4: a message that is held does not expire, but is not shown either once its time is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from tests.unit.broker.model.station import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Got
from twinbus.common.clock import Instant


@dataclass(eq=False)
class Held:
    """One message."""

    label: str
    seq: int
    expires_ms: int | None = None
    due_ms: int | None = None
    ttl_ms: int | None = None
    delivery_count: int = 0
    is_deferred: bool = False
    token: UUID | None = None
    locked_until_s: float = 0.0
    session: str | None = None

    def is_expired(self, now: Instant) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now.wall_ms

    def seen(self) -> tuple[str, int, int]:
        return self.label, self.seq, self.delivery_count


def seen(messages: list[Got]) -> list[tuple[str, int, int]]:
    """What of a message is compared."""
    return [(each.label, each.seq, each.delivery_count) for each in messages]


@dataclass
class QueueModel:
    """A queue and the labels of its dead letters."""

    lock_duration_ms: int
    max_delivery_count: int
    dead_letters_expired: bool
    next_seq: int = 1
    held: dict[int, Held] = field(default_factory=dict)
    scheduled: dict[int, Held] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    """Label and reason of everything that was dead-lettered and is still there."""

    # -- sending --------------------------------------------------------------------------

    def send(
        self, label: str, now: Instant, ttl_ms: int | None = None, session: str | None = None
    ) -> None:
        expires_ms = None if ttl_ms is None else now.wall_ms + ttl_ms
        self._append(Held(label, 0, expires_ms, session=session))

    def _append(self, message: Held) -> None:
        message.seq = self._number()
        self.held[message.seq] = message

    def _number(self) -> int:
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        return seq

    def schedule(
        self, label: str, due_ms: int, ttl_ms: int | None = None, session: str | None = None
    ) -> int:
        seq = self._number()
        self.scheduled[seq] = Held(label, seq, due_ms=due_ms, ttl_ms=ttl_ms, session=session)
        return seq

    def cancel(self, seq: int) -> bool:
        return self.scheduled.pop(seq, None) is not None

    # -- time -----------------------------------------------------------------------------

    def next_event_s(self, now: Instant) -> float | None:
        """When something happens by itself, on the monotonic clock."""
        walls = [m.expires_ms for m in self.held.values() if m.expires_ms is not None]
        walls += [m.due_ms for m in self.scheduled.values() if m.due_ms is not None]
        times = [now.monotonic_s + (wall - now.wall_ms) / 1_000 for wall in walls]
        times += [m.locked_until_s for m in self.held.values() if m.token is not None]
        return min((at for at in times if at > now.monotonic_s), default=None)

    def at(self, now: Instant) -> None:
        """It is now ``now``."""
        for message in list(self.held.values()):
            if message.token is not None and message.locked_until_s <= now.monotonic_s:
                self._fail(message)
        due = [m for m in self.scheduled.values() if (m.due_ms or 0) <= now.wall_ms]
        for message in sorted(due, key=lambda m: (m.due_ms, m.seq)):
            del self.scheduled[message.seq]
            ttl_ms = message.ttl_ms
            expires_ms = None if ttl_ms is None else (message.due_ms or 0) + ttl_ms
            self._append(Held(message.label, 0, expires_ms, session=message.session))
        for message in list(self.held.values()):
            if message.token is None and message.is_expired(now):
                self._expire(message)

    def _expire(self, message: Held) -> None:
        del self.held[message.seq]
        if self.dead_letters_expired:
            self.dead[message.label] = "TTLExpiredException"

    def _fail(self, message: Held) -> None:
        """An attempt to deliver it came to nothing."""
        message.token = None
        message.delivery_count += 1
        if message.delivery_count >= self.max_delivery_count:
            self._bury(message, "MaxDeliveryCountExceeded")

    def _bury(self, message: Held, reason: str) -> None:
        del self.held[message.seq]
        self.dead[message.label] = reason

    # -- receiving ------------------------------------------------------------------------

    def free(self, now: Instant) -> list[Held]:
        """What can be received, oldest first."""
        return [
            message
            for _seq, message in sorted(self.held.items())
            if message.token is None and not message.is_deferred and not message.is_expired(now)
        ]

    def take(self, messages: list[Held], got: list[Got], now: Instant) -> None:
        """The client received these, and holds their locks."""
        for message, received in zip(messages, got, strict=True):
            message.token = received.token
            message.locked_until_s = now.monotonic_s + self.lock_duration_ms / 1_000

    def delete(self, messages: list[Held]) -> None:
        for message in messages:
            del self.held[message.seq]

    def deferred(self, seq: int, now: Instant) -> Held | None:
        """The message that can be received by its number."""
        message = self.held.get(seq)
        if message is None or not message.is_deferred or message.token is not None:
            return None
        return None if message.is_expired(now) else message

    def holder(self, got: Got) -> Held | None:
        """The message whose lock this is; None when the lock is lost."""
        message = self.held.get(got.seq)
        return message if message is not None and message.token == got.token else None

    def settle(self, message: Held, outcome: str, now: Instant) -> None:
        message.token = None
        if outcome == COMPLETE:
            del self.held[message.seq]
        elif outcome == ABANDON:
            self._fail(message)
        elif outcome == DEFER:
            message.is_deferred = True
        elif outcome == DEAD_LETTER:
            self._bury(message, "")
        else:
            assert outcome == RELEASE
        self.at(now)

    def renew(self, message: Held, now: Instant) -> int:
        message.locked_until_s = now.monotonic_s + self.lock_duration_ms / 1_000
        return now.wall_ms + self.lock_duration_ms

    # -- looking --------------------------------------------------------------------------

    def peek(self, first: int, count: int, now: Instant) -> list[Held]:
        """Everything from a number on, in whatever state, that has not expired."""
        everything = {**self.held, **self.scheduled}
        shown = [m for seq, m in sorted(everything.items()) if seq >= first]
        return [message for message in shown if not message.is_expired(now)][:count]

    def restarted(self, now: Instant) -> None:
        """Locks do not outlive the broker."""
        for message in self.held.values():
            message.token = None
        self.at(now)
