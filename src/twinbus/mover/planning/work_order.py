"""What one task of the syphon is told to do, and what it tells when it has done it.

    WorkOrder --a task works on some backlog queues for some seconds--> WorkReport

What has to be remembered between two shifts (which destinations are closed, which messages were
set aside for them) stays with whoever gives the orders; a task remembers nothing.

Rule 1: an order may be worked twice, or by a task that knows nothing of the first try: numbers
        that are no longer set aside and a lock that is gone are no errors.
Rule 2: a report that never arrives costs time only: what was set aside is found again by looking
        through the queue.
Rule 3: as JSON a report has its numbers as runs (``[first, count]``), so that 100,000 messages in
        a row are a few bytes; of many that do not follow each other, parts go ahead of the rest.
        Whatever is not such a report is refused as a whole.
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
# As many as anybody remembers: a few bytes must not become gigabytes.
NUMBERS_MAX: Final = 1_000_000
SECONDS_MAX: Final = 1e12
# Half of what the desk takes in one line. A run is at most 26 bytes, a character 6.
PART_BYTES_MAX: Final = 8 << 20
RUN_BYTES_MAX: Final = 26
CHARACTER_BYTES_MAX: Final = 6

DeferredNumbers = Mapping[str, Mapping[str, tuple[int, ...]]]
"""Numbers of messages that are set aside: by backlog queue, by destination."""


class CircuitSnapshot(NamedTuple):
    """A destination that takes nothing, in times that mean the same on every machine."""

    path: str
    failure_count: int
    due_in_s: float
    """When it may be probed: from the moment at which the note was written."""
    gone_for_s: float | None
    """How long it has been missing; None when it exists as far as is known."""
    is_missing: bool
    timed_out: bool
    is_refused: bool = False
    """Whether the claim Send is missing for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOrder:
    """What a task shall do. It crosses processes, so it is plain values only."""

    queues: tuple[str, ...]
    """The backlog queues to empty; no other shift of the batch has them."""
    prefetched: tuple[ReceivedMessage, ...] = ()
    """Messages that rang the bell, locked; ``handle`` is None."""
    retry_deferred: DeferredNumbers = field(default_factory=dict)
    """What was set aside and may be tried now."""
    blocked_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By queue, the destinations for which more was set aside than is in ``retry_deferred``."""
    open_circuits: tuple[CircuitSnapshot, ...] = ()
    """The destinations that are closed."""
    scan_from: Mapping[str, int] = field(default_factory=dict)
    """Queues to look through for what somebody else set aside, each from this number on."""
    messages_max: int = 1_000_000
    """No chunk is received once so many messages were."""
    seconds_max: float = 15.0
    """No chunk is received later than this."""
    rate_per_s: float | None = None
    """This shift's share of the allowed rate."""
    is_dry_run: bool = False
    """Only look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkReport:
    """What a task leaves behind for whoever gives the next orders."""

    deferred: DeferredNumbers = field(default_factory=dict)
    """By queue: what is set aside now, of ``retry_deferred`` and of what was found or received."""
    open_circuits: tuple[CircuitSnapshot, ...] = ()
    recovered: tuple[str, ...] = ()
    """Destinations of the order's board that take messages again."""
    emptied: tuple[str, ...] = ()
    """Queues in which a receive found nothing."""
    scanned: tuple[str, ...] = ()
    """Queues that were looked through to their end."""
    to_scan: Mapping[str, int] = field(default_factory=dict)
    """Queues that should have been and were not, each with the number to go on from."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Queues that could not be read, each with a sentence."""
    is_primary_unreachable: bool = False
    """Nobody could be reached at the primary."""
    rate_delay_s: float = 0.0
    """For so long nothing more is to be moved, or the shift's share of the rate is exceeded."""


def split_report(report: WorkReport) -> list[WorkReport]:
    """The report in pieces of a size that can be sent: the last one is the report without the
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
    """The report in values that json.dumps takes."""
    return {
        "aside": {
            queue: {path: _runs_of(numbers) for path, numbers in by_path.items()}
            for queue, by_path in report.deferred.items()
        },
        "board": [list(note) for note in report.open_circuits],
        "opened": list(report.recovered),
        "emptied": list(report.emptied),
        "discovered": list(report.scanned),
        "to_discover": dict(report.to_scan),
        "faults": dict(report.faults),
        "is_primary_away": report.is_primary_unreachable,
        "debt_s": report.rate_delay_s,
    }


def _runs_of(numbers: Iterable[int]) -> list[list[int]]:
    """In the order they have: the longest waiting is first, and shall stay so."""
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
    """What report_to_json made, after a way through JSON; ValueError when it is not that."""
    report = _mapping(value, "the report")
    if set(report) != _REPORT_KEYS:
        raise ValueError(f"a report has exactly these parts: {', '.join(sorted(_REPORT_KEYS))}")
    return WorkReport(
        deferred={
            queue: _numbers_by_path(by_path)
            for queue, by_path in _mapping(report["aside"], "aside").items()
        },
        open_circuits=tuple(_note(each) for each in _list(report["board"], "board")),
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
        is_primary_unreachable=_truth(report["is_primary_away"], "is_primary_away"),
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
                    raise ValueError("numbers in aside are pairs of first and count")
        found[path] = tuple(numbers)
    return found


def _note(value: object) -> CircuitSnapshot:
    match value:
        case [path, failure_count, due_in_s, gone_for_s, is_lost, is_silent, is_refused]:
            return CircuitSnapshot(
                _text(path, "board"),
                _whole(failure_count, NUMBER_MAX, "board"),
                _seconds(due_in_s, "board"),
                None if gone_for_s is None else _seconds(gone_for_s, "board"),
                _truth(is_lost, "board"),
                _truth(is_silent, "board"),
                _truth(is_refused, "board"),
            )
    raise ValueError("board has entries of seven values")


def _mapping(value: object, where: str) -> dict[str, Any]:
    if isinstance(value, dict) and all(isinstance(each, str) for each in value):
        return value
    raise ValueError(f"{where} is no object with names")


def _list(value: object, where: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise ValueError(f"{where} is no list")


def _texts(value: object, where: str) -> tuple[str, ...]:
    return tuple(_text(each, where) for each in _list(value, where))


def _text(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{where} has something else than text")


def _truth(value: object, where: str) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{where} has something else than true or false")


def _whole(value: object, value_max: int, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= value_max:
        return value
    raise ValueError(f"{where} has a number that is not between 0 and {value_max}")


def _seconds(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= value <= SECONDS_MAX:
        return float(value)
    raise ValueError(f"{where} has seconds that make no sense")
