"""The operations log of a namespace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from twinbus.clock import Instant
from twinbus.core.costs import Operation
from twinbus.metering.lines import JsonLines
from twinbus.metering.operations import OperationsLog
from twinbus.metering.tally import Meter

MIDNIGHT_MS = 1_794_873_600_000  # 2026-11-17T00:00:00Z


class HandClock:
    def __init__(self, wall_ms: int) -> None:
        self.wall_ms = wall_ms

    def now(self) -> Instant:
        return Instant(self.wall_ms / 1000, self.wall_ms)


class HandTimers:
    """Remembers what it was asked to do later."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []

    def call_later(self, delay: float, callback: object, *args: object) -> None:
        self.delays_s.append(delay)


def log_in(directory: Path, clock: HandClock) -> tuple[OperationsLog, Meter]:
    meter = Meter()
    lines = JsonLines(directory, "operations")
    return OperationsLog("demo", meter, lines, "run-1", clock, source="broker"), meter


def records_in(directory: Path) -> list[dict[str, object]]:
    files = sorted(directory.glob("operations-*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_a_line_holds_what_is_new_since_the_last_one(tmp_path: Path) -> None:
    """C1: written down per namespace, entity and time, and never twice."""
    clock = HandClock(MIDNIGHT_MS - 60_000)
    log, meter = log_in(tmp_path, clock)
    sent = meter.tally("orders", Operation.SEND)
    sent.took_in(1, 10, 10, 1_000)
    clock.wall_ms += 10_000
    log.take()()
    sent.took_in(1, 5, 5, 500)
    clock.wall_ms += 10_000
    log.take()()
    clock.wall_ms += 10_000
    log.take()()

    first, second = records_in(tmp_path)
    assert (first["messages"], second["messages"]) == (10, 5)
    assert (first["number"], second["number"]) == (1, 2)
    assert second == {
        "version": 1,
        "run": "run-1",
        "number": 2,
        "from": "2026-11-16T23:59:10.000Z",
        "to": "2026-11-16T23:59:20.000Z",
        "source": "broker",
        "namespace": "demo",
        "entity": "orders",
        "operation": "send",
        "calls": 1,
        "messages": 5,
        "units": 5,
        "bytes_in": 500,
        "bytes_out": 0,
    }


def test_an_interval_ends_at_midnight_and_belongs_to_the_day_it_began(tmp_path: Path) -> None:
    """C1: per day, so that no line spans two."""
    clock = HandClock(MIDNIGHT_MS - 3_000)
    log, meter = log_in(tmp_path, clock)
    timers = HandTimers()
    log.start(timers, lambda job: job())  # type: ignore[arg-type]
    assert timers.delays_s == [3.0]
    meter.tally("orders", Operation.PING).happened()
    clock.wall_ms = MIDNIGHT_MS
    log.take()()
    assert [path.name for path in tmp_path.iterdir()] == ["operations-2026-11-16.jsonl"]


def test_a_clock_that_went_back_writes_no_interval_that_ends_before_it_began(
    tmp_path: Path,
) -> None:
    clock = HandClock(MIDNIGHT_MS)
    log, meter = log_in(tmp_path, clock)
    meter.tally("orders", Operation.PING).happened()
    clock.wall_ms -= 3_600_000
    log.take()()
    (record,) = records_in(tmp_path)
    assert record["from"] == record["to"] == "2026-11-17T00:00:00.000Z"


def test_a_run_begins_with_a_line_and_ends_with_one_if_it_is_closed(tmp_path: Path) -> None:
    """C1: a reader knows whether something may be missing, and how much at most."""
    clock = HandClock(MIDNIGHT_MS)
    log, meter = log_in(tmp_path, clock)
    log.start(HandTimers(), lambda job: job())  # type: ignore[arg-type]
    meter.tally("orders", Operation.SEND).took_in(1, 3, 3, 90)
    log.stop()
    clock.wall_ms += 2_000
    log.close()()

    opened, sent, closed = records_in(tmp_path)
    assert (opened["operation"], closed["operation"]) == ("opened", "closed")
    assert (opened["unwritten_units_max"], opened["interval_s"]) == (100_000, 10)
    assert [each["number"] for each in (opened, sent, closed)] == [1, 2, 3]
    assert closed["to"] == "2026-11-17T00:00:02.000Z"
    amounts = ("calls", "messages", "units", "bytes_in", "bytes_out")
    assert [line[name] for line in (opened, closed) for name in amounts] == [0] * 10


def test_lines_are_written_before_more_than_the_bound_is_missing(tmp_path: Path) -> None:
    """C1: a kill costs at most unwritten_units_max, however busy the ten seconds are."""
    log, meter = log_in(tmp_path, HandClock(MIDNIGHT_MS))
    jobs: list[Callable[[], None]] = []
    log.start(HandTimers(), jobs.append)  # type: ignore[arg-type]
    sent, received = (meter.tally("orders", each) for each in (Operation.SEND, Operation.RECEIVE))
    counted, missing_most = 0, 0
    for _turn in range(100):
        sent.took_in(1, 1_500, 1_500, 90_000)
        received.gave_out(1_500, 1_500, 90_000)
        counted += 3_000
        if len(jobs) > 1:  # The disk is late by one job.
            jobs.pop(0)()
        written = sum(int(str(line["units"])) for line in records_in(tmp_path))
        missing_most = max(missing_most, counted - written)
    assert 50_000 < missing_most <= 100_000


def test_what_is_counted_after_the_stop_is_in_the_last_lines(tmp_path: Path) -> None:
    """C1: nobody runs jobs any more then; close() has what they would have written."""
    log, meter = log_in(tmp_path, HandClock(MIDNIGHT_MS))
    log.start(HandTimers(), lambda job: job())  # type: ignore[arg-type]
    log.stop()
    meter.tally("orders", Operation.SEND).took_in(1, 200_000, 200_000, 0)
    assert len(records_in(tmp_path)) == 1
    log.close()()
    assert [line["units"] for line in records_in(tmp_path)] == [0, 200_000, 0]
    assert meter.unwritten_units == 0
