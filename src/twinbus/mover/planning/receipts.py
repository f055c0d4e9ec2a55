"""What became of one message of the backlog: a receipt, as a value, a row and a line of JSON.

Rule 1: every reception of a message ends in exactly one receipt; the ledger sees to it.
Rule 2: a receipt names the message and never shows its content.
Rule 3: it is a plain tuple, so that it crosses processes and becomes a table row as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

__all__ = [
    "EARLIER_OUTCOMES",
    "Receipt",
    "ReceiptCounts",
    "ReceiptOutcome",
    "foreign_in",
    "to_json_line",
]


EARLIER_OUTCOMES: Final[Mapping[str, str]] = {
    "parked": "deferred",
    "unsure": "ambiguous",
    "left": "released",
}
"""Words of receipts that were written before 0.1.0, and what they are called now."""


class ReceiptOutcome(StrEnum):
    """How a reception ended."""

    MOVED = "moved"
    """The primary accepted it, and the backlog let it go."""
    DEFERRED = "deferred"
    """Its destination takes nothing now; it stays in the backlog."""
    DEAD_LETTERED = "dead-lettered"
    """It can never be delivered; it is in the backlog queue's dead-letter queue."""
    AMBIGUOUS = "ambiguous"
    """Nobody knows whether the primary has it; it stays, so a second copy may follow."""
    LOCK_LOST = "lock-lost"
    """The primary has it and the backlog still does: a second copy will follow."""
    RELEASED = "released"
    """Nothing was done with it, because its lock or the line was lost; it comes again."""
    FOREIGN = "foreign"
    """It belongs to another primary of the same name; it stays in the backlog, deferred (P21)."""
    WOULD_MOVE = "would-move"
    """Seen by a dry run; it would be sent home."""
    WOULD_DEAD_LETTER = "would-dead-letter"
    """Seen by a dry run; it can never be delivered."""

    @property
    def may_repeat(self) -> bool:
        """Whether a second copy on the primary is announced by this."""
        return self in (ReceiptOutcome.AMBIGUOUS, ReceiptOutcome.LOCK_LOST)


class Receipt(NamedTuple):
    """One reception of one message. Times are Unix milliseconds."""

    queue: str
    """The backlog queue."""
    sequence_number: int
    """Its number there: with ``queue`` the identity of the message."""
    message_id: str | None
    destination: str
    """Empty when the message names none that can be used."""
    outcome: ReceiptOutcome
    reason: str
    """Why it was not moved; empty when it was. Of a foreign message the mark of its pair."""
    size_bytes: int
    """As the primary got it, or would."""
    enqueued_ms: int | None
    received_ms: int
    settled_ms: int
    host: str
    pid: int


def foreign_in(receipts: Sequence[Receipt]) -> dict[str, int]:
    """How many messages of other pairs were left alone, by the marks of the pairs (P21)."""
    counts: dict[str, int] = {}
    for receipt in receipts:
        if receipt.outcome is ReceiptOutcome.FOREIGN:
            counts[receipt.reason] = counts.get(receipt.reason, 0) + 1
    return counts


def to_json_line(receipt: Receipt) -> str:
    """The receipt as one line, without the line's end."""
    return json.dumps(receipt._asdict(), ensure_ascii=False, separators=(",", ":"))


class ReceiptCounts:
    """How many receptions ended how, and how many bytes came home."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(ReceiptOutcome, 0)
        self.moved_bytes = 0

    def add(self, receipts: Sequence[Receipt]) -> None:
        outcomes = [receipt.outcome for receipt in receipts]
        # An outcome is dear to hash, and most chunks have only one.
        for outcome in ReceiptOutcome:
            if count := outcomes.count(outcome):
                self.counts[outcome] += count
                if count == len(outcomes):
                    break
        self.moved_bytes += sum(
            [receipt.size_bytes for receipt in receipts if receipt.outcome is ReceiptOutcome.MOVED]
        )

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def may_repeat_count(self) -> int:
        """How many second copies on the primary are announced."""
        return sum(count for outcome, count in self.counts.items() if outcome.may_repeat)
