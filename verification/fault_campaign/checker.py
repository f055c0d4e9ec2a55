"""The promise, over a history that ends with a complete drain (Jepsen's total queue, and stricter).

    acknowledged = received + dead-lettered with a reason + expired
                   + in a queue when somebody deleted it                   nothing is lost
    received was attempted, and every field is as it was sent              nothing from nowhere
    every further copy, and every further delivery of a copy, has a cause  nothing twice without
                                                                           a reason
    no ping was seen, and nothing is left anywhere                         closed books
    what took no detour is in the order in which it was acknowledged       I5

A *copy* is one message in one place, known by its sequence number there; a *delivery* is one copy
in a receiver's hands.

What explains either is in explanations.py.

Rule 1: this file reads no clock, no file and no network. Same events, same verdict.
Rule 2: what was never answered may have happened; what was answered with ok has.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from verification.fault_campaign.explanations import CLOCK_S, Copy, Explanations, Held
from verification.fault_campaign.history import ASKED, LOCK_LOST, Event
from verification.fault_campaign.windows import Window, windows_of

__all__ = ["Rules", "Verdict", "check"]

# A receiver completes what it has at once, and hears of it within seconds unless it is stopped.
IN_HAND_S_MAX: Final = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the checker must know about the entities."""

    places: Mapping[str, Sequence[str]]
    """Where a message to an entity arrives: the queue itself, or every subscription."""
    without_duplicates: frozenset[str] = frozenset()
    """Places that detect duplicates: one copy, whatever happens."""
    ttl_s: Mapping[str, float] = field(default_factory=dict)
    """How long a message to an entity lives, where that is shorter than the run."""
    lock_s: float = 60.0
    send_s: float = 60.0
    """How long a send may take."""
    broker: str = "primary"
    """The process that receivers receive from."""
    secondary: str = "secondary"
    """The process that has the backlog."""
    without_order: frozenset[str] = frozenset()
    """Places whose numbers begin again: they are deleted and made again."""
    reasons: frozenset[str] | None = None
    """For which a message may be dead-lettered; None: for any."""
    expected_print: Callable[[str], str] | None = None
    """Every field of the message that was sent under a value (messages.py)."""


@dataclass(slots=True)
class Verdict:
    """What is wrong, by kind, and what was counted."""

    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    pings_seen: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    """Two copies where duplicates are detected."""
    changed: list[str] = field(default_factory=list)
    """Messages with a field that is not as it was sent."""
    unavailable: list[str] = field(default_factory=list)
    """Sends that failed although the backlog could be reached (availability.py)."""
    late: list[str] = field(default_factory=list)
    """Sends that took longer than they may, or never ended (availability.py)."""
    disordered: list[str] = field(default_factory=list)
    """Messages that are behind others that were sent after they had been acknowledged."""
    disturbed: list[str] = field(default_factory=list)
    """What the prober noticed of the trouble of others."""
    dead_without_reason: list[str] = field(default_factory=list)
    dead_without_need: list[str] = field(default_factory=list)
    """For a reason that nothing in the run gives."""
    left: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    """What was planned and did not happen, and who ended without being asked (undone.py)."""
    attempted: int = 0
    acknowledged: int = 0
    failed: int = 0
    """Sends that ended with an error or not at all."""
    received: int = 0
    """Different messages in different places."""
    recovered: int = 0
    """Of the failed ones, those that arrived all the same."""
    moved: int = 0
    """Messages that a mover brought home, at least once."""
    dead_lettered: int = 0
    expired: int = 0
    removed: int = 0
    """Acknowledged, and in a queue when somebody deleted it."""
    excused: Counter[str] = field(default_factory=Counter)
    """Sends that failed, by what was wrong then."""
    probe_s: Mapping[str, float] = field(default_factory=dict)
    """The prober's 99th percentiles."""
    duplicates: Counter[str] = field(default_factory=Counter)
    """Those with an explanation, by cause."""
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def complaints(self) -> dict[str, list[str]]:
        """Everything that fails a run; empty when the promise was kept."""
        found = {
            "lost": self.lost,
            "unexpected": self.unexpected,
            "pings seen": self.pings_seen,
            "unexplained duplicates": self.unexplained,
            "duplicates where they are detected": self.repeated,
            "changed": self.changed,
            "unavailable": self.unavailable,
            "late": self.late,
            "out of order": self.disordered,
            "disturbed": self.disturbed,
            "dead-lettered without a reason": self.dead_without_reason,
            "dead-lettered without need": self.dead_without_need,
            "left behind": self.left,
            "not done": self.undone,
        }
        return {name: values for name, values in found.items() if values}

    @property
    def is_kept(self) -> bool:
        return not self.complaints


def check(events: Iterable[Event], rules: Rules) -> Verdict:
    """The verdict over a history, in the order of its times."""
    return _Check(sorted(events, key=lambda event: event.at_s), rules).verdict


@dataclass(slots=True)
class _Sent:
    """One message that somebody tried to send."""

    entity: str
    invoked_s: float
    ended_s: float | None = None
    is_acknowledged: bool = False
    is_refused: bool = False
    unclear: str = ""
    """Why nobody can say whether it was stored, or how often."""
    doubts: int = 0
    """Attempts without a clear answer."""


class _Check:
    def __init__(self, events: Sequence[Event], rules: Rules) -> None:
        self._rules = rules
        self._sent: dict[str, _Sent] = {}
        self._copies: dict[tuple[str, str], dict[int, Copy]] = defaultdict(dict)
        """By place and value."""
        self._dead: set[tuple[str, str]] = set()
        self._removed: set[tuple[str, str]] = set()
        self._expired: dict[str, float] = {}
        """When the broker says that its time was over."""
        self._audited: set[tuple[str, int]] = set()
        """Place and number of the copies of which the broker says so."""
        self._primary_kills_s: list[float] = []
        self._why = Explanations(rules.broker, rules.secondary, rules.lock_s)
        self.verdict = Verdict()
        for event in events:
            self._read(event)
        self._windows: Sequence[Window] = windows_of(events)
        self._why.see_windows(self._windows)
        self._close_sends()
        self._check_copies()
        self._check_losses()
        self._check_order()
        self.verdict.moved = self._why.moved_count

    # -- reading ------------------------------------------------------------------------------

    def _read(self, event: Event) -> None:
        match event.what, event.type:
            case "send", "invoke":
                for value in event.values:
                    self._sent[value] = _Sent(event.place, event.at_s)
            case "send", _:
                self._send_ended(event)
            case "possible-duplicate", _:
                cause = "an unclear attempt, sent another way"
                self._doubt(event.values, cause, max(1, event.count or 0))
            case "move", _:
                for value in event.values:
                    self._why.move(value, event)
            case "stored", _:
                for value in event.values:
                    self._why.stored(value, event.at_s)
            case "delivered", _:
                for value in event.values:
                    self._why.handed_out(value, event.at_s)
            case "scheduled", _:
                for value in event.values:
                    self._why.scheduled(value, event.at_s)
            case "completed", _:
                self._audited.add((event.place, event.copy if event.copy is not None else -1))
            case "expired", _:
                for value in event.values:
                    self._expired.setdefault(value, event.at_s)
            case "receive", _:
                self._received(event)
            case "complete", _:
                self._completed(event)
            case "kill", _:
                self._why.kill(event)
                # One that is asked to end writes its last lines.
                if event.process == self._rules.broker and event.detail != ASKED:
                    self._primary_kills_s.append(event.at_s)
            case "fault", "invoke":
                self.verdict.faults[event.detail] += 1
            case "ping", _:
                self.verdict.pings_seen.append(f"{event.process} in {event.place}")
            case "dead", _:
                self._found_dead(event)
            case "removed", _:
                for value in event.values:
                    self._removed |= self._wanting(value, event.place)
            case "left", _ if event.count:
                self.verdict.left.append(f"{event.count} in {event.place}")

    def _send_ended(self, event: Event) -> None:
        for value in event.values:
            sent = self._sent.get(value)
            if sent is not None:
                sent.ended_s = event.at_s
                sent.is_acknowledged = event.type == "ok"
                sent.is_refused = event.type == "fail"
        if event.type == "info":
            cause = f"a send that ended with {event.detail}"
            self._doubt(event.values, cause, max(1, event.count or 0))

    def _doubt(self, values: Iterable[str], cause: str, attempts: int = 1) -> None:
        for value in values:
            if value in self._sent:
                self._sent[value].unclear = cause
                self._sent[value].doubts += attempts

    def _received(self, event: Event) -> None:
        for value in event.values:
            made_s = event.at_s if event.enqueued_s is None else event.enqueued_s
            number = event.copy if event.copy is not None else -1
            copies = self._copies[event.place, value]
            copy = copies.setdefault(number, Copy(number, made_s))
            copy.held.append(Held(event.process, event.at_s))
            self._compare(event, value)

    def _compare(self, event: Event, value: str) -> None:
        expected = self._rules.expected_print
        if expected is not None and value in self._sent and event.print != expected(value):
            self.verdict.changed.append(f"{value} in {event.place}: {event.detail or 'its print'}")

    def _completed(self, event: Event) -> None:
        for value in event.values:
            number = event.copy if event.copy is not None else -1
            copy = self._copies[event.place, value].setdefault(number, Copy(number, event.at_s))
            if event.type == "ok":
                copy.completed_s.append(event.at_s)
            else:
                copy.unsure.append(Held(event.process, event.at_s))
                if event.detail == LOCK_LOST:
                    copy.refused.append(Held(event.process, event.at_s))

    def _found_dead(self, event: Event) -> None:
        self.verdict.dead_lettered += len(event.values)
        for value in event.values:
            if not event.detail:
                self.verdict.dead_without_reason.append(f"{value} in {event.place}")
            elif self._rules.reasons is not None and event.detail not in self._rules.reasons:
                self.verdict.dead_without_need.append(f"{value} in {event.place}: {event.detail}")
            if value not in self._sent:
                self.verdict.unexpected.append(f"{value}, dead in {event.place}")
                continue
            self._dead |= self._wanting(value, event.place)

    def _wanting(self, value: str, place: str) -> set[tuple[str, str]]:
        """Where a message is not to be expected that has ended in a place."""
        sent = self._sent.get(value)
        places = () if sent is None else self._rules.places.get(sent.entity, ())
        # In the backlog means that it will arrive nowhere.
        return {(each, value) for each in ([place] if place in places else places)}

    # -- judging ------------------------------------------------------------------------------

    def _close_sends(self) -> None:
        """A sender that was killed answered nothing: its open sends may have been done."""
        self.verdict.attempted = len(self._sent)
        for value, sent in self._sent.items():
            self.verdict.acknowledged += sent.is_acknowledged
            self.verdict.failed += not sent.is_acknowledged
            if sent.ended_s is None:
                killed_s = self._why.killed_s(value.rpartition("-")[0], sent.invoked_s)
                sent.ended_s = sent.invoked_s + self._rules.send_s if killed_s is None else killed_s
                sent.unclear = "its sender was killed"
                sent.doubts += 1
            if sent.unclear:
                self._why.unclear_send(
                    value, sent.unclear, sent.invoked_s, sent.ended_s, doubts=sent.doubts
                )

    def _check_copies(self) -> None:
        arrived: set[str] = set()
        for (place, value), copies in self._copies.items():
            self.verdict.received += 1
            sent = self._sent.get(value)
            if sent is None or place not in self._rules.places.get(sent.entity, ()):
                self.verdict.unexpected.append(f"{value} in {place}")
                continue
            arrived.add(value)
            if sent.is_refused and not sent.unclear:
                self.verdict.unexpected.append(f"{value} in {place}, which was refused")
            in_order = sorted(copies.values(), key=lambda copy: copy.enqueued_s)
            self._check_further(place, value, in_order)
            for copy in in_order:
                self._check_deliveries(f"{value} in {place}: copy {copy.number}", copy)
                if not self._has_ended(place, value, copy):
                    self.verdict.lost.append(
                        f"{value} in {place}: copy {copy.number} was delivered, not completed, and "
                        "never came again"
                    )
        self.verdict.recovered = sum(not self._sent[value].is_acknowledged for value in arrived)

    def _check_further(self, place: str, value: str, copies: Sequence[Copy]) -> None:
        if len(copies) == 1:
            return
        if place in self._rules.without_duplicates:
            self.verdict.repeated.append(f"{value} in {place}: {len(copies)} copies")
        causes = self._why.of_copies(value, [copy.enqueued_s for copy in copies])[: len(copies) - 1]
        self.verdict.duplicates.update(causes)
        for copy in copies[len(causes) + 1 :]:
            self.verdict.unexplained.append(
                f"{value} in {place}: copy {copy.number} of {[each.number for each in copies]}"
            )

    def _check_deliveries(self, name: str, copy: Copy) -> None:
        if len(copy.completed_s) > 1:
            self.verdict.unexplained.append(f"{name} was completed twice")
        for before, after in zip(copy.held, copy.held[1:], strict=False):
            cause = self._why.of_delivery(copy, before, after)
            if cause is not None:
                self.verdict.duplicates[cause] += 1
            elif copy.completed_s and copy.completed_s[0] < after.at_s:
                self.verdict.unexplained.append(f"{name} was completed, and came again")
            else:
                self.verdict.unexplained.append(f"{name} came twice, and nothing had happened")

    def _has_ended(self, place: str, value: str, copy: Copy) -> bool:
        """A copy that nobody has completed must come again. Who is killed with one in hand may have
        completed it, and then the broker says so, unless it was killed, too."""
        last = copy.held[-1] if copy.held else None
        if last is None or copy.completed_s:
            return True
        if (place, value) in self._removed or value in self._expired:
            return True
        if copy.is_refused(last):
            # It was not completed by this one; only the broker can say by whom it was.
            return (place, copy.number) in self._audited or self._is_line_lost(
                copy.held[0].at_s, last.at_s + IN_HAND_S_MAX
            )
        if copy.is_unsure(last.process):
            return True
        killed_s = self._why.killed_s(last.process, last.at_s)
        if killed_s is None or killed_s > last.at_s + IN_HAND_S_MAX:
            return False
        return (place, copy.number) in self._audited or self._is_line_lost(
            last.at_s, last.at_s + IN_HAND_S_MAX
        )

    def _is_line_lost(self, begin_s: float, end_s: float) -> bool:
        """A broker that is killed loses the lines of its last commit."""
        return any(begin_s <= at_s <= end_s for at_s in self._primary_kills_s)

    def _check_losses(self) -> None:
        for value, sent in self._sent.items():
            if not sent.is_acknowledged:
                continue
            for place in self._rules.places.get(sent.entity, ()):
                if (place, value) in self._copies or (place, value) in self._dead:
                    continue
                if (place, value) in self._removed:
                    self.verdict.removed += 1
                elif self._has_expired(value, sent):
                    self.verdict.expired += 1
                else:
                    self.verdict.lost.append(f"{value} in {place}")

    def _check_order(self) -> None:
        """A detour and a doubt may change the order (P15); nothing else may."""
        straight: dict[str, list[tuple[_Sent, int, str]]] = defaultdict(list)
        for (place, value), copies in self._copies.items():
            sent = self._sent.get(value)
            is_clear = sent is not None and sent.is_acknowledged and not sent.unclear
            if is_clear and len(copies) == 1 and not self._why.has_detour(value):
                straight[place].append((self._sent[value], *copies, value))
        for place, arrived in straight.items():
            if place not in self._rules.without_order:
                self._check_order_in(place, arrived)

    def _check_order_in(self, place: str, arrived: Sequence[tuple[_Sent, int, str]]) -> None:
        ended = sorted(arrived, key=lambda each: each[0].ended_s or 0.0)
        before, highest, whose = 0, -1, ""
        for sent, number, value in sorted(arrived, key=lambda each: each[0].invoked_s):
            while before < len(ended) and (ended[before][0].ended_s or 0.0) < sent.invoked_s:
                if ended[before][1] > highest:
                    _earlier, highest, whose = ended[before]
                before += 1
            if number < highest:
                self.verdict.disordered.append(f"{value} in {place} is ahead of {whose}")

    def _has_jumped(self, begin_s: float, end_s: float) -> bool:
        """Whether the clock that says so was not right then."""
        return any(
            window.process == self._rules.broker
            and window.fault.startswith("clock")
            and window.touches(begin_s, end_s, 0.0)
            for window in self._windows
        )

    def _has_expired(self, value: str, sent: _Sent) -> bool:
        """The broker says so, and its time was over; its last lines may be lost with it."""
        ttl_s = self._rules.ttl_s.get(sent.entity)
        if ttl_s is None:
            return False
        if self._expired.get(value, math.inf) < sent.invoked_s + ttl_s - CLOCK_S:
            return self._has_jumped(sent.invoked_s, self._expired[value])
        home_s = max(sent.ended_s or sent.invoked_s, self._why.moved_last_s(value))
        end_s = home_s + ttl_s + self._rules.lock_s
        return value in self._expired or self._is_line_lost(sent.invoked_s, end_s)
