"""Which destinations take messages now: back-off and half-open probes, one entry for each.

    CLOSED --failed--> OPEN --due--> HALF_OPEN --accepted--> CLOSED
                         ^------------- failed ----'  (a longer pause)

Rule 1: while the circuit of a destination is open nothing is sent there; when its pause is over
        one batch goes as a probe, and everything else waits for the result.
Rule 2: only a probe closes the circuit again. What was on its way when it opened changes nothing:
        neither a late success, nor more failures of the same moment.
Rule 3: the circuit of a destination that does not exist opens like the others. The destination is
        *missing* once it was not found for the whole grace period; a probe must not find it at the
        end of the period. After any other answer the grace period begins anew.
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

# A probe that nobody reported on (its task was cancelled) is given up after this long: longer
# than any send may take.
PROBE_S_MAX: Final = 120.0
# Destinations are data from messages; a flood of invented names must not fill the memory. Who takes
# the place of the oldest one takes over since when that was missing: otherwise, of more missing
# ones than this, none would ever be missing for long enough.
DESTINATIONS_MAX: Final = 10_000


class CircuitState(Enum):
    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


class SendSignal(Enum):
    """What a send told us about its destination."""

    ACCEPTED = auto()
    """It answered as a live one does; also when it refused one message for what it is."""
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
    """It has been gone for too long: dead-letter them."""


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
    """When the next probe may go, or when the one under way is given up."""
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
        """What to do with messages for ``path``; PROBE is said to one caller only.

        Somebody who may not wait does not get to probe a destination that gave no answer the
        last time: that takes a whole timeout.
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
        """Note what a send to ``path`` told us; ``timed_out`` when that was no answer at all,
        ``is_refused`` when a claim is missing for it."""
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
        """A probe that came to nothing, because there was nothing to send after all."""
        entry = self._entries.get(path)
        if entry is not None and entry.state is CircuitState.HALF_OPEN:
            entry.state = CircuitState.OPEN
            entry.due_s = now_s + self._backoff.pause_s(1, self._random)

    def _add_entry(self, path: str) -> _Entry:
        made = self._entries[path] = _Entry()
        if len(self._entries) > DESTINATIONS_MAX:
            made.gone_since_s = self._entries.pop(next(iter(self._entries))).gone_since_s
        return made

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
        """What kept them all away is over: every open circuit may be probed now."""
        for entry in self._entries.values():
            if entry.state is CircuitState.OPEN:
                entry.due_s = min(entry.due_s, now_s)

    def open_circuits(self) -> list[str]:
        """Destinations that take nothing now."""
        return [
            path for path, each in self._entries.items() if each.state is not CircuitState.CLOSED
        ]

    def refused(self) -> list[str]:
        """Those of them for which the claim Send is missing."""
        return [path for path in self.open_circuits() if self._entries[path].is_refused]

    def export_state(self, now_s: float) -> tuple[CircuitSnapshot, ...]:
        """Every destination that takes nothing, for another board."""
        return tuple(self._snapshot(path, entry, now_s) for path, entry in self._entries.items())

    def _snapshot(self, path: str, entry: _Entry, now_s: float) -> CircuitSnapshot:
        due_in_s = max(0.0, entry.due_s - now_s)
        if entry.state is CircuitState.HALF_OPEN:
            # Nobody will hear of this probe any more; another one may follow soon.
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
        """Open what is open elsewhere; whoever has seen more failures in a row knows better."""
        for note in notes:
            known = self._entries.get(note.path)
            if known is None or note.failure_count > known.failure_count:
                entry = known or self._add_entry(note.path)
                entry.state, entry.failure_count = CircuitState.OPEN, note.failure_count
                entry.due_s = now_s + note.due_in_s
                entry.gone_since_s = None if note.gone_for_s is None else now_s - note.gone_for_s
                entry.is_missing, entry.timed_out = note.is_missing, note.timed_out
                entry.is_refused = note.is_refused
