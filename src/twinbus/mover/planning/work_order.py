"""What one task of the syphon on Spark has to do, and its report.

    WorkOrder --a task serves some backlog queues for some seconds--> WorkReport

The state between two orders (which circuits are open, which messages are deferred) is kept by the
dispatcher; a task keeps none.

Rule 1: an order may be run twice, or by another task than at first: numbers that are no longer
        deferred and locks that are lost are not errors.
Rule 2: a report that never arrives costs time only: deferred messages are found again by a scan of
        the queue.
Rule 3: as JSON a report has its numbers as runs (``[first, count]``), so that 100,000 consecutive
        numbers are a few bytes; with many that are not consecutive, parts are sent before the
        rest. A value that is not such a report is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from twinbus.encoding.transit import ReceivedMessage

__all__ = [
    "CircuitSnapshot",
    "DeferredNumbers",
    "WorkOrder",
    "WorkReport",
    "report_from_json",
    "report_to_json",
    "split_report",
]

NUMBER_MAX: Final = (1 << 63) - 1
# As many as a dispatcher remembers: a few bytes must not become gigabytes.
NUMBERS_MAX: Final = 1_000_000
SECONDS_MAX: Final = 1e12
# Half of what the driver accepts in one line. A run is at most 26 bytes, a character 6.
PART_BYTES_MAX: Final = 8 << 20
RUN_BYTES_MAX: Final = 26
CHARACTER_BYTES_MAX: Final = 6

DeferredNumbers = Mapping[str, Mapping[str, tuple[int, ...]]]
"""Numbers of deferred messages: by backlog queue, by destination."""


class CircuitSnapshot(NamedTuple):
    """The open circuit of a destination, in times that mean the same on every machine."""

    path: str
    failure_count: int
    due_in_s: float
    """When it may be probed: counted from the time of the snapshot."""
    gone_for_s: float | None
    """How long it has been missing; None when it is not known to be missing."""
    is_missing: bool
    timed_out: bool
    is_refused: bool = False
    """Whether the Send claim is missing for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOrder:
    """What a task has to do. It is sent between processes, so it has plain values only."""

    queues: tuple[str, ...]
    """The backlog queues to empty; no other order of the batch has them."""
    prefetched: tuple[ReceivedMessage, ...] = ()
    """Messages that the watch of a queue received, locked; ``handle`` is None."""
    retry_deferred: DeferredNumbers = field(default_factory=dict)
    """Deferred messages that may be retried now."""
    blocked_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By queue, the destinations with more deferred messages than ``retry_deferred`` has."""
    open_circuits: tuple[CircuitSnapshot, ...] = ()
    """The open circuits of destinations."""
    scan_from: Mapping[str, int] = field(default_factory=dict)
    """Queues to scan for messages that another syphon deferred, each from this number on."""
    messages_max: int = 1_000_000
    """No chunk is received after this many messages."""
    seconds_max: float = 15.0
    """No chunk is received after this time."""
    rate_per_s: float | None = None
    """The share of the rate limit for this order."""
    is_dry_run: bool = False
    """Nothing is received; peeks only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkReport:
    """The state that a task returns to the dispatcher."""

    deferred: DeferredNumbers = field(default_factory=dict)
    """By queue: what is deferred now, of ``retry_deferred`` and of what was found or received."""
    open_circuits: tuple[CircuitSnapshot, ...] = ()
    recovered: tuple[str, ...] = ()
    """Destinations of the order's ``open_circuits`` that are available again."""
    emptied: tuple[str, ...] = ()
    """Queues in which a receive found nothing."""
    scanned: tuple[str, ...] = ()
    """Queues that were scanned to their end."""
    to_scan: Mapping[str, int] = field(default_factory=dict)
    """Queues whose scan did not reach the end, each with the number to continue from."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Queues that could not be read, each with a sentence."""
    is_primary_unreachable: bool = False
    """No connection to the primary could be opened."""
    rate_delay_s: float = 0.0
    """How long no message may be moved, to stay within the order's share of the rate."""


def split_report(report: WorkReport) -> list[WorkReport]:
    """The report in parts of a size that can be sent: the last one is the report without the
    numbers that are in the others."""
    pieces: list[dict[str, dict[str, tuple[int, ...]]]] = [{}]
    room_bytes = PART_BYTES_MAX
    for queue, by_path in report.deferred.items():
        for path, numbers in by_path.items():
            while numbers:
                room_bytes -= CHARACTER_BYTES_MAX * len(path)
                if room_bytes < RUN_BYTES_MAX:
                    pieces.append({})
                    room_bytes = PART_BYTES_MAX
                fitting = room_bytes // RUN_BYTES_MAX
                pieces[-1].setdefault(queue, {})[path] = numbers[:fitting]
                room_bytes -= RUN_BYTES_MAX * min(fitting, len(numbers))
                numbers = numbers[fitting:]
    *ahead, last = pieces
    return [*(WorkReport(deferred=each) for each in ahead), replace(report, deferred=last)]


# -- a report as JSON ---------------------------------------------------------------------

# Sent between processes: the words stay when a field gets another name.
_REPORT_KEYS: Final = frozenset(
    (
        "aside",
        "board",
        "opened",
        "emptied",
        "discovered",
        "to_discover",
        "faults",
        "is_primary_away",
        "debt_s",
    )
)


def report_to_json(report: WorkReport) -> dict[str, Any]:
    """The report in values that json.dumps accepts."""
    return {
        "aside": {
            queue: {path: _to_runs(numbers) for path, numbers in by_path.items()}
            for queue, by_path in report.deferred.items()
        },
        "board": [list(snapshot) for snapshot in report.open_circuits],
        "opened": list(report.recovered),
        "emptied": list(report.emptied),
        "discovered": list(report.scanned),
        "to_discover": dict(report.to_scan),
        "faults": dict(report.faults),
        "is_primary_away": report.is_primary_unreachable,
        "debt_s": report.rate_delay_s,
    }


def _to_runs(numbers: Iterable[int]) -> list[list[int]]:
    """In their order: the longest waiting number stays first."""
    runs: list[list[int]] = []
    following = None
    for number in numbers:
        if number == following:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
        following = number + 1
    return runs


def report_from_json(value: object) -> WorkReport:
    """The report that report_to_json() has encoded; ValueError for any other value."""
    report = _mapping(value, "the report")
    if set(report) != _REPORT_KEYS:
        raise ValueError(f"A report must have exactly the keys {', '.join(sorted(_REPORT_KEYS))}.")
    return WorkReport(
        deferred={
            queue: _numbers_by_path(by_path)
            for queue, by_path in _mapping(report["aside"], "aside").items()
        },
        open_circuits=tuple(_snapshot(each) for each in _list(report["board"], "board")),
        recovered=_texts(report["opened"], "opened"),
        emptied=_texts(report["emptied"], "emptied"),
        scanned=_texts(report["discovered"], "discovered"),
        to_scan={
            queue: _whole(number, NUMBER_MAX, "to_discover")
            for queue, number in _mapping(report["to_discover"], "to_discover").items()
        },
        faults={
            queue: _text(sentence, "faults")
            for queue, sentence in _mapping(report["faults"], "faults").items()
        },
        is_primary_unreachable=_boolean(report["is_primary_away"], "is_primary_away"),
        rate_delay_s=_seconds(report["debt_s"], "debt_s"),
    )


def _numbers_by_path(value: object) -> dict[str, tuple[int, ...]]:
    room = NUMBERS_MAX
    found: dict[str, tuple[int, ...]] = {}
    for path, runs in _mapping(value, "aside").items():
        numbers: list[int] = []
        for run in _list(runs, "aside"):
            match run:
                case [first, count]:
                    _whole(first, NUMBER_MAX, "aside")
                    room -= _whole(count, room, "aside")
                    _whole(first + count, NUMBER_MAX, "aside")
                    numbers.extend(range(first, first + count))
                case _:
                    raise ValueError("Numbers in aside must be pairs of first and count.")
        found[path] = tuple(numbers)
    return found


def _snapshot(value: object) -> CircuitSnapshot:
    match value:
        case [path, failure_count, due_in_s, gone_for_s, is_missing, timed_out, is_refused]:
            return CircuitSnapshot(
                _text(path, "board"),
                _whole(failure_count, NUMBER_MAX, "board"),
                _seconds(due_in_s, "board"),
                None if gone_for_s is None else _seconds(gone_for_s, "board"),
                _boolean(is_missing, "board"),
                _boolean(timed_out, "board"),
                _boolean(is_refused, "board"),
            )
    raise ValueError("Entries of board must have seven values.")


def _mapping(value: object, where: str) -> dict[str, Any]:
    if isinstance(value, dict) and all(isinstance(each, str) for each in value):
        return value
    raise ValueError(f"Value of {where} must be an object.")


def _list(value: object, where: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise ValueError(f"Value of {where} must be a list.")


def _texts(value: object, where: str) -> tuple[str, ...]:
    return tuple(_text(each, where) for each in _list(value, where))


def _text(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"Value in {where} must be text.")


def _boolean(value: object, where: str) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"Value in {where} must be true or false.")


def _whole(value: object, value_max: int, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= value_max:
        return value
    raise ValueError(f"Number in {where} must be from 0 to {value_max}.")


def _seconds(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= value <= SECONDS_MAX:
        return float(value)
    raise ValueError(f"Seconds in {where} must be from 0 to {SECONDS_MAX:g}.")
