"""What is owed for a chunk."""

from __future__ import annotations

import pickle

import pytest

from twinbus.encoding.transit import ReceivedMessage
from twinbus.mover.planning.chunk_ledger import (
    ChunkLedger,
    LedgerError,
    MoverIdentity,
    RestoredDelivery,
)
from twinbus.mover.planning.receipts import Receipt, ReceiptCounts, ReceiptOutcome, to_json_line

PLACE = MoverIdentity("east/x-servicebus-transfer/0", "host", 42)


def item(number: int) -> RestoredDelivery:
    delivered = ReceivedMessage(
        path=PLACE.queue, encoded=b"", sequence_number=number, enqueued_at_ms=5
    )
    return RestoredDelivery(delivered, "orders", f"m{number}", b"12345")


def ledger_of(*items: RestoredDelivery) -> ChunkLedger:
    return ChunkLedger(PLACE, [each.delivered for each in items], received_ms=10)


def test_a_message_is_completed_only_after_it_was_accepted() -> None:
    """Y1: complete in the backlog only after the primary has accepted."""
    one, two = item(1), item(2)
    ledger = ledger_of(one, two)
    ledger.sent([one, two])
    ledger.accepted([one])
    assert ledger.completable([one]) == [one.delivered]
    with pytest.raises(LedgerError, match="before the primary accepted"):
        ledger.completable([one, two])


def test_a_message_that_was_not_sent_cannot_be_accepted() -> None:
    one = item(1)
    with pytest.raises(LedgerError, match="not sent"):
        ledger_of(one).accepted([one])


def test_every_message_has_exactly_one_receipt() -> None:
    one, two = item(1), item(2)
    ledger = ledger_of(one, two)
    ledger.close([one, two], ReceiptOutcome.DEFERRED, 20, "down")
    assert ledger.is_closed
    with pytest.raises(LedgerError, match="Message 2 of"):
        ledger.close([two], ReceiptOutcome.MOVED, 30)
    assert [each.sequence_number for each in ledger.receipts] == [1, 2]


def test_a_receipt_tells_everything_but_the_content() -> None:
    one = item(1)
    ledger = ledger_of(one)
    ledger.close([one], ReceiptOutcome.MOVED, 20)
    assert ledger.receipts == [
        Receipt(PLACE.queue, 1, "m1", "orders", ReceiptOutcome.MOVED, "", 5, 5, 10, 20, "host", 42)
    ]
    assert pickle.loads(pickle.dumps(ledger.receipts)) == ledger.receipts
    assert to_json_line(ledger.receipts[0]).startswith('{"queue":"east/x-servicebus-transfer/0"')
    assert '"outcome":"moved"' in to_json_line(ledger.receipts[0])


def test_a_chunk_that_is_cut_short_announces_what_may_come_twice() -> None:
    untouched, sent, accepted = item(1), item(2), item(3)
    ledger = ledger_of(untouched, sent, accepted)
    ledger.sent([sent, accepted])
    ledger.accepted([accepted])
    ledger.give_up(50, "stopped")
    outcomes = {each.sequence_number: each.outcome for each in ledger.receipts}
    assert outcomes == {
        1: ReceiptOutcome.RELEASED,
        2: ReceiptOutcome.AMBIGUOUS,
        3: ReceiptOutcome.LOCK_LOST,
    }
    tally = ReceiptCounts()
    tally.add(ledger.receipts)
    assert (tally.total, tally.may_repeat_count) == (3, 2)
