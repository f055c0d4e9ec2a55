"""What is owed for the messages of one chunk, until each of them has its receipt.

    received --sent--> sent --accepted--> accepted --close(MOVED)--> settled
        '---------------'-- close(any other outcome) -----------------^

Rule 1: a message is completed in the backlog only after the primary accepted it (Y1). The list
        to complete comes from here, and it is refused for anything else.
Rule 2: every message gets exactly one receipt; closing one twice is refused.
Rule 3: a message is known by its lock. Its number may be missing: one that cannot be read has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import PairingError
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome

__all__ = ["ChunkLedger", "LedgerError", "MoverIdentity", "RestoredDelivery"]


_Key: TypeAlias = bytes | int


def _keys(deliveries: Iterable[ReceivedMessage]) -> list[_Key]:
    """What tells a message of a chunk from the others; only looked at, it has no lock."""
    return [each.lock_token or each.sequence_number for each in deliveries]


class RestoredDelivery(NamedTuple):
    """One message of the backlog, and what the primary is to get."""

    delivered: ReceivedMessage
    destination: str
    message_id: str | None
    encoded: bytes
    """As it goes to the primary; empty when it cannot."""
    session_id: str | None = None


def _keys_of(items: Iterable[RestoredDelivery]) -> list[_Key]:
    return _keys([each.delivered for each in items])


class MoverIdentity(NamedTuple):
    """Where a chunk is moved: which queue it came from and who moves it."""

    queue: str
    host: str
    pid: int


class LedgerError(PairingError):
    """A step that would lose a message, or tell of it twice: a fault of the program."""


class ChunkLedger:
    """The books of one chunk."""

    def __init__(
        self, identity: MoverIdentity, deliveries: Sequence[ReceivedMessage], received_ms: int
    ) -> None:
        self._identity = identity
        self._received_ms = received_ms
        self._open = dict(zip(_keys(deliveries), deliveries, strict=True))
        self._sent: dict[_Key, RestoredDelivery] = {}
        self._accepted: set[_Key] = set()
        self.receipts: list[Receipt] = []

    def sent(self, items: Sequence[RestoredDelivery]) -> None:
        """They are on their way to the primary."""
        self._sent.update(zip(_keys_of(items), items, strict=True))

    def accepted(self, items: Sequence[RestoredDelivery]) -> None:
        """The primary holds them."""
        keys = set(_keys_of(items))
        self._check(self._sent.keys() >= keys, "accepted a message that was not sent")
        self._accepted |= keys

    def completable(self, items: Sequence[RestoredDelivery]) -> list[ReceivedMessage]:
        """What may be completed in the backlog now: all of ``items``, or LedgerError."""
        has_all = self._accepted.issuperset(_keys_of(items))
        self._check(has_all, "completed a message before it was accepted")
        return [each.delivered for each in items]

    def close(
        self,
        items: Sequence[RestoredDelivery],
        outcome: ReceiptOutcome,
        now_ms: int,
        reason: str = "",
    ) -> None:
        """Their receipts: nothing more will be done with them."""
        queue, host, pid = self._identity
        received_ms, is_open = self._received_ms, self._open
        add = self.receipts.append
        for key, item in zip(_keys_of(items), items, strict=True):
            delivered, destination, message_id, encoded, _session_id = item
            number = delivered.sequence_number
            if is_open.pop(key, None) is None:
                raise LedgerError(f"message {number} of {queue!r} has its receipt already")
            add(
                Receipt(
                    queue,
                    number,
                    message_id,
                    destination,
                    outcome,
                    reason,
                    len(encoded),
                    delivered.enqueued_at_ms,
                    received_ms,
                    now_ms,
                    host,
                    pid,
                )
            )

    def give_up(self, now_ms: int, reason: str) -> None:
        """Receipts for all that is open, of a chunk that was cut short."""
        for key in list(self._open):
            item = self._sent.get(key) or RestoredDelivery(self._open[key], "", None, b"")
            if key in self._accepted:
                outcome = ReceiptOutcome.LOCK_LOST
            else:
                outcome = ReceiptOutcome.AMBIGUOUS if key in self._sent else ReceiptOutcome.RELEASED
            self.close([item], outcome, now_ms, reason)

    @property
    def unsettled(self) -> list[ReceivedMessage]:
        """Messages whose locks are still needed."""
        return list(self._open.values())

    @property
    def is_closed(self) -> bool:
        return not self._open

    def _check(self, is_right: bool, offence: str) -> None:
        if not is_right:
            raise LedgerError(
                f"the mover of {self._identity.queue!r} {offence}",
                hint="Report this: nothing was lost, because it was stopped here",
            )
