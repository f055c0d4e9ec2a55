"""What sessions add to a queue: a holder, its time, and a note that it keeps.

Rule 1: one receiver holds a session, and only it is handed the session's messages.
Rule 2: a message lock lasts as long as the session's. When that time runs out, what was in hand
        counts as tried; when the holder lets go by itself, it does not.
Rule 3: the state outlives holders, messages and restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tests.unit.broker.model.queue_model import Held, QueueModel
from tests.unit.broker.model.station import Got
from twinbus.common.clock import Instant


@dataclass
class SessionModel(QueueModel):
    """A queue with sessions."""

    holds: dict[str, float] = field(default_factory=dict)
    """Until when each session is held, on the monotonic clock."""
    states: dict[str, bytes] = field(default_factory=dict)

    def next_event_s(self, now: Instant) -> float | None:
        at_s = super().next_event_s(now)
        ends = [end_s for end_s in self.holds.values() if end_s > now.monotonic_s]
        return min([*ends, *([] if at_s is None else [at_s])], default=None)

    def at(self, now: Instant) -> None:
        for session, end_s in list(self.holds.items()):
            if end_s <= now.monotonic_s:
                del self.holds[session]
                for message in self._in_hand(session):
                    self._fail(message)
        super().at(now)

    def _in_hand(self, session: str) -> list[Held]:
        held = [m for m in self.held.values() if m.session == session]
        return [message for message in held if message.token is not None]

    # -- holding --------------------------------------------------------------------------

    def accept(self, session: str, now: Instant) -> bool:
        """Whether the session can be taken; it is then."""
        if session in self.holds:
            return False
        self.holds[session] = now.monotonic_s + self.lock_duration_ms / 1_000
        return True

    def waiting(self) -> set[str]:
        """The sessions that can be given to whoever wants the next one."""
        return set(self.with_messages()) - self.holds.keys()

    def with_messages(self) -> list[str]:
        """The sessions that have messages which are not put aside, by name."""
        names = {m.session for m in self.held.values() if not m.is_deferred}
        return sorted(name for name in names if name is not None)

    def let_go(self, session: str, now: Instant) -> None:
        del self.holds[session]
        for message in self._in_hand(session):
            message.token = None
        self.at(now)

    def renew_session(self, session: str, now: Instant) -> int:
        self.holds[session] = now.monotonic_s + self.lock_duration_ms / 1_000
        return now.wall_ms + self.lock_duration_ms

    def restarted(self, now: Instant) -> None:
        self.holds = {}
        super().restarted(now)

    # -- messages -------------------------------------------------------------------------

    def free_in(self, session: str, now: Instant) -> list[Held]:
        return [message for message in self.free(now) if message.session == session]

    def take(self, messages: list[Held], got: list[Got], now: Instant) -> None:
        super().take(messages, got, now)
        for message in messages:
            message.locked_until_s = math.inf
