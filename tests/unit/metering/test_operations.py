"""The operations log of a namespace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from twinbus.common.clock import Instant
from twinbus.cost.units import Operation
from twinbus.metering.json_lines import JsonLines
from twinbus.metering.operations_log import Meter, OperationsLog

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
    sent = meter.counter("orders", Operation.SEND)
    sent.add_incoming(1, 10, 10, 1_000)
    clock.wall_ms += 10_000
    log.take()()
    sent.add_incoming(1, 5, 5, 500)
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
    clock = HandClock(MIDNIGHT_MS - 1_000)
    log, meter = log_in(tmp_path, clock)
    timers = HandTimers()
    log.start(timers, lambda job: job())  # type: ignore[arg-type]
    assert timers.delays_s == [1.0]
    meter.counter("orders", Operation.PING).add_request()
    clock.wall_ms = MIDNIGHT_MS
    log.take()()
    assert [path.name for path in tmp_path.iterdir()] == ["operations-2026-11-16.jsonl"]


def test_a_clock_that_went_back_writes_no_interval_that_ends_before_it_began(
    tmp_path: Path,
) -> None:
    clock = HandClock(MIDNIGHT_MS)
    log, meter = log_in(tmp_path, clock)
    meter.counter("orders", Operation.PING).add_request()
    clock.wall_ms -= 3_600_000
    log.take()()
    (record,) = records_in(tmp_path)
    assert record["from"] == record["to"] == "2026-11-17T00:00:00.000Z"


def test_a_run_begins_with_a_line_and_ends_with_one_if_it_is_closed(tmp_path: Path) -> None:
    """C1: a reader knows whether something may be missing, and how much at most."""
    clock = HandClock(MIDNIGHT_MS)
    log, meter = log_in(tmp_path, clock)
    log.start(HandTimers(), lambda job: job())  # type: ignore[arg-type]
    meter.counter("orders", Operation.SEND).add_incoming(1, 3, 3, 90)
    log.stop()
    clock.wall_ms += 2_000
    log.close()()

    opened, sent, closed = records_in(tmp_path)
    assert (opened["operation"], closed["operation"]) == ("opened", "closed")
    assert (opened["unwritten_units_max"], opened["interval_s"]) == (1_000, 1)
    assert [each["number"] for each in (opened, sent, closed)] == [1, 2, 3]
    assert closed["to"] == "2026-11-17T00:00:02.000Z"
    amounts = ("calls", "messages", "units", "bytes_in", "bytes_out")
    assert [line[name] for line in (opened, closed) for name in amounts] == [0] * 10


def test_lines_are_written_before_more_than_the_bound_is_missing(tmp_path: Path) -> None:
    """C1: a kill costs at most what the last line says, however busy the second is."""
    log, meter = log_in(tmp_path, HandClock(MIDNIGHT_MS))
    jobs: list[Callable[[], None]] = []
    log.start(HandTimers(), jobs.append)  # type: ignore[arg-type]
    sent, received = (meter.counter("orders", each) for each in (Operation.SEND, Operation.RECEIVE))
    counted, missing = 0, []
    for turn in range(1_000):
        # More and more happens at once.
        units = 1 + turn // 5
        sent.add_incoming(1, units, units, 90_000)
        received.add_outgoing(units, units, 90_000)
        counted += 2 * units
        if len(jobs) > 1:  # The disk is late by one job.
            jobs.pop(0)()
        lines = records_in(tmp_path)
        told = [line["unwritten_units_max"] for line in lines if "unwritten_units_max" in line]
        written = sum(int(str(line["units"])) for line in lines)
        # What is counted in one piece cannot be written in two.
        pieces = 4 * units
        missing.append((counted - written - pieces, int(str(told[-1])) if told else 1_000))
    assert all(each <= bound for each, bound in missing)
    assert max(bound for _each, bound in missing) == 100_000
    assert max(each for each, _bound in missing) > 10_000


def bounds_in(directory: Path) -> list[object]:
    return [
        line["unwritten_units_max"]
        for line in records_in(directory)
        if line["operation"] in ("opened", "flushed")
    ]


def test_the_bound_follows_the_load(tmp_path: Path) -> None:
    """C1: three times what a second has, in few lines; small after a second of nothing."""
    clock = HandClock(MIDNIGHT_MS)
    log, meter = log_in(tmp_path, clock)
    log.opened()()
    sent = meter.counter("orders", Operation.SEND)
    for units in (20, 20, 1_100, 1_000, 900, 1_300, 40, 0, 0):
        if units:
            sent.add_incoming(units, units, units, units)
        clock.wall_ms += 1_000
        log.take()()
    assert bounds_in(tmp_path) == [1_000, 4_000, 1_000]
    flushed = [line for line in records_in(tmp_path) if line["operation"] == "flushed"]
    assert all(line["units"] == line["messages"] == 0 for line in flushed)
    numbers = [line["number"] for line in records_in(tmp_path)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_run_of_22_000_operations_is_told_within_a_useful_bound(tmp_path: Path) -> None:
    """C1, C3: at most a fifth of it is in doubt while it runs, and little when it rests."""
    clock = HandClock(MIDNIGHT_MS)
    log, meter = log_in(tmp_path, clock)
    log.opened()()
    for _second in range(20):
        meter.counter("orders", Operation.SEND).add_incoming(1_100, 1_100, 1_100, 0)
        clock.wall_ms += 1_000
        log.take()()
    assert bounds_in(tmp_path)[-1] == 4_000
    clock.wall_ms += 1_000
    log.take()()
    assert bounds_in(tmp_path)[-1] == 1_000


def test_nothing_is_written_while_nothing_is_counted(tmp_path: Path) -> None:
    """C1: a line begins where the second began in which something happened."""
    clock = HandClock(MIDNIGHT_MS)
    log, meter = log_in(tmp_path, clock)
    jobs: list[Callable[[], None]] = []
    timers = HandTimers()
    log.start(timers, jobs.append)  # type: ignore[arg-type]
    del jobs[:]
    for _second in range(60):
        clock.wall_ms += 1_000
        log._on_timer(timers)  # type: ignore[arg-type]
    assert jobs == []
    meter.counter("orders", Operation.PING).add_request()
    clock.wall_ms += 1_000
    log._on_timer(timers)  # type: ignore[arg-type]
    for job in jobs:
        job()
    (record,) = records_in(tmp_path)
    assert (record["from"], record["to"]) == (
        "2026-11-17T00:01:00.000Z",
        "2026-11-17T00:01:01.000Z",
    )


def test_with_many_lines_the_intervals_are_longer(tmp_path: Path) -> None:
    """C1: a log of many entities does not grow by all of them in every second."""
    clock = HandClock(MIDNIGHT_MS)
    log, meter = log_in(tmp_path, clock)
    delays_s = []
    for entities in (50, 51, 101, 1_000, 3):
        for number in range(entities):
            meter.counter(f"q{number}", Operation.PING).add_request()
        log.take()()
        delays_s.append(log.until_interval_ends_s())
    assert delays_s == [1, 2, 5, 10, 1]


def test_what_is_counted_after_the_stop_is_in_the_last_lines(tmp_path: Path) -> None:
    """C1: nobody runs jobs any more then; close() has what they would have written."""
    log, meter = log_in(tmp_path, HandClock(MIDNIGHT_MS))
    log.start(HandTimers(), lambda job: job())  # type: ignore[arg-type]
    log.stop()
    meter.counter("orders", Operation.SEND).add_incoming(1, 200_000, 200_000, 0)
    assert len(records_in(tmp_path)) == 1
    log.close()()
    assert [line["units"] for line in records_in(tmp_path)] == [0, 200_000, 0]
    assert meter.unwritten_units == 0
