"""The result of a reconciliation as values, and the trace of one message as text.

Do the books of a pair close: the finished answer, as values.

    the job on Spark --> Reconciliation --> table, JSON, exit code

    sent = delivered + unclaimed + waiting + in backlog + dead-lettered + expired + purged
           + unproven + missing

What the logs say about one message, as a sentence.

    stored in home/x-servicebus-transfer/3 as 812 at 2026-11-16T12:00:01.000Z, completed there at
    2026-11-16T12:00:09.412Z, no receipt; never stored on the primary

Rule 1: every message that was sent has exactly one fate.
Rule 2: the books close when nothing is missing and nothing unexpected has arrived. A message that
        arrived twice is counted beside it: it was sent, and it is there. Where no message is named
        there is nothing to close, and nothing is proven.
Rule 3: what the given logs cannot show is said, and never called delivered.
Rule 4: it repeats what was written down and concludes nothing.
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
    """Where a message is. Best first: of several copies the best one is the message's fate."""

    DELIVERED = "delivered"
    """A receiver of the primary completed it, or received and deleted it."""
    UNCLAIMED = "unclaimed"
    """Its topic took it, and no subscription wanted it."""
    WAITING = "waiting"
    """It is on the primary."""
    IN_BACKLOG = "in-backlog"
    DEAD_LETTERED = "dead-lettered"
    """On the primary or in a backlog queue, and perhaps taken from there since."""
    EXPIRED = "expired"
    PURGED = "purged"
    """Removed on request: a purge, a cancelled schedule, a deleted entity."""
    UNPROVEN = "unproven"
    """It went where the given logs do not reach."""
    MISSING = "missing"


class DifferenceKind(StrEnum):
    """What does not add up."""

    MISSING = "missing"
    UNEXPECTED = "unexpected"
    DUPLICATE = "duplicate"
    """More than one arrived, and no log tells why."""


class AvailableSources(NamedTuple):
    """Which sources there are."""

    client: bool = False
    primary: bool = False
    secondary: bool = False
    receipts: bool = False
    journal: bool = False
    look: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are there, in words."""
        return tuple(_SOURCES[name] for name, is_there in self._asdict().items() if is_there)

    def unproven(self) -> tuple[str, ...]:
        """What the others would have shown."""
        told = self._asdict()
        return tuple(sentence for name, sentence in _WITHOUT.items() if not told[name])


_SOURCES: Final = {
    "client": "the client's audit",
    "primary": "the audit log of the primary",
    "secondary": "the audit log of the secondary",
    "receipts": "receipts",
    "journal": "the journal",
    "look": "a look at the queues",
}
_WITHOUT: Final = {
    "client": "Without the client's audit a message counts as sent when it was stored: one that "
    "never was is not missed, and an id that was used twice counts as one message.",
    "primary": "Without the audit log of the primary nobody knows what became of messages there.",
    "secondary": "Without the audit log of the secondary only receipts tell what was in the "
    "backlog.",
    "receipts": "Without receipts a second copy is explained by a second send only.",
    "look": "Without a look at the queues what the logs call waiting is not proven to be there.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An entity was diverted."""

    begins: datetime
    ends: datetime | None
    """None: it is still, or the journal ends before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityReconciliation:
    """One queue or topic of the primary."""

    entity: str
    sent: int
    fates: Mapping[MessageStatus, int]
    duplicates: int = 0
    """Copies that arrived beyond what was sent."""
    duplicates_explained: int = 0
    """Those that a receipt or a repeated send announced."""
    unexpected: int = 0
    """Messages that arrived and were never sent."""
    without_id: int = 0
    """Messages in ``sent`` that have no id: they are counted and cannot be followed."""
    outages: tuple[Outage, ...] = ()

    @property
    def closes(self) -> bool:
        return not self.fates.get(MessageStatus.MISSING, 0) and not self.unexpected

    def to_json(self) -> dict[str, Any]:
        return {
            "entity": self.entity,
            "sent": self.sent,
            **{fate.value: self.fates.get(fate, 0) for fate in MessageStatus},
            "duplicates": self.duplicates,
            "duplicates_explained": self.duplicates_explained,
            "unexpected": self.unexpected,
            "without_id": self.without_id,
            "outages": [[_iso(each.begins), _iso(each.ends)] for each in self.outages],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One message that does not add up; several when they have no id."""

    entity: str
    message_id: str | None
    kind: DifferenceKind
    count: int
    said: str
    """What the logs say about it, to the last."""

    def to_json(self) -> dict[str, Any]:
        return {
            "entity": self.entity,
            "message_id": self.message_id,
            "kind": self.kind.value,
            "count": self.count,
            "said": self.said,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The whole answer."""

    pair: str
    """The primary's name, as the backlog queues have it in their paths."""
    begins: datetime | None = None
    ends: datetime | None = None
    """Exclusive. Messages whose send falls between both; their fates may come later."""
    given: AvailableSources
    entities: tuple[EntityReconciliation, ...]
    differences: tuple[Difference, ...] = ()
    damaged_lines: int = 0
    """Lines of logs that could not be read."""
    lost_lines: int = 0
    """Numbers of lines that are missing; a line that could not be read may be one of them."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What else is to be known."""

    @property
    def closes(self) -> bool | None:
        """None: the logs name no message."""
        if not self.sent and not self.unexpected:
            return None
        return all(each.closes for each in self.entities)

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.entities)

    def count(self, fate: MessageStatus) -> int:
        return sum(each.fates.get(fate, 0) for each in self.entities)

    @property
    def unexpected(self) -> int:
        return sum(each.unexpected for each in self.entities)

    @property
    def verdict(self) -> str:
        """One sentence."""
        missing, unproven = self.count(MessageStatus.MISSING), self.count(MessageStatus.UNPROVEN)
        if self.closes is None:
            return f"The logs name no message of {self.pair}: there is nothing to close."
        is_whole = not self.damaged_lines and not self.lost_lines
        end = "." if is_whole else ", as far as the logs can be read."
        if self.closes:
            proven = f", {unproven:,} of them unproven" if unproven else ""
            return f"The books of {self.pair} close: {self.sent:,} sent{proven}, none missing{end}"
        wrong = [f"{missing:,} missing"] if missing else []
        wrong += [f"{self.unexpected:,} unexpected"] if self.unexpected else []
        told = f"of {self.sent:,} sent, {' and '.join(wrong)}"
        return f"The books of {self.pair} do not close: {told}{end}"

    def to_json(self) -> dict[str, Any]:
        return {
            "pair": self.pair,
            "from": _iso(self.begins),
            "to": _iso(self.ends),
            "closes": self.closes,
            "verdict": self.verdict,
            "sources": list(self.given.names),
            "unproven": [*self.given.unproven(), *self.notes],
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
    """A stay of a message in one place, or a line about it. Times are Unix milliseconds."""

    at_ms: int
    kind: str
    """``sent``, ``stay``, ``receipt``, ``published`` or ``dropped``."""
    place: str
    """A queue; of a line ``sent`` the backlog queue, or nothing for the primary."""
    number: int | None = None
    """In its queue; of a line ``published`` how many copies there are."""
    side: str = ""
    """``primary`` or ``backlog``."""
    last: str = ""
    """The last event, or the outcome of a receipt."""
    last_ms: int | None = None
    reason: str = ""


_STAYS: Final = {
    "stored": "",
    "scheduled": ", scheduled",
    "delivered": ", handed out at {at}",
    "completed": ", completed there at {at}",
    "forwarded": ", forwarded to {reason} at {at}",
    "abandoned": ", given back at {at}",
    "deferred": ", deferred at {at}",
    "dead-lettered": ", dead-lettered at {at} ({reason})",
    "expired": ", expired at {at}",
    "purged": ", purged at {at}",
    "cancelled": ", cancelled at {at}",
    "deleted": ", deleted with its entity at {at}",
    "due": ", due at {at}",
    "seen": ", seen there",
    "gone": ", and no longer there at {at}",
    "replaced": ", and its number was given to another message at {at}",
}


def describe_trace(traces: Iterable[Trace], given: AvailableSources) -> str:
    """All of it in one sentence: what was sent, and then what happened, the oldest first."""
    found = sorted(traces, key=lambda each: (each.kind != "sent", each.at_ms))
    has_receipt = {(each.place, each.number) for each in found if each.kind == "receipt"}
    parts = [_part(each, has_receipt, given) for each in found]
    if given.client and not any(each.kind == "sent" for each in found):
        parts.append("no client says that it sent it")
    if given.primary and not any(each.side == "primary" for each in found):
        parts.append("never stored on the primary")
    return "; ".join(parts)


def _part(trace: Trace, has_receipt: set[tuple[str, int | None]], given: AvailableSources) -> str:
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
    is_unsigned = (
        given.receipts
        and trace.side == "backlog"
        and trace.last == "completed"
        and (trace.place, trace.number) not in has_receipt
    )
    return f"stored in {_place(trace)} at {at}{ending}{', no receipt' if is_unsigned else ''}"


def _place(trace: Trace) -> str:
    return trace.place if trace.number is None else f"{trace.place} as {trace.number}"


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return "an unknown time"
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
