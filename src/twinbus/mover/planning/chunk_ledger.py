"""The state of each message of a chunk, until it has its receipt.

    received --sent--> sent --accepted--> accepted --close(MOVED)--> settled
        '---------------'-- close(any other outcome) -----------------^

Rule 1: a message is completed in the backlog only after the primary accepted it (Y1). The list
        to complete comes from here, and LedgerError is raised for anything else.
Rule 2: every message gets exactly one receipt; closing one twice raises LedgerError.
Rule 3: a message is identified by its lock. One that cannot be decoded has no sequence number.
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
    """The identities of messages; one that was peeked at has no lock."""
    return [each.lock_token or each.sequence_number for each in deliveries]


class RestoredDelivery(NamedTuple):
    """One message of the backlog, and how it is sent to the primary."""

    delivered: ReceivedMessage
    destination: str
    message_id: str | None
    encoded: bytes
    """As it is sent to the primary; empty when it cannot be restored."""
    session_id: str | None = None


def _keys_of(items: Iterable[RestoredDelivery]) -> list[_Key]:
    return _keys([each.delivered for each in items])


class MoverIdentity(NamedTuple):
    """Which queue a chunk comes from, and which process moves it."""

    queue: str
    host: str
    pid: int


class LedgerError(PairingError):
    """A step that would lose a message, or give it two receipts: a fault of the program."""


class ChunkLedger:
    """The messages of one chunk and their states."""

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
        """They are being sent to the primary."""
        self._sent.update(zip(_keys_of(items), items, strict=True))

    def accepted(self, items: Sequence[RestoredDelivery]) -> None:
        """The primary has accepted them."""
        keys = set(_keys_of(items))
        self._check(self._sent.keys() >= keys, "marked a message as accepted that was not sent")
        self._accepted |= keys

    def completable(self, items: Sequence[RestoredDelivery]) -> list[ReceivedMessage]:
        """The messages that may be completed now: all of ``items``, or LedgerError."""
        has_all = self._accepted.issuperset(_keys_of(items))
        self._check(has_all, "tried to complete a message before the primary accepted it")
        return [each.delivered for each in items]

    def close(
        self,
        items: Sequence[RestoredDelivery],
        outcome: ReceiptOutcome,
        now_ms: int,
        reason: str = "",
    ) -> None:
        """Write their receipts: nothing more is done with them."""
        queue, host, pid = self._identity
        received_ms, is_open = self._received_ms, self._open
        add = self.receipts.append
        for key, item in zip(_keys_of(items), items, strict=True):
            delivered, destination, message_id, encoded, _session_id = item
            number = delivered.sequence_number
            if is_open.pop(key, None) is None:
                raise LedgerError(f"Message {number} of {queue!r} already has its receipt")
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
        """Receipts for all messages that have none, of a chunk that was cancelled."""
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
                f"The mover of {self._identity.queue!r} {offence}",
                hint="Report this as a bug; no message was lost",
            )
