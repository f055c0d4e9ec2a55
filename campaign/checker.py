"""The promise, over a history that ends with a complete drain (Jepsen's total queue, and stricter).

    acknowledged = received + dead-lettered with a reason + expired
                   + in a queue when somebody deleted it                   nothing is lost
    received was attempted, and every field is as it was sent              nothing from nowhere
    every further copy, and every further delivery of a copy, has a cause  nothing twice without
                                                                           a reason
    no ping was seen, and nothing is left anywhere                         closed books

A *copy* is one message in one place, known by its sequence number there; a *delivery* is one copy
in a receiver's hands.

    a further delivery   is explained if whoever had the copy could not complete it: no answer, a
                         lock that was lost or ran out, a holder or a broker that was killed. One
                         that is read late, while or after somebody else has the copy, was sent
                         before: to a receiver that was stopped or cut off, and cannot complete it
    a further copy       is explained by an ambiguity that is recorded for this message and began
                         before the copy was there. A mover that is killed leaves no receipts for
                         what it had in hand: those messages are the ones of which a copy was made
                         about then, and that a mover had in hand again later

Rule 1: this file reads no clock, no file and no network. Same events, same verdict.
Rule 2: what was never answered may have happened; what was answered with ok has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from campaign.history import Event
from campaign.windows import windows_of

__all__ = ["Rules", "Verdict", "check"]

# How long a mover may have a chunk in hand before it must give it up (half of a backlog lock).
CHUNK_S_MAX: Final = 30.0
# What it had sent when it was killed may have hung in the network for the longest black hole, or
# before a broker for the longest stop.
LATE_S_MAX: Final = 20.0
LOCK_SHARE_MIN: Final = 0.8
# A receiver that goes on reads what has waited for it within this time.
HINDERED_S_MAX: Final = 5.0


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
    broker: str = "primary"
    """The process that receivers receive from."""
    expected_print: Callable[[str], str] | None = None
    """Every field of the message that was sent under a value (messages.py)."""


@dataclass(frozen=True, slots=True)
class _Ambiguity:
    """From then on nobody could say whether a message had been sent."""

    cause: str
    begin_s: float


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
    disturbed: list[str] = field(default_factory=list)
    """What the prober noticed of the trouble of others."""
    dead_without_reason: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
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
            "disturbed": self.disturbed,
            "dead-lettered without a reason": self.dead_without_reason,
            "left behind": self.left,
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


@dataclass(frozen=True, slots=True)
class _Held:
    """One delivery."""

    process: str
    at_s: float


@dataclass(slots=True)
class _Copy:
    """One copy of a message in one place."""

    number: int
    enqueued_s: float
    held: list[_Held] = field(default_factory=list)
    completed_s: list[float] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    """Processes that tried to complete it and do not know, or came too late."""


class _Check:
    def __init__(self, events: Sequence[Event], rules: Rules) -> None:
        self._rules = rules
        self._events = events
        self._sent: dict[str, _Sent] = {}
        self._copies: dict[tuple[str, str], dict[int, _Copy]] = defaultdict(dict)
        """By place and value."""
        self._dead: set[tuple[str, str]] = set()
        self._removed: set[tuple[str, str]] = set()
        self._kills: list[Event] = []
        self._ambiguities: dict[str, list[_Ambiguity]] = defaultdict(list)
        """By value."""
        self._moved_s: dict[str, list[float]] = defaultdict(list)
        """When movers wrote receipts for a value."""
        self.verdict = Verdict()
        for event in events:
            self._read(event)
        self._end_s = events[-1].at_s if events else 0.0
        self._windows = windows_of(events)
        self._close_sends()
        self._check_copies()
        self._check_losses()
        self.verdict.moved = len(self._moved_s)

    # -- reading ------------------------------------------------------------------------------

    def _read(self, event: Event) -> None:
        match event.what, event.type:
            case "send", "invoke":
                for value in event.values:
                    self._sent[value] = _Sent(event.place, event.at_s)
            case "send", _:
                self._send_ended(event)
            case "possible-duplicate", _:
                self._name("an unclear attempt, sent another way", event)
            case "move", _:
                self._moved(event)
            case "receive", _:
                self._received(event)
            case "complete", _:
                self._completed(event)
            case "kill", _:
                self._kills.append(event)
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
        if event.type != "ok":
            self._name(f"a send that ended with {event.detail}", event)

    def _received(self, event: Event) -> None:
        for value in event.values:
            made_s = event.at_s if event.enqueued_s is None else event.enqueued_s
            number = event.copy if event.copy is not None else -1
            copies = self._copies[event.place, value]
            copy = copies.setdefault(number, _Copy(number, made_s))
            copy.held.append(_Held(event.process, event.at_s))
            self._compare(event, value)

    def _compare(self, event: Event, value: str) -> None:
        expected = self._rules.expected_print
        if expected is not None and value in self._sent and event.print != expected(value):
            self.verdict.changed.append(f"{value} in {event.place}: {event.detail or 'its print'}")

    def _completed(self, event: Event) -> None:
        for value in event.values:
            number = event.copy if event.copy is not None else -1
            copy = self._copies[event.place, value].setdefault(number, _Copy(number, event.at_s))
            if event.type == "ok":
                copy.completed_s.append(event.at_s)
            else:
                copy.unsure.add(event.process)

    def _moved(self, event: Event) -> None:
        for value in event.values:
            self._moved_s[value].append(event.at_s)
        if event.type != "ok":
            self._name(f"a mover's receipt: {event.detail}", event)

    def _found_dead(self, event: Event) -> None:
        self.verdict.dead_lettered += len(event.values)
        for value in event.values:
            if not event.detail:
                self.verdict.dead_without_reason.append(f"{value} in {event.place}")
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

    def _name(self, cause: str, event: Event) -> None:
        for value in event.values:
            sent = self._sent.get(value)
            begin_s = event.at_s if sent is None else sent.invoked_s
            self._ambiguities[value].append(_Ambiguity(cause, begin_s))

    # -- judging ------------------------------------------------------------------------------

    def _close_sends(self) -> None:
        """A sender that was killed answered nothing: its open sends may have been done."""
        self.verdict.attempted = len(self._sent)
        for value, sent in self._sent.items():
            self.verdict.acknowledged += sent.is_acknowledged
            self.verdict.failed += not sent.is_acknowledged
            if sent.ended_s is None:
                self._ambiguities[value].append(_Ambiguity("its sender was killed", sent.invoked_s))

    def _check_copies(self) -> None:
        arrived: set[str] = set()
        for (place, value), copies in self._copies.items():
            self.verdict.received += 1
            sent = self._sent.get(value)
            if sent is None or place not in self._rules.places.get(sent.entity, ()):
                self.verdict.unexpected.append(f"{value} in {place}")
                continue
            arrived.add(value)
            in_order = sorted(copies.values(), key=lambda copy: copy.enqueued_s)
            self._check_further(place, value, in_order)
            for copy in in_order:
                self._check_deliveries(f"{value} in {place}: copy {copy.number}", copy)
        self.verdict.recovered = sum(not self._sent[value].is_acknowledged for value in arrived)

    def _check_further(self, place: str, value: str, copies: Sequence[_Copy]) -> None:
        if len(copies) > 1 and place in self._rules.without_duplicates:
            self.verdict.repeated.append(f"{value} in {place}: {len(copies)} copies")
        made_s = [copy.enqueued_s for copy in copies]
        for number, copy in enumerate(copies[1:], 1):
            cause = self._cause(value, made_s[:number], copy.enqueued_s)
            if cause is None:
                self.verdict.unexplained.append(
                    f"{value} in {place}: copies {[each.number for each in copies]}"
                )
            else:
                self.verdict.duplicates[cause] += 1

    def _check_deliveries(self, name: str, copy: _Copy) -> None:
        if len(copy.completed_s) > 1:
            self.verdict.unexplained.append(f"{name} was completed twice")
        for before, after in zip(copy.held, copy.held[1:], strict=False):
            if after.process in copy.unsure and self._was_hindered(after):
                self.verdict.duplicates["a delivery that was read late"] += 1
            elif copy.completed_s and copy.completed_s[0] < after.at_s:
                self.verdict.unexplained.append(f"{name} was completed, and came again")
            elif (cause := self._why_again(copy, before, after)) is None:
                self.verdict.unexplained.append(f"{name} came twice, and nothing had happened")
            else:
                self.verdict.duplicates[cause] += 1

    def _why_again(self, copy: _Copy, before: _Held, after: _Held) -> str | None:
        if before.process in copy.unsure:
            return "a completion without a clear answer"
        for kill in self._kills:
            # What a broker had sent when it was killed may arrive a little later.
            is_between = before.at_s - LATE_S_MAX <= kill.at_s <= after.at_s
            if is_between and kill.process in (self._rules.broker, before.process):
                return f"a kill of its {_role(kill.process)}"
        # The lock began when the broker sent it, which was before its receiver had it.
        if after.at_s - before.at_s >= self._rules.lock_s * LOCK_SHARE_MIN:
            return "a lock that ran out"
        return None

    def _was_hindered(self, held: _Held) -> bool:
        """Whether a receiver was stopped or cut off until just before it had a message."""
        role = held.process.partition(".")[0]
        return any(
            window.process == role and window.touches(held.at_s, held.at_s, HINDERED_S_MAX)
            for window in self._windows
        )

    def _cause(self, value: str, made_s: Sequence[float], further_s: float) -> str | None:
        for ambiguity in self._ambiguities[value]:
            if ambiguity.begin_s <= further_s:
                return ambiguity.cause
        return self._killed_mover(value, (*made_s, further_s))

    def _killed_mover(self, value: str, made_s: Sequence[float]) -> str | None:
        kills = [
            kill.at_s
            for kill in self._kills
            if _role(kill.process) in ("mover", "syphon")
            and any(kill.at_s - CHUNK_S_MAX <= at_s <= kill.at_s + LATE_S_MAX for at_s in made_s)
        ]
        # Two movers in a row, each killed with the same message in hand, leave no receipt at all.
        again = len(kills) > 1 or any(
            moved_s >= kill_s for kill_s in kills for moved_s in self._moved_s[value]
        )
        return "a mover was killed" if kills and again else None

    def _check_losses(self) -> None:
        for value, sent in self._sent.items():
            if not sent.is_acknowledged:
                continue
            for place in self._rules.places.get(sent.entity, ()):
                if (place, value) in self._copies or (place, value) in self._dead:
                    continue
                if (place, value) in self._removed:
                    self.verdict.removed += 1
                elif self._has_expired(sent):
                    self.verdict.expired += 1
                else:
                    self.verdict.lost.append(f"{value} in {place}")

    def _has_expired(self, sent: _Sent) -> bool:
        ttl_s = self._rules.ttl_s.get(sent.entity)
        return ttl_s is not None and sent.invoked_s + ttl_s < self._end_s


def _role(process: str) -> str:
    """``sender-2.1`` is a sender."""
    return process.partition("-")[0]
