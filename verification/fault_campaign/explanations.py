"""Why a message is there twice: what was recorded, and what of it covers a copy or a delivery.

    a further delivery   is explained if whoever had the copy could not complete it: no answer, a
                         lock that was lost or ran out, a holder or a broker that was killed. One
                         that is read late, while or after somebody else has the copy, was sent
                         before: to a receiver that was stopped or cut off, and cannot complete it
    a further copy       is explained by an ambiguity that is recorded for this message and in whose
                         time a copy was made, at home or in the backlog. A receipt that leaves it
                         open covers one copy more, and so does a mover that was killed with a
                         message of the backlog in hand: it leaves no receipt, but another mover had
                         the message again later. The receipts of its whole last batch are gone with
                         it: of what the backlog handed out twice by then, nobody has any

Rule 1: this file reads no clock, no file and no network. Same events, same answer.
Rule 2: an ambiguity has a beginning and an end: what was made at another time has another cause.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from twinbus.mover.planning.receipts import ReceiptOutcome
from verification.fault_campaign.history import BY_ITSELF, Event
from verification.fault_campaign.windows import Window

# How long a mover may have a chunk in hand before it must give it up (half of a backlog lock).
CHUNK_S_MAX: Final = 30.0
# A mover writes the receipts of a batch at its end: after 15 s, and the chunk that it is at.
BATCH_S_MAX: Final = 15.0 + CHUNK_S_MAX
# What was under way may have hung in the network for the longest black hole, or before a broker
# for the longest stop.
LATE_S_MAX: Final = 20.0
# What a killed broker had sent is read by a receiver that nothing hinders.
PROMPT_S_MAX: Final = 2.0
LOCK_SHARE_MIN: Final = 0.8
# A receiver that goes on first hears of what it has completed, or gives up after five seconds when
# the broker is in trouble, too; then it reads what has waited for it.
HINDERED_S_MAX: Final = 8.0
# The rest of a syphon ends by itself so soon after a part of it was killed: one death.
ONE_DEATH_S: Final = 30.0
# Moments by a broker's wall clock are told in milliseconds, and that clock is kept right meanwhile.
CLOCK_S: Final = 0.5
MOVERS: Final = ("mover", "syphon")
DEATHS_IN_PARTS: Final = ("kill syphon's jvm", "kill syphon's source", "kill syphon's worker")
# What keeps a process from reading or answering; a clock that jumps does not.
HINDERING: Final = ("stop", "line", "key")


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """Between both moments a copy may have been made that nobody knows of."""

    cause: str
    begin_s: float
    end_s: float

    def covers(self, moments_s: Sequence[float]) -> int:
        begin_s, end_s = self.begin_s - CLOCK_S, self.end_s + CLOCK_S
        return sum(begin_s <= each <= end_s for each in moments_s)


@dataclass(frozen=True, slots=True)
class Held:
    """One delivery."""

    process: str
    at_s: float


@dataclass(slots=True)
class Copy:
    """One copy of a message in one place."""

    number: int
    enqueued_s: float
    held: list[Held] = field(default_factory=list)
    completed_s: list[float] = field(default_factory=list)
    unsure: list[Held] = field(default_factory=list)
    """Who tried to complete it and does not know, or came too late, and when that was told."""
    refused: list[Held] = field(default_factory=list)
    """Of those, who came too late for certain."""

    def is_refused(self, held: Held) -> bool:
        """Whether it is certain that this delivery was not completed."""
        told = [
            each for each in self.unsure if each.process == held.process and each.at_s >= held.at_s
        ]
        return bool(told) and all(each in self.refused for each in told)

    def is_unsure(self, process: str) -> bool:
        return any(each.process == process for each in self.unsure)


class Explanations:
    """Everything that was recorded, by message."""

    def __init__(self, broker: str, secondary: str, lock_s: float) -> None:
        self._broker, self._secondary, self._lock_s = broker, secondary, lock_s
        self._sends: dict[str, Ambiguity] = {}
        self._doubts: dict[str, int] = {}
        self._moves: dict[str, list[Ambiguity]] = defaultdict(list)
        self._moved_s: dict[str, list[float]] = defaultdict(list)
        self._clear_moves: dict[str, list[Ambiguity]] = defaultdict(list)
        """When a copy was made of which nobody is in doubt."""
        self._stored_s: dict[str, list[float]] = defaultdict(list)
        self._handed_out_s: dict[str, list[float]] = defaultdict(list)
        self._scheduled_s: dict[str, list[float]] = defaultdict(list)
        self._kills: list[Event] = []
        self._windows: Sequence[Window] = ()

    # -- what was recorded --------------------------------------------------------------------

    def see_windows(self, windows: Sequence[Window]) -> None:
        self._windows = windows

    def kill(self, event: Event) -> None:
        self._kills.append(event)

    def unclear_send(
        self, value: str, cause: str, begin_s: float, end_s: float, *, doubts: int = 1
    ) -> None:
        """All attempts of a send are one ambiguity: none of them ends after it. So many of them
        had no clear answer, and each may have made a copy."""
        self._sends[value] = Ambiguity(cause, begin_s, end_s + LATE_S_MAX)
        self._doubts[value] = doubts

    def move(self, value: str, event: Event) -> None:
        """A receipt; one that is not ok leaves it open whether a copy was made."""
        self._moved_s[value].append(event.at_s)
        if event.detail == ReceiptOutcome.MOVED:
            self._clear_moves[value].append(Ambiguity("", event.at_s - CHUNK_S_MAX, event.at_s))
        elif event.type != "ok":
            made = (event.at_s - CHUNK_S_MAX, event.at_s + LATE_S_MAX)
            self._moves[value].append(Ambiguity(f"a mover's receipt: {event.detail}", *made))

    def stored(self, value: str, at_s: float) -> None:
        """A copy in the backlog."""
        self._stored_s[value].append(at_s)

    def handed_out(self, value: str, at_s: float) -> None:
        """The backlog gave it to a mover."""
        self._handed_out_s[value].append(at_s)

    def scheduled(self, value: str, at_s: float) -> None:
        """A copy at home that becomes a message of its queue when it is due."""
        self._scheduled_s[value].append(at_s)

    def has_detour(self, value: str) -> bool:
        """Whether it was in the backlog, or waited at home for its time."""
        kinds = (self._stored_s, self._moved_s, self._handed_out_s, self._scheduled_s)
        return any(each.get(value) for each in kinds)

    @property
    def moved_count(self) -> int:
        return sum(bool(each) for each in self._moved_s.values())

    def moved_last_s(self, value: str) -> float:
        """When a mover had it for the last time."""
        return max(self._moved_s[value], default=0.0)

    def killed_s(self, process: str, after_s: float) -> float | None:
        """When a process was killed that was alive then."""
        found = [each.at_s for each in self._kills if each.process == process]
        return min((at_s for at_s in found if at_s >= after_s), default=None)

    # -- further copies -----------------------------------------------------------------------

    def of_copies(self, value: str, made_s: Sequence[float]) -> list[str]:
        """Causes for further copies of a message that was made in a place at these moments, one
        for each copy that they cover."""
        causes: list[str] = []
        made_s = self._really_made_s(value, made_s)
        send = self._sends.get(value)
        if send is not None:
            causes += [send.cause] * self._more_sent(value, send, made_s)
        causes += [each.cause for each in self._moves[value] if each.covers(made_s)]
        killed = max(self._killed_movers(value, made_s), self._lost_receipts(value))
        return causes + ["a mover was killed"] * killed

    def _really_made_s(self, value: str, made_s: Sequence[float]) -> Sequence[float]:
        """A copy that was scheduled shows when it became due; it was made when it was scheduled."""
        scheduled_s = self._scheduled_s[value]
        return [*scheduled_s, *made_s[len(scheduled_s) :]]

    def _more_sent(self, value: str, send: Ambiguity, made_s: Sequence[float]) -> int:
        # What a mover brought home is in the backlog, too, and counts once.
        then_s = [each for each in made_s if send.covers([each])]
        brought = sum(send.covers([each]) for each in self._brought_s(value, made_s))
        there = max(0, len(then_s) - brought) + send.covers(self._stored_s[value])
        # The line about a copy that nobody was told of may be lost with its broker: at home that
        # matters for scheduled ones, whose time is known by this line alone.
        silent = {self._secondary}
        if 0 < len(self._scheduled_s[value]) < len(made_s):
            silent.add(self._broker)
        killed = {each.process for each in self._kills if send.covers([each.at_s])}
        return max(0, min(self._doubts[value], there + len(silent & killed) - 1))

    def _brought_s(self, value: str, made_s: Sequence[float]) -> list[float]:
        """When those copies were made that a mover brought: of several that it may have been, the
        last one before its receipt."""
        left, found = sorted(made_s), []
        for move in sorted(self._clear_moves[value], key=lambda each: each.end_s):
            possible = [each for each in left if move.covers([each])]
            if possible:
                left.remove(possible[-1])
                found.append(possible[-1])
        return found

    def _killed_movers(self, value: str, made_s: Sequence[float]) -> int:
        """How many were killed with the message in hand, as far as can be known."""
        if not self._stored_s[value] and not self._moved_s[value]:
            return 0
        # Nobody has in hand what is not there yet.
        first_s = min(self._stored_s[value], default=-math.inf) - CLOCK_S
        deaths = [
            at_s
            for at_s in self._deaths_of_movers()
            if at_s >= first_s
            and Ambiguity("", at_s - CHUNK_S_MAX, at_s + LATE_S_MAX).covers(made_s)
        ]
        # Two in a row, each killed with the same message in hand, leave no receipt at all.
        again_s = self._moved_s[value] or deaths
        return sum(any(at_s > death_s for at_s in again_s) for death_s in deaths)

    def _lost_receipts(self, value: str) -> int:
        """How many deliveries of the backlog are without a receipt because their mover was killed;
        without any receipt one of them is that of the first copy."""
        received_s = self._moved_s[value]
        lost = sum(
            max(0, batch.covers(self._handed_out_s[value]) - batch.covers(received_s))
            for batch in self._lost_batches()
        )
        return max(0, lost - (not received_s))

    def _lost_batches(self) -> list[Ambiguity]:
        """The times whose receipts are gone. Deaths that follow each other closely have one time
        in common, and what the backlog handed out in it counts once."""
        batches: list[Ambiguity] = []
        for death_s in self._deaths_of_movers():
            batch = Ambiguity("", death_s - BATCH_S_MAX, self._gone_s(death_s))
            if batches and batch.begin_s <= batches[-1].end_s:
                batch = Ambiguity("", batches[-1].begin_s, max(batches.pop().end_s, batch.end_s))
            batches.append(batch)
        return batches

    def _gone_s(self, death_s: float) -> float:
        """When nothing was left of a mover. Of one that dies in parts the others go on, with what
        the backlog hands out to them, until its program has noticed."""
        parts = (each for each in self._windows if each.fault in DEATHS_IN_PARTS)
        return max([death_s, *(e.end_s for e in parts if e.touches(death_s, death_s, 0.0))])

    def _deaths_of_movers(self) -> list[float]:
        """When somebody killed a mover or a part of it, or it ended by itself. A syphon survives
        the kill of a worker, so the next kill of the same syphon is a death of its own."""
        last_s: dict[str, float] = {}
        deaths: list[float] = []
        for kill in self._kills:
            if role_of(kill.process) in MOVERS:
                is_rest = kill.detail == BY_ITSELF
                if not is_rest or kill.at_s - last_s.get(kill.process, -math.inf) > ONE_DEATH_S:
                    deaths.append(kill.at_s)
                last_s[kill.process] = kill.at_s
        return sorted(deaths)

    # -- further deliveries -------------------------------------------------------------------

    def of_delivery(self, copy: Copy, before: Held, after: Held) -> str | None:
        """Why a copy was in somebody's hands again."""
        if self._is_read_late(copy, before, after):
            return "a delivery that was read late"
        if copy.completed_s and copy.completed_s[0] < after.at_s:
            return None
        for told in copy.unsure:
            if told.process == before.process and (
                before.at_s <= told.at_s <= after.at_s
                or self._is_hindered(before.process, before.at_s, after.at_s)
            ):
                return "a completion without a clear answer"
        is_late = self._is_hindered(before.process, before.at_s)
        begin_s = before.at_s - (LATE_S_MAX if is_late else PROMPT_S_MAX)
        for kill in self._kills:
            is_between = begin_s <= kill.at_s <= after.at_s
            if is_between and kill.process in (self._broker, before.process):
                return f"a kill of its {role_of(kill.process)}"
        # The lock began when the broker sent it, which was before its receiver had it.
        if after.at_s - before.at_s >= self._lock_s * LOCK_SHARE_MIN:
            return "a lock that ran out"
        return None

    def _is_read_late(self, copy: Copy, before: Held, after: Held) -> bool:
        """It was sent before, to somebody who could not read it then and cannot complete it now."""
        free_s = max([before.at_s, *(at_s for at_s in copy.completed_s if at_s <= after.at_s)])
        told_s = [each.at_s for each in copy.unsure if each.process == after.process]
        return (
            after.at_s - free_s <= LATE_S_MAX
            and any(at_s >= after.at_s for at_s in told_s)
            and self._is_hindered(after.process, after.at_s)
        )

    def _is_hindered(self, process: str, begin_s: float, end_s: float | None = None) -> bool:
        """Whether a process was stopped, cut off or locked out then, or until just before."""
        role = process.partition(".")[0]
        return any(
            window.process in (role, role_of(role))
            and window.fault.startswith(HINDERING)
            and window.touches(begin_s, begin_s if end_s is None else end_s, HINDERED_S_MAX)
            for window in self._windows
        )


def role_of(process: str) -> str:
    """``sender-2.1`` is a sender."""
    return process.partition("-")[0]
