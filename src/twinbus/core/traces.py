"""What the logs say about one message, as a sentence.

    stored in home/x-servicebus-transfer/3 as 812 at 2026-11-16T12:00:01.000Z, completed there at
    2026-11-16T12:00:09.412Z, no receipt; never stored on the primary

Rule 1: it repeats what was written down and concludes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from twinbus.core.reconciliation import AvailableSources

__all__ = ["Trace", "describe_trace"]


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
