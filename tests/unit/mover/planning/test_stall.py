"""Messages that wait while none moves."""

from __future__ import annotations

import pytest

from twinbus.mover.planning.stall_detector import StallDetector, stall_reason

QUEUE = "east/x-servicebus-transfer/1"


def test_waiting_without_moving_is_told_once() -> None:
    """Y7: and again only after something has moved."""
    watch = StallDetector(stall_s=10.0)
    told = [watch.update(waiting=5, moved=1, now_s=now_s) for now_s in (0.0, 9.0, 10.0, 20.0)]
    assert told == [False, False, True, False]
    assert not watch.update(waiting=5, moved=2, now_s=30.0)
    assert not watch.is_stalled
    assert watch.update(waiting=5, moved=2, now_s=40.0)


def test_an_empty_backlog_never_stalls() -> None:
    watch = StallDetector(stall_s=10.0)
    assert not any(watch.update(waiting=0, moved=0, now_s=now_s) for now_s in (0.0, 100.0))
    assert not watch.update(waiting=1, moved=0, now_s=200.0), "the wait begins with the message"


@pytest.mark.parametrize(
    ("unread", "is_primary_unreachable", "why"),
    [
        ({}, False, "destinations: bills, orders."),
        ({QUEUE: ""}, False, f": {QUEUE}."),
        ({QUEUE: "Listen is missing."}, False, f": {QUEUE} (Listen is missing)."),
        ({QUEUE: ""}, True, "primary is unreachable."),
    ],
)
def test_an_operator_is_told_where_to_look(
    unread: dict[str, str], is_primary_unreachable: bool, why: str
) -> None:
    told = stall_reason(
        1_200,
        unavailable=["orders", "", "bills"],
        unread=unread,
        is_primary_unreachable=is_primary_unreachable,
    )
    assert "60 s" in told and "1,200" in told
    assert told.endswith(why)
