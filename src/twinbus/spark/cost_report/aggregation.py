"""From lines to sums, in columns of Arrow: copies of lines are counted once, and summed by minute.

    valid lines  --> without_copies --> summed_by_minute --> summed_by_hour
                                   |                    `-> found_in_short
                                    `-> spans_of

Rule 1: namespace, source, run and number identify a line. Of its copies one is counted.
Rule 2: sums contain the run, so that it can be noted which runs have closed their log.
        Of values that a run reports about itself the last one counts: lines are in their order.
Rule 3: sums of parts of the lines are the same as sums of all, if no line is in two of the parts.
        Spans show that: they are the numbers of each run in a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from twinbus.spark.cost_report.line_parser import AMOUNTS
from twinbus.spark.cost_report.log_files import MINUTES_A_DAY, MINUTES_AN_HOUR

__all__ = ["found_in_short", "spans_of", "summed_by_hour", "summed_by_minute", "without_copies"]

_RUN: Final = ("namespace", "source", "run")
_SUM: Final = (*_RUN, "entity", "operation", "minute")
_ENTITY: Final = ("minute", "namespace", "source", "entity", "operation")
_SHORT: Final = ("day", *_RUN, "operation")
# Created once: for a plain number Arrow checks each time whether it is a pandas object.
_ZERO: Final = pa.scalar(0, pa.int64())
_ONE: Final = pa.scalar(1, pa.int64())
_TRUE: Final = pa.scalar(True)
_DAY: Final = pa.scalar(MINUTES_A_DAY, pa.int32())
_HOUR: Final = pa.scalar(MINUTES_AN_HOUR, pa.int32())
# Of one part. A run is written in the order of its numbers, so it has a few.
SPANS_MAX: Final = 1_000


def without_copies(lines: pa.Table) -> pa.Table:
    """One row for each line, by run and number; with the number of its duplicates, and the first
    and the last of the days in the names of their files."""
    lines = _by_run_and_number(lines)
    is_first = pc.or_(_is_new(_of(lines, "log")), _is_new(_of(lines, "number")))
    firsts = pc.indices_nonzero(is_first)
    lasts = _lasts(firsts, len(lines))
    duplicates = pc.subtract(lasts, firsts).cast(pa.int64())
    other_file_day = lines["file_day"].take(lasts)
    if len(firsts) < len(lines):
        lines = lines.take(firsts)
    lines = lines.append_column("other_file_day", other_file_day)
    return lines.append_column("duplicates", duplicates)


def spans_of(lines: pa.Table) -> pa.Table:
    """Which numbers there are of each run in without_copies(): ``first`` to ``last``, no gap.

    If there are too many, it is one for each run, which may include missing numbers.
    """
    number = _of(lines, "number")
    is_first = pc.or_(_is_new(_of(lines, "log")), _is_new(number, _ONE))
    firsts = pc.indices_nonzero(is_first)
    spans = lines.select(_RUN).take(firsts)
    spans = spans.append_column("first", number.take(firsts))
    spans = spans.append_column("last", number.take(_lasts(firsts, len(lines))))
    if len(spans) <= SPANS_MAX:
        return spans
    return _summed(spans, _RUN, min=("first",), max=("last",))


def summed_by_minute(lines: pa.Table) -> pa.Table:
    """One row for each minute, run, entity and operation."""
    day = pc.divide(lines["minute"], _DAY)
    is_dated = pc.greater_equal(lines["file_day"], _ZERO)
    is_elsewhere = pc.and_(
        pc.not_equal(lines["file_day"], day), pc.not_equal(lines["other_file_day"], day)
    )
    late = pc.and_(is_dated, is_elsewhere).cast(pa.int64())
    sums = _summed(
        lines.append_column("late", late),
        _SUM,
        sum=(*AMOUNTS, "duplicates", "late"),
        count=("number",),
        max=("to_ms",),
        last=("unwritten_units_max",),
    ).rename_columns({"number": "records"})
    return sums.append_column("day", pc.divide(sums["minute"], _DAY))


def summed_by_hour(sums: pa.Table) -> pa.Table:
    """The same for each hour, which is named by its first minute."""
    hour = pc.multiply(pc.divide(sums["minute"], _HOUR), _HOUR)
    hours = sums.set_column(sums.schema.get_field_index("minute"), "minute", hour)
    return _summed(hours, _ENTITY, sum=(*AMOUNTS, "records", "duplicates", "late"))


def found_in_short(sums: pa.Table) -> pa.Table:
    """One row for each run and operation of a day, with its first minute and its last."""
    return _summed(
        sums.append_column("last_minute", sums["minute"]),
        _SHORT,
        sum=("messages", "units", "bytes_out"),
        min=("minute",),
        max=("last_minute", "to_ms"),
        last=("unwritten_units_max",),
    )


def _summed(rows: pa.Table, keys: Sequence[str], **how: Sequence[str]) -> pa.Table:
    """Groups of rows, each column aggregated by its function."""
    wanted = [(name, function) for function, names in how.items() for name in names]
    found = rows.group_by(list(keys), use_threads=False).aggregate(wanted)
    return found.rename_columns([*keys, *(name for name, _ in wanted)])


def _by_run_and_number(lines: pa.Table) -> pa.Table:
    """In the order in which logs are written, which most have already; ``log`` numbers the logs."""
    lines = lines.append_column("log", _logs(lines))
    order = [(name, "ascending") for name in ("log", "number", "file_day")]
    is_in_order = _TRUE
    for name, _ in reversed(order):
        step = pc.pairwise_diff(_of(lines, name)).cast(pa.int64())
        is_in_order = pc.or_(pc.greater(step, _ZERO), pc.and_(pc.equal(step, _ZERO), is_in_order))
    if pc.all(is_in_order).as_py():
        return lines
    return lines.take(pc.sort_indices(lines, sort_keys=order))


def _logs(lines: pa.Table) -> pa.Array:
    """A number for each namespace, source and run, in the order of their first lines."""
    codes = pa.repeat(_ZERO, len(lines))
    for name in _RUN:
        encoded = _of(lines, name).dictionary_encode()
        codes = pc.multiply(codes, pa.scalar(len(encoded.dictionary), pa.int64()))
        codes = pc.add(codes, encoded.indices)
    return codes.dictionary_encode().indices.cast(pa.int64())


def _is_new(values: pa.Array, step: pa.Scalar = _ZERO) -> pa.Array:
    """Whether a row does not follow the one before it."""
    return pc.fill_null(pc.not_equal(pc.pairwise_diff(values), step), _TRUE)


def _lasts(firsts: pa.Array, rows: int) -> pa.Array:
    """The last row of each group, where groups begin at ``firsts`` without gaps between them."""
    ends = pa.concat_arrays([firsts[1:], pa.array([rows], firsts.type)])
    return pc.subtract(ends, _ONE.cast(firsts.type))


def _of(lines: pa.Table, name: str) -> pa.Array:
    return lines[name].combine_chunks()
