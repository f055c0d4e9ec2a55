"""Which backlog queue a diverted send uses.

    in rotation --fails--> withdrawn, for every sender of the factory (P9)
    withdrawn --pause over--> half-open: one send tries it
    half-open --succeeds--> in rotation        half-open --fails--> withdrawn, for longer

Rule 1: a sender picks a queue at random once and keeps it (P8): its ``QueueAffinity`` remembers.
Rule 2: a withdrawal applies to all senders at once, because a pair has one rotation.
Rule 3: a throttled queue stays in the rotation; it is only the last choice for a while (F2).
        One that refuses a message that another accepts is withdrawn with its reason (P20). It may
        accept other messages in between; its pauses grow nevertheless.
Rule 4: pauses grow for the benefit of senders that have another queue. With none left in the
        rotation each queue is tried again after the shortest pause: no other queue accepts the
        messages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from twinbus.common.argument_types import is_number
from twinbus.errors import ConfigurationError
from twinbus.failover.events import BacklogQueueReinstated, BacklogQueueWithdrawn, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationPolicy:
    """How long a queue that failed stays withdrawn."""

    pause_s: float = 2.0
    pause_s_max: float = 60.0
    """The pause doubles with every failure in a row up to this, while another queue works."""
    forgotten_s: float = 600.0
    """After this time a refusal no longer makes the next pause longer."""
    busy_s: float = 10.0
    """The shortest time for which a throttled queue is avoided (F2)."""

    def __post_init__(self) -> None:
        for name in ("pause_s", "pause_s_max", "busy_s"):
            if not is_number(getattr(self, name)) or getattr(self, name) < 0:
                raise ConfigurationError(
                    f"Invalid value for {name}: {getattr(self, name)!r:.40}",
                    hint="Use a number of seconds, 0 or more",
                )


@dataclass(slots=True)
class QueueAffinity:
    """One sender's place in the rotation."""

    queue: str | None = None


@dataclass(slots=True)
class _BacklogQueueState:
    """What is known about one queue."""

    queue: str
    withdrawn_until_s: float | None = None
    failed_s: float = float("-inf")
    """The last time."""
    failures: int = 0
    refusals: int = 0
    """Of messages that another queue accepted; not reset when this queue accepts one."""
    refused_s: float = float("-inf")
    reason: str = ""
    """Why it was withdrawn."""
    accepted_s: float = float("-inf")
    """When it last accepted a message."""
    is_probed: bool = False
    busy_until_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class BacklogQueueChoice:
    """A queue to try."""

    queue: str
    is_probe: bool = False


class BacklogRotation:
    """All backlog queues of a pair."""

    def __init__(self, queues: Sequence[str], policy: RotationPolicy | None = None) -> None:
        self._policy = policy or RotationPolicy()
        self._queue_states = {queue: _BacklogQueueState(queue) for queue in queues}

    def add(self, queues: Sequence[str]) -> None:
        """Add queues that were found after the pair was created (P19)."""
        for queue in queues:
            self._queue_states.setdefault(queue, _BacklogQueueState(queue))

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(self._queue_states)

    @property
    def withdrawn(self) -> tuple[str, ...]:
        """The queues that senders do not use now, half-open ones included."""
        return tuple(
            one.queue for one in self._queue_states.values() if one.withdrawn_until_s is not None
        )

    @property
    def withdrawn_reasons(self) -> dict[str, str]:
        """The same with the reasons."""
        return {queue: self._queue_states[queue].reason for queue in self.withdrawn}

    def choose(
        self,
        affinity: QueueAffinity,
        now_s: float,
        rng: Random,
        *,
        avoid: Collection[str] = (),
        has_refusal: bool = False,
    ) -> BacklogQueueChoice | None:
        """The queue for the next attempt of this sender, or None when there is none now.

        ``avoid`` holds the queues that this send has tried already. With ``has_refusal`` one of
        them has refused the message; the best one to compare with is the queue that was the last
        to accept a message.
        """
        due = [one for one in self._queue_states.values() if self._is_due(one, now_s)]
        usable = [
            one
            for one in self._queue_states.values()
            if one.withdrawn_until_s is None
            and one.queue not in avoid
            and one.busy_until_s <= now_s
        ]
        if due and not (avoid and usable):
            # The first send after the pause tries the queue; the others go on as before. It tries
            # one such queue only: with many silent ones its time would be used up before it
            # reaches one that works.
            probed = rng.choice(due)
            probed.is_probed = True
            return BacklogQueueChoice(probed.queue, is_probe=True)
        if not usable:
            return None
        if has_refusal:
            latest_s = max(one.accepted_s for one in usable)
            return BacklogQueueChoice(
                rng.choice([one for one in usable if one.accepted_s == latest_s]).queue
            )
        queue = _keep_or_pick(affinity, usable, rng)
        return None if queue is None else BacklogQueueChoice(queue)

    def expect(self, affinity: QueueAffinity, now_s: float, rng: Random) -> str | None:
        """The queue that this sender will use unless something changes: for opening its link
        before it is needed. Withdrawn queues are not tried."""
        usable = [
            one
            for one in self._queue_states.values()
            if one.withdrawn_until_s is None and one.busy_until_s <= now_s
        ]
        return _keep_or_pick(affinity, usable, rng)

    def next_chance_s(self) -> float | None:
        """When a queue can be tried again, or None while other sends try all that are left."""
        times = [
            one.busy_until_s if one.withdrawn_until_s is None else self._due_s(one)
            for one in self._queue_states.values()
            if not one.is_probed
        ]
        return min(times, default=None)

    def succeeded(self, queue: str, now_s: float) -> list[Event]:
        """The queue accepted a message; a late answer also proves that it works."""
        one = self._queue_states[queue]
        one.is_probed = False
        one.failures = 0
        one.accepted_s = now_s
        if one.withdrawn_until_s is None:
            return []
        one.withdrawn_until_s = None
        return [BacklogQueueReinstated(queue, now_s)]

    def failed(
        self, queue: str, now_s: float, reason: str, *, is_probe: bool, is_refusal: bool = False
    ) -> list[Event]:
        """The queue did not accept a message, with ``is_refusal`` one that another queue accepted:
        no send tries it for a while."""
        one = self._queue_states[queue]
        was_withdrawn = one.withdrawn_until_s is not None
        if was_withdrawn and not is_probe:
            return []  # Attempts that were in progress when another one withdrew the queue.
        one.is_probed = False
        doublings = max(one.failures, self._refusals(one, now_s) if is_refusal else 0)
        pause_s = min(self._policy.pause_s * 2.0**doublings, self._policy.pause_s_max)
        one.failures = min(one.failures + 1, 32)
        one.reason = reason
        one.withdrawn_until_s = now_s + pause_s
        one.failed_s = now_s
        return [] if was_withdrawn else [BacklogQueueWithdrawn(queue, now_s, reason)]

    def _refusals(self, one: _BacklogQueueState, now_s: float) -> int:
        """How many refusals there were before this one."""
        before = one.refusals if now_s - one.refused_s < self._policy.forgotten_s else 0
        one.refusals, one.refused_s = min(before + 1, 32), now_s
        return before

    def throttled(self, queue: str, now_s: float, *, is_probe: bool) -> list[Event]:
        """The queue is throttled: it responds, so it is not withdrawn."""
        one = self._queue_states[queue]
        one.busy_until_s = now_s + self._policy.busy_s
        return self.succeeded(queue, now_s) if is_probe else []

    def release(self, choice: BacklogQueueChoice) -> None:
        """The send that was to try this queue was cancelled: another send may try it."""
        if choice.is_probe:
            self._queue_states[choice.queue].is_probed = False

    def _is_due(self, one: _BacklogQueueState, now_s: float) -> bool:
        return one.withdrawn_until_s is not None and not one.is_probed and now_s >= self._due_s(one)

    def _due_s(self, one: _BacklogQueueState) -> float:
        """When a withdrawn queue may be tried again."""
        assert one.withdrawn_until_s is not None
        if any(other.withdrawn_until_s is None for other in self._queue_states.values()):
            return one.withdrawn_until_s
        return min(one.withdrawn_until_s, one.failed_s + self._policy.pause_s)


def _keep_or_pick(
    affinity: QueueAffinity, usable: list[_BacklogQueueState], rng: Random
) -> str | None:
    """The sender's queue, if it can be used, else another one from now on (P8)."""
    if usable and affinity.queue not in {one.queue for one in usable}:
        affinity.queue = rng.choice(usable).queue
    return affinity.queue if usable else None
