"""Lines of an operations log: parsed into columns of Arrow, and validated.

    block --> parse_lines --> validate_lines --> valid lines as columns, damaged ones as text

Whole blocks are parsed by Arrow, the rest line by line in Python. A line is valid, or damaged for
one reason.

Rule 1: Arrow parses a block only if every line of it begins and ends with a brace. Then no object
        can continue in the next line, and as many objects as lines means one in each.
Rule 2: a block that Arrow refuses is halved until few lines are left, and these are parsed in
        Python: one bad line makes the lines around it slower, and has no other effect.
Rule 3: a field has its fixed type, or is missing. A line with a field of another type is damaged,
        for both parsers.
Rule 4: a damaged line never stops a report. Its text and its reason are kept, and none of its
        values are used.
Rule 5: nothing here depends on the time zone or the clock of the machine: times are UTC, and the
        allowed range of times is fixed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from twinbus.cost.units import Amount, Operation
from twinbus.metering.operations_log import CLOSED, NOT_COUNTED, RECORD_VERSION

__all__ = [
    "AMOUNTS",
    "BROKER",
    "CLIENT",
    "CLOSED",
    "FIELDS",
    "LINES",
    "NOT_COUNTED",
    "Damaged",
    "Fields",
    "ValidatedLines",
    "parse_lines",
    "validate_lines",
]

AMOUNTS: Final = Amount._fields
NAMES: Final = ("run", "from", "to", "namespace", "entity", "operation", "source")
NUMBERS: Final = ("version", "number", *AMOUNTS, "unwritten_units_max")
FIELDS: Final = pa.schema(
    [*((name, pa.string()) for name in NAMES), *((name, pa.int64()) for name in NUMBERS)]
)
NOT_JSON: Final = "not a line of JSON with a version"
OTHER_TYPE: Final = "a field of another type"

# Arrow is quickest with what stays in the processor's cache.
_PORTION_BYTES: Final = 1 << 20
_READ: Final = pa.json.ReadOptions(use_threads=False, block_size=2 * _PORTION_BYTES)
_PARSE: Final = pa.json.ParseOptions(explicit_schema=FIELDS, unexpected_field_behavior="ignore")
# Parsing this many in Python takes as long as two more calls of Arrow.
_BY_HAND_MAX: Final = 64
_INT64_END: Final = 1 << 63


class Fields(NamedTuple):
    """Columns, and the lines that they were parsed from: one for each row."""

    table: pa.Table
    lines: bytes


class Damaged(NamedTuple):
    """A line that is not counted."""

    text: str
    reason: str


def parse_lines(data: bytes) -> Iterator[Fields | Damaged]:
    """All lines of a block, in any order; missing fields are null."""
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin + _PORTION_BYTES) + 1 or len(data)
        yield from _portion(data[begin:end])
        begin = end


def _portion(data: bytes) -> Iterator[Fields | Damaged]:
    if not data.endswith(b"\n"):
        data += b"\n"
    table = _by_arrow(data)
    if table is not None:
        yield Fields(table, data)
        return
    lines = [line for line in data.split(b"\n") if line]
    whole = [line for line in lines if line[:1] == b"{" and line[-1:] == b"}"]
    yield from _halved(whole)
    if len(whole) < len(lines):
        yield from _by_hand([line for line in lines if line[:1] != b"{" or line[-1:] != b"}"])


def _by_arrow(data: bytes) -> pa.Table | None:
    """None if Arrow cannot parse it."""
    lines = data.count(b"\n")
    if data[:1] != b"{" or data[-2:] != b"}\n" or data.count(b"}\n{") != lines - 1:
        return None
    try:
        if not data.isascii():
            data.decode()  # Arrow would accept bytes that are not UTF-8.
        source = pa.BufferReader(data)
        table = pa.json.read_json(source, read_options=_READ, parse_options=_PARSE)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return table if table.num_rows == lines else None


def _halved(lines: Sequence[bytes]) -> Iterator[Fields | Damaged]:
    if len(lines) <= _BY_HAND_MAX:
        yield from _by_hand(lines)
        return
    data = _joined(lines)
    table = _by_arrow(data)
    if table is not None:
        yield Fields(table, data)
        return
    middle = len(lines) // 2
    yield from _halved(lines[:middle])
    yield from _halved(lines[middle:])


def _by_hand(lines: Sequence[bytes]) -> Iterator[Fields | Damaged]:
    rows, kept = [], []
    for line in lines:
        fields, reason = _fields(line)
        if fields is None:
            yield Damaged(line.decode(errors="replace"), reason)
        else:
            rows.append(fields)
            kept.append(line)
    if rows:
        yield Fields(pa.Table.from_pylist(rows, schema=FIELDS), _joined(kept))


def _fields(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """Its fields, or the reason why it is damaged."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None, NOT_JSON
    if not isinstance(record, dict):
        return None, NOT_JSON
    fields = {name: record.get(name) for name in FIELDS.names}
    if not all(value is None or _is_text(value) for value in map(fields.get, NAMES)):
        return None, OTHER_TYPE
    if not all(value is None or _is_number(value) for value in map(fields.get, NUMBERS)):
        return None, OTHER_TYPE
    return fields, ""


def _is_text(value: object) -> bool:
    # Half a surrogate pair is valid text in Python only.
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_number(value: object) -> bool:
    return type(value) is int and -_INT64_END <= value < _INT64_END


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"\n".join([*lines, b""])


BROKER: Final = "broker"
CLIENT: Final = "client"

LINES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("namespace", "source", "run")),
        ("number", pa.int64()),
        *((name, pa.string()) for name in ("entity", "operation")),
        ("minute", pa.int32()),
        *((name, pa.int64()) for name in (*AMOUNTS, "to_ms", "unwritten_units_max")),
    ]
)
_NEEDED: Final = ("run", "number", "from", "to", "namespace", "entity", "operation", *AMOUNTS)

# Created once: for a plain number Arrow checks each time whether it is a pandas object.
_ZERO: Final = pa.scalar(0, pa.int64())
_NULL: Final = pa.scalar(None, pa.int64())
_FALSE: Final = pa.scalar(False)
_BROKER: Final = pa.scalar(BROKER)
_SOURCES: Final = pa.array([BROKER, CLIENT])
_OPERATIONS: Final = pa.array([*(operation.value for operation in Operation), *NOT_COUNTED])
_VERSION: Final = pa.scalar(RECORD_VERSION, pa.int64())
_MINUTE_MS: Final = pa.scalar(60_000, pa.int64())
_UTC_MS: Final = pa.timestamp("ms", "UTC")
# The service exists since 2010, and a line counts some seconds.
_FIRST_MS, _END_MS = (
    pa.scalar(int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1000, pa.int64())
    for year in (2010, 2100)
)
_INTERVAL_MS_MAX: Final = pa.scalar(24 * 3_600_000, pa.int64())
# In one line, which is ten seconds at most; sums of them stay far below the limit of the price
# computation.
_AMOUNT_MAX: Final = pa.scalar(10**12, pa.int64())


class ValidatedLines(NamedTuple):
    valid: pa.Table
    """Columns of LINES."""
    damaged: list[Damaged]


def validate_lines(data: bytes) -> ValidatedLines:
    """All lines of a block."""
    parts = list(parse_lines(data))
    damaged = [part for part in parts if isinstance(part, Damaged)]
    read = [part for part in parts if isinstance(part, Fields)]
    if not read:
        return ValidatedLines(LINES.empty_table(), damaged)
    lines, reasons = _validate(pa.concat_tables([part.table for part in read]).combine_chunks())
    if reasons is not None:
        lines = lines.filter(pc.is_null(reasons))
        damaged += _damaged_lines(b"".join(part.lines for part in read), reasons)
    return ValidatedLines(lines, damaged)


def _validate(fields: pa.Table) -> tuple[pa.Table, pa.Array | None]:
    """Every line as if it were valid; and reasons why some are not, if there are any."""
    columns = {name: fields[name].combine_chunks() for name in fields.column_names}
    columns["source"] = pc.fill_null(columns["source"], _BROKER)
    columns["from_ms"], columns["to_ms"] = _ms(columns["from"]), _ms(columns["to"])
    # A time in the year 9999 has no such minute; its line is damaged.
    columns["minute"] = pc.divide(columns["from_ms"], _MINUTE_MS).cast(pa.int32(), safe=False)
    lines = pa.table([columns[name] for name in LINES.names], schema=LINES)
    found = [(pc.fill_null(when, _FALSE), reason) for when, reason in _reasons(columns)]
    if not any(pc.any(when).as_py() for when, _ in found):
        return lines, None
    whens, reasons = zip(*found, strict=True)
    cases = pa.StructArray.from_arrays(whens, [str(at) for at in range(len(whens))])
    return lines, pc.case_when(cases, *reasons)


def _reasons(of: dict[str, pa.Array]) -> Iterator[tuple[pa.Array, str]]:
    """Conditions and reasons: the first true one counts; with a missing field a condition is
    null."""
    amounts = [of[name] for name in ("number", *AMOUNTS)]
    begin, stop = of["from_ms"], of["to_ms"]
    yield pc.is_null(of["version"]), "a field is missing"
    yield pc.not_equal(of["version"], _VERSION), "unknown version"
    yield _any(pc.is_null(of[name]) for name in _NEEDED), "a field is missing"
    yield pc.invert(pc.is_in(of["operation"], value_set=_OPERATIONS)), "unknown operation"
    yield pc.invert(pc.is_in(of["source"], value_set=_SOURCES)), "unknown source"
    yield _any(pc.less(amount, _ZERO) for amount in amounts), "a negative number"
    yield _any(pc.greater(amount, _AMOUNT_MAX) for amount in amounts), "an absurd number"
    yield pc.or_(pc.is_null(begin), pc.is_null(stop)), "a time that is none"
    yield pc.greater(begin, stop), "it ends before it begins"
    yield pc.or_(pc.less(begin, _FIRST_MS), pc.greater_equal(stop, _END_MS)), "an absurd time"
    yield pc.greater(pc.subtract(stop, begin), _INTERVAL_MS_MAX), "an absurd time"


def _any(conditions: Iterable[pa.Array]) -> pa.Array:
    return reduce(pc.or_kleene, conditions)


def _ms(times: pa.Array) -> pa.Array:
    """In milliseconds; null for times that are not in the format of the logs.

    Many lines have the same time, and each distinct time is parsed once.
    """
    encoded = times.dictionary_encode()
    texts = encoded.dictionary
    try:
        known = _read_ms(texts)
    except pa.ArrowInvalid:
        known = pa.concat_arrays([_one_ms(texts[at : at + 1]) for at in range(len(texts))])
    return known.take(encoded.indices)


def _one_ms(text: pa.Array) -> pa.Array:
    try:
        return _read_ms(text)
    except pa.ArrowInvalid:
        return pa.nulls(1, pa.int64())


def _read_ms(texts: pa.Array) -> pa.Array:
    is_utc = pc.ends_with(texts, "Z")
    return pc.if_else(is_utc, texts.cast(_UTC_MS).cast(pa.int64()), _NULL)


def _damaged_lines(lines: bytes, reasons: pa.Array) -> Iterator[Damaged]:
    texts = lines.split(b"\n")
    for at in pc.indices_nonzero(pc.is_valid(reasons)).to_pylist():
        yield Damaged(texts[at].decode(errors="replace"), reasons[at].as_py())
