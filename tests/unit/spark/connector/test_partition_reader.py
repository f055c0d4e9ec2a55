"""Tasks that wait, clocks that are wrong and deletions without an answer, without a broker."""

from __future__ import annotations

import pytest

from tests.support.mover.fake_namespace import FakeNamespace
from twinbus.common.clock import AdjustableClock, Instant
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import CommunicationError, MessageRefused, ServerBusy, ServiceError
from twinbus.spark.connector import partition_reader
from twinbus.spark.connector.coordinator import Reading, StreamCoordinator
from twinbus.spark.connector.partition_plan import BatchLimit, PartitionPlan
from twinbus.spark.connector.partition_reader import PartitionReader
from twinbus.spark.driver_channel import DriverChannelAddress

SHARE = BatchLimit(100, 1 << 20)
HOUR_MS = 3_600_000


async def test_a_task_that_waits_for_one_that_gets_on_with_nothing_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S2: two readers of one order in one task would wait for each other for ever."""
    monkeypatch.setattr(partition_reader, "WAIT_INTERVAL_S", 0)
    clock = AdjustableClock(is_manual=True)
    channel = DriverChannelAddress("127.0.0.1", 1, "nonce")
    order = PartitionPlan(order_id="1/0", path="orders", share=SHARE, channel=channel)
    reader = PartitionReader(FakeNamespace("orders"), order, clock=clock)
    answers = ["a/0", "a/500", "a/500", "b/500", "b/500", "b/500", "nobody asks any more"]

    async def ask(*_: object) -> dict[str, str]:
        clock.advance(600)
        return {"turn": "wait", "progress": answers.pop(0)}

    monkeypatch.setattr(reader, "_ask", ask)
    with pytest.raises(MessageRefused, match=r"15 minutes .*'orders'"):
        await reader._turn()
    assert answers == ["nobody asks any more"]


def coordinator_with_message(driver: FakeNamespace, *, deletes: bool = False) -> StreamCoordinator:
    """A message was received that is locked for ten seconds, by a clock an hour ahead of ours."""
    clock = AdjustableClock(Instant(100.0, 0), is_manual=True)
    reading = Reading(paths=("orders",), limit=SHARE, deletes=deletes)
    coordinator = StreamCoordinator(driver, reading, clock=clock)
    message = ReceivedMessage(
        path="orders",
        encoded=b"",
        sequence_number=1,
        lock_token=bytes(16),
        enqueued_at_ms=HOUR_MS,
        locked_until_ms=HOUR_MS + 10_000,
    )
    coordinator._keep("orders", message)
    return coordinator


async def test_a_pending_message_is_renewed_in_time_by_a_clock_that_is_behind() -> None:
    """S2: the clock of Spark's driver may be wrong, too."""
    coordinator = coordinator_with_message(FakeNamespace("orders"))
    assert coordinator._ledger.due(104.9) == []
    assert len(coordinator._ledger.due(105)) == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CommunicationError("away"), "A message of 'orders' may have been deleted"),
        (ServerBusy("busy"), "A message of 'orders' was not deleted"),
    ],
)
async def test_a_deletion_that_failed_is_told_as_far_as_it_is_known(
    error: ServiceError, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S1: no lock was lost, and a message that may be gone does not come again for sure."""
    driver = FakeNamespace("orders")
    coordinator = coordinator_with_message(driver, deletes=True)
    driver.settle_error = error
    coordinator._address = DriverChannelAddress("127.0.0.1", 1, "nonce")
    (order,) = await coordinator.orders(1)
    assert order.handed is None
    assert text in caplog.text and str(error) in caplog.text
    assert coordinator.counts == {"received": 1, "settled": 0, "givenBack": 0, "locksLost": 0}
