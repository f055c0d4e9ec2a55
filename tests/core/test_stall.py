"""Messages that wait while none moves."""

from __future__ import annotations

from twinbus.core.stall import StallWatch


def test_waiting_without_moving_is_told_once() -> None:
    """Y7: and again only after something has moved."""
    watch = StallWatch(stall_s=10.0)
    told = [watch.observe(waiting=5, moved=1, now_s=now_s) for now_s in (0.0, 9.0, 10.0, 20.0)]
    assert told == [False, False, True, False]
    assert not watch.observe(waiting=5, moved=2, now_s=30.0)
    assert not watch.is_stalled
    assert watch.observe(waiting=5, moved=2, now_s=40.0)


def test_an_empty_backlog_never_stalls() -> None:
    watch = StallWatch(stall_s=10.0)
    assert not any(watch.observe(waiting=0, moved=0, now_s=now_s) for now_s in (0.0, 100.0))
    assert not watch.observe(waiting=1, moved=0, now_s=200.0), "the wait begins with the message"
