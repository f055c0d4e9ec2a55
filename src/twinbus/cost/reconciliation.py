"""The result of a reconciliation as values, and the trace of one message as text.

    the job on Spark --> Reconciliation --> table, JSON, exit code

    sent = delivered + unclaimed + waiting + in backlog + dead-lettered + expired + purged
           + unproven + missing

The trace of a message, from its log entries:

    stored in east/x-servicebus-transfer/3 as 812 at 2026-11-16T12:00:01.000Z, completed there at
    2026-11-16T12:00:09.412Z, no receipt; never stored on the primary

Rule 1: every message that was sent has exactly one status.
Rule 2: a reconciliation succeeds when no message is missing and none is unexpected. A duplicate is
        counted separately: it was sent, and it arrived. If the logs name no message, there is no
        result.
Rule 3: what the logs do not prove is listed, and never counted as delivered.
Rule 4: a trace repeats log entries and draws no conclusions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

__all__ = [
    "AvailableSources",
    "Difference",
    "DifferenceKind",
    "EntityReconciliation",
    "MessageStatus",
    "Outage",
    "Reconciliation",
    "Trace",
    "describe_trace",
]


class MessageStatus(StrEnum):
    """Where a message is. Best first: of several copies the best status is that of the message."""

    DELIVERED = "delivered"
    """A receiver of the primary completed it, or received and deleted it."""
    UNCLAIMED = "unclaimed"
    """Its topic accepted it, and it matched no subscription."""
    WAITING = "waiting"
    """It is on the primary."""
    IN_BACKLOG = "in-backlog"
    DEAD_LETTERED = "dead-lettered"
    """On the primary or in a backlog queue, also if it was removed from there since."""
    EXPIRED = "expired"
    PURGED = "purged"
    """Removed on request: a purge, a cancelled schedule, a deleted entity."""
    UNPROVEN = "unproven"
    """The given logs do not cover it."""
    MISSING = "missing"


class DifferenceKind(StrEnum):
    """The kinds of differences."""

    MISSING = "missing"
    UNEXPECTED = "unexpected"
    DUPLICATE = "duplicate"
    """More copies than messages arrived, and no log explains it."""


class AvailableSources(NamedTuple):
    """Which sources the reconciliation has."""

    client: bool = False
    primary: bool = False
    secondary: bool = False
    receipts: bool = False
    journal: bool = False
    look: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The available sources, in words."""
        return tuple(_SOURCES[name] for name, has_it in self._asdict().items() if has_it)

    def unproven(self) -> tuple[str, ...]:
        """What is not proven without the other sources."""
        available = self._asdict()
        return tuple(sentence for name, sentence in _WITHOUT.items() if not available[name])


_SOURCES: Final = {
    "client": "the audit log of the client",
    "primary": "the audit log of the primary",
    "secondary": "the audit log of the secondary",
    "receipts": "receipts",
    "journal": "the journal",
    "look": "the contents of the queues",
}
_WITHOUT: Final = {
    "client": "Without the audit log of the client a message counts as sent when it was stored: a "
    "message that was never stored is not missing, and an id that was used twice counts as one "
    "message.",
    "primary": "Without the audit log of the primary the status of messages there is unknown.",
    "secondary": "Without the audit log of the secondary only receipts show what was in the "
    "backlog.",
    "receipts": "Without receipts a second copy is explained by a second send only.",
    "look": "Without --look it is not proven that waiting messages are still in their queues.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An entity was diverted."""

    begins: datetime
    ends: datetime | None
    """None: it is diverted now, or the journal ends earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityReconciliation:
    """One queue or topic of the primary."""

    entity: str
    sent: int
    statuses: Mapping[MessageStatus, int]
    duplicates: int = 0
    """Copies that arrived in addition to what was sent."""
    duplicates_explained: int = 0
    """Those that a receipt or a repeated send explains."""
    unexpected: int = 0
    """Messages that arrived and were never sent."""
    without_id: int = 0
    """Messages in ``sent`` that have no id: they are counted and cannot be followed."""
    outages: tuple[Outage, ...] = ()

    @property
    def closes(self) -> bool:
        return not self.statuses.get(MessageStatus.MISSING, 0) and not self.unexpected

    def to_json(self) -> dict[str, Any]:
        return {
            "entity": self.entity,
            "sent": self.sent,
            **{status.value: self.statuses.get(status, 0) for status in MessageStatus},
            "duplicates": self.duplicates,
            "duplicates_explained": self.duplicates_explained,
            "unexpected": self.unexpected,
            "without_id": self.without_id,
            "outages": [[_iso(each.begins), _iso(each.ends)] for each in self.outages],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One message that is missing, unexpected or duplicate; several when they have no id."""

    entity: str
    message_id: str | None
    kind: DifferenceKind
    count: int
    trace: str
    """Its log entries, the last ones included."""

    def to_json(self) -> dict[str, Any]:
        return {
            "entity": self.entity,
            "message_id": self.message_id,
            "kind": self.kind.value,
            "count": self.count,
            "said": self.trace,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The complete result."""

    pair: str
    """The primary's name, as the backlog queues have it in their paths."""
    begins: datetime | None = None
    ends: datetime | None = None
    """Exclusive. Messages that were sent between both; later log entries count, too."""
    sources: AvailableSources
    entities: tuple[EntityReconciliation, ...]
    differences: tuple[Difference, ...] = ()
    damaged_lines: int = 0
    """Lines of logs that could not be read."""
    lost_lines: int = 0
    """Numbers of lines that are missing; a line that could not be read may be one of them."""
    notes: Sequence[str] = field(default_factory=tuple)
    """Further remarks."""

    @property
    def closes(self) -> bool | None:
        """None: the logs name no message."""
        if not self.sent and not self.unexpected:
            return None
        return all(each.closes for each in self.entities)

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.entities)

    def count(self, status: MessageStatus) -> int:
        return sum(each.statuses.get(status, 0) for each in self.entities)

    @property
    def unexpected(self) -> int:
        return sum(each.unexpected for each in self.entities)

    @property
    def verdict(self) -> str:
        """One sentence."""
        missing, unproven = self.count(MessageStatus.MISSING), self.count(MessageStatus.UNPROVEN)
        if self.closes is None:
            return f"No message of {self.pair} found in the logs."
        is_whole = not self.damaged_lines and not self.lost_lines
        end = "." if is_whole else ", as far as the logs can be read."
        if self.closes:
            proven = f", {unproven:,} of them unproven" if unproven else ""
            result = f"{self.sent:,} sent{proven}, none missing"
            return f"Reconciliation of {self.pair} succeeded: {result}{end}"
        wrong = [f"{missing:,} missing"] if missing else []
        wrong += [f"{self.unexpected:,} unexpected"] if self.unexpected else []
        result = f"of {self.sent:,} sent, {' and '.join(wrong)}"
        return f"Reconciliation of {self.pair} failed: {result}{end}"

    def to_json(self) -> dict[str, Any]:
        return {
            "pair": self.pair,
            "from": _iso(self.begins),
            "to": _iso(self.ends),
            "closes": self.closes,
            "verdict": self.verdict,
            "sources": list(self.sources.names),
            "unproven": [*self.sources.unproven(), *self.notes],
            "damaged_lines": self.damaged_lines,
            "lost_lines": self.lost_lines,
            "entities": [each.to_json() for each in self.entities],
            "differences": [each.to_json() for each in self.differences],
        }


def _iso(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


class Trace(NamedTuple):
    """The time of a message in one queue, or a line about it. Times are Unix milliseconds."""

    at_ms: int
    kind: str
    """``sent``, ``stay``, ``receipt``, ``published`` or ``dropped``."""
    place: str
    """A queue; of a line ``sent`` the backlog queue, or empty for the primary."""
    number: int | None = None
    """The sequence number; of a line ``published`` the number of copies."""
    side: str = ""
    """``primary`` or ``backlog``."""
    last: str = ""
    """The last event, or the outcome of a receipt."""
    last_ms: int | None = None
    reason: str = ""


_STAYS: Final = {
    "stored": "",
    "scheduled": ", scheduled",
    "delivered": ", delivered to a receiver at {at}",
    "completed": ", completed there at {at}",
    "forwarded": ", forwarded to {reason} at {at}",
    "abandoned": ", abandoned at {at}",
    "deferred": ", deferred at {at}",
    "dead-lettered": ", dead-lettered at {at} ({reason})",
    "expired": ", expired at {at}",
    "purged": ", purged at {at}",
    "cancelled": ", cancelled at {at}",
    "deleted": ", deleted with its entity at {at}",
    "due": ", due at {at}",
    "seen": ", found there",
    "gone": ", no longer there at {at}",
    "replaced": ", its number assigned to another message at {at}",
}


def describe_trace(traces: Iterable[Trace], sources: AvailableSources) -> str:
    """All log entries of a message as text: sends first, then the others, the oldest first."""
    found = sorted(traces, key=lambda each: (each.kind != "sent", each.at_ms))
    has_receipt = {(each.place, each.number) for each in found if each.kind == "receipt"}
    parts = [_part(each, has_receipt, sources) for each in found]
    if sources.client and not any(each.kind == "sent" for each in found):
        parts.append("no client has recorded that it sent it")
    if sources.primary and not any(each.side == "primary" for each in found):
        parts.append("never stored on the primary")
    return "; ".join(parts)


def _part(trace: Trace, has_receipt: set[tuple[str, int | None]], sources: AvailableSources) -> str:
    at = _moment(trace.at_ms)
    match trace.kind:
        case "sent":
            return f"sent to {trace.place or 'the primary'}, acknowledged at {at}"
        case "receipt":
            reason = f" ({trace.reason})" if trace.reason else ""
            return f"receipt for {_place(trace)}: {trace.last} at {at}{reason}"
        case "published":
            copies = "1 copy" if trace.number == 1 else f"{trace.number or 0:,} copies"
            return f"published in {trace.place} at {at} with {copies}"
        case "dropped":
            return f"dropped by {trace.place} as a duplicate at {at}"
    ending = _STAYS.get(trace.last, f", {trace.last} at {{at}}").format(
        at=_moment(trace.last_ms), reason=trace.reason or "no reason"
    )
    lacks_receipt = (
        sources.receipts
        and trace.side == "backlog"
        and trace.last == "completed"
        and (trace.place, trace.number) not in has_receipt
    )
    return f"stored in {_place(trace)} at {at}{ending}{', no receipt' if lacks_receipt else ''}"


def _place(trace: Trace) -> str:
    return trace.place if trace.number is None else f"{trace.place} as {trace.number}"


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return "an unknown time"
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
