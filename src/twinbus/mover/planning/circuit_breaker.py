"""Which destinations are available: a circuit breaker with back-off and probes for each.

    CLOSED --failed--> OPEN --due--> HALF_OPEN --accepted--> CLOSED
                         ^------------- failed ----'  (a longer pause)

Rule 1: while the circuit of a destination is open nothing is sent there; when its pause is over
        one batch is sent as a probe, and everything else waits for the result.
Rule 2: only a probe closes the circuit again. Sends that were in progress when it opened change
        nothing: neither a late success, nor more failures of the same time.
Rule 3: the circuit of a destination that does not exist opens like the others. The destination is
        *missing* once it was not found for the whole grace period; a probe must not find it at the
        end of the period. After any other result the grace period starts again.
Rule 4: open circuits can be exported, and imported in another process, whose clock differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

from twinbus.failover.backoff import Backoff
from twinbus.mover.planning.work_order import CircuitSnapshot

__all__ = ["CircuitState", "DestinationCircuits", "SendPermission", "SendSignal"]

# A probe without a result (its task was cancelled) is ended after this time: longer than any send
# may take.
PROBE_S_MAX: Final = 120.0
# Destinations are data from messages; a flood of invented names must not fill the memory. A new
# entry that replaces the oldest one inherits the time since when that was missing: otherwise, with
# more missing destinations than this, none would ever be missing for long enough.
DESTINATIONS_MAX: Final = 10_000


class CircuitState(Enum):
    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


class SendSignal(Enum):
    """What the result of a send means for its destination."""

    ACCEPTED = auto()
    """It works; also when it refused one message because of its content."""
    FAILED = auto()
    GONE = auto()
    """It does not exist."""


class SendPermission(Enum):
    """What to do with messages for a destination."""

    SEND = auto()
    PROBE = auto()
    """Send one batch, and the rest once it was accepted."""
    WAIT = auto()
    GIVE_UP = auto()
    """It has been missing for too long: dead-letter them."""


TRANSITIONS: Final[Mapping[CircuitState, Mapping[SendSignal, CircuitState]]] = {
    CircuitState.CLOSED: {
        SendSignal.ACCEPTED: CircuitState.CLOSED,
        SendSignal.FAILED: CircuitState.OPEN,
        SendSignal.GONE: CircuitState.OPEN,
    },
    CircuitState.OPEN: {
        # Sent before it opened (rule 2).
        SendSignal.ACCEPTED: CircuitState.OPEN,
        SendSignal.FAILED: CircuitState.OPEN,
        SendSignal.GONE: CircuitState.OPEN,
    },
    CircuitState.HALF_OPEN: {
        SendSignal.ACCEPTED: CircuitState.CLOSED,
        SendSignal.FAILED: CircuitState.OPEN,
        SendSignal.GONE: CircuitState.OPEN,
    },
}


@dataclass(slots=True)
class _Entry:
    state: CircuitState = CircuitState.CLOSED
    failure_count: int = 0
    due_s: float = 0.0
    """When the next probe is due, or when the one in progress is ended."""
    gone_since_s: float | None = None
    is_missing: bool = False
    timed_out: bool = False
    is_refused: bool = False


class DestinationCircuits:
    """The circuit of every destination that has failed; all other circuits are closed."""

    def __init__(self, backoff: Backoff, random: Random) -> None:
        self._backoff = backoff
        self._random = random
        self._entries: dict[str, _Entry] = {}

    def state(self, path: str) -> CircuitState:
        entry = self._entries.get(path)
        return CircuitState.CLOSED if entry is None else entry.state

    def admit(self, path: str, now_s: float, *, may_wait: bool = True) -> SendPermission:
        """What to do with messages for ``path``; PROBE is returned to one caller only.

        A caller that may not wait does not probe a destination that timed out the last time: the
        probe would take a whole timeout.
        """
        entry = self._entries.get(path)
        if entry is None or entry.state is CircuitState.CLOSED:
            return SendPermission.SEND
        if now_s >= entry.due_s and (may_wait or not entry.timed_out):
            entry.state, entry.due_s = CircuitState.HALF_OPEN, now_s + PROBE_S_MAX
            return SendPermission.PROBE
        return SendPermission.GIVE_UP if entry.is_missing else SendPermission.WAIT

    def receive(
        self,
        path: str,
        signal: SendSignal,
        now_s: float,
        *,
        pause_s_min: float = 0.0,
        timed_out: bool = False,
        is_refused: bool = False,
    ) -> None:
        """Note the result of a send to ``path``; ``timed_out``: there was no answer,
        ``is_refused``: the Send claim is missing."""
        entry = self._entries.get(path)
        if entry is None:
            if signal is SendSignal.ACCEPTED:
                return
            entry = self._add_entry(path)
        before, entry.state = entry.state, TRANSITIONS[entry.state][signal]
        if entry.state is CircuitState.CLOSED:
            del self._entries[path]
        elif before is not CircuitState.OPEN:
            entry.timed_out, entry.is_refused = timed_out, is_refused
            self._open(entry, signal, now_s, pause_s_min)

    def release(self, path: str, now_s: float) -> None:
        """The probe did not take place, because there was nothing to send."""
        entry = self._entries.get(path)
        if entry is not None and entry.state is CircuitState.HALF_OPEN:
            entry.state = CircuitState.OPEN
            entry.due_s = now_s + self._backoff.pause_s(1, self._random)

    def _add_entry(self, path: str) -> _Entry:
        entry = self._entries[path] = _Entry()
        if len(self._entries) > DESTINATIONS_MAX:
            entry.gone_since_s = self._entries.pop(next(iter(self._entries))).gone_since_s
        return entry

    def _open(self, entry: _Entry, signal: SendSignal, now_s: float, pause_s_min: float) -> None:
        entry.failure_count += 1
        pause_s = self._backoff.pause_s(entry.failure_count, self._random)
        entry.due_s = now_s + max(pause_s, pause_s_min)
        if signal is SendSignal.GONE:
            if entry.gone_since_s is None:
                entry.gone_since_s = now_s
            entry.is_missing = now_s - entry.gone_since_s >= self._backoff.gone_grace_s
        else:
            entry.gone_since_s, entry.is_missing = None, False

    def is_missing(self, path: str) -> bool:
        """Whether it was missing for the whole grace period, and at its end."""
        entry = self._entries.get(path)
        return entry is not None and entry.is_missing

    def allow_probes_now(self, now_s: float) -> None:
        """The primary is reachable again: every open circuit may be probed now."""
        for entry in self._entries.values():
            if entry.state is CircuitState.OPEN:
                entry.due_s = min(entry.due_s, now_s)

    def open_circuits(self) -> list[str]:
        """Destinations whose circuits are open or half-open."""
        return [
            path for path, each in self._entries.items() if each.state is not CircuitState.CLOSED
        ]

    def refused(self) -> list[str]:
        """Those of them for which the Send claim is missing."""
        return [path for path in self.open_circuits() if self._entries[path].is_refused]

    def export_state(self, now_s: float) -> tuple[CircuitSnapshot, ...]:
        """All open circuits, for another process."""
        return tuple(self._snapshot(path, entry, now_s) for path, entry in self._entries.items())

    def _snapshot(self, path: str, entry: _Entry, now_s: float) -> CircuitSnapshot:
        due_in_s = max(0.0, entry.due_s - now_s)
        if entry.state is CircuitState.HALF_OPEN:
            # The result of this probe is lost; another probe may follow soon.
            due_in_s = self._backoff.first_s
        gone_since_s = entry.gone_since_s
        gone_for_s = None if gone_since_s is None else max(0.0, now_s - gone_since_s)
        return CircuitSnapshot(
            path,
            entry.failure_count,
            due_in_s,
            gone_for_s,
            entry.is_missing,
            entry.timed_out,
            entry.is_refused,
        )

    def import_state(self, notes: Iterable[CircuitSnapshot], now_s: float) -> None:
        """Open the circuits that are open elsewhere; the larger count of failures in a row wins."""
        for note in notes:
            known = self._entries.get(note.path)
            if known is None or note.failure_count > known.failure_count:
                entry = known or self._add_entry(note.path)
                entry.state, entry.failure_count = CircuitState.OPEN, note.failure_count
                entry.due_s = now_s + note.due_in_s
                entry.gone_since_s = None if note.gone_for_s is None else now_s - note.gone_for_s
                entry.is_missing, entry.timed_out = note.is_missing, note.timed_out
                entry.is_refused = note.is_refused
