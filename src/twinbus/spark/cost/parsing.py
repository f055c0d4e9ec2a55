"""Lines of JSON to columns of Arrow: whole blocks by Arrow's parser, the rest line by line.

    bytes --> with_fields --> columns, one row for each line; and lines that have no fields

Rule 1: Arrow reads a block only if every line of it begins with a brace and ends with one. Then no
        object can go on in the next line, and as many objects as lines means one in each.
Rule 2: what Arrow refuses is halved until few lines are left, and these are read by hand: one bad
        line costs its neighbours some time, and nothing else.
Rule 3: a field has the type that it always has, or is missing. A line where one has another type
        is damaged, whoever reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.json

from twinbus.core.costs import Amount

__all__ = ["AMOUNTS", "FIELDS", "Damaged", "Fields", "with_fields"]

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
# To read so many by hand takes as long as to ask Arrow twice more.
_BY_HAND_MAX: Final = 64
_INT64_END: Final = 1 << 63


class Fields(NamedTuple):
    """Columns, and the lines that they were made from: one for each row."""

    table: pa.Table
    lines: bytes


class Damaged(NamedTuple):
    """A line that counts nothing."""

    text: str
    reason: str


def with_fields(data: bytes) -> Iterator[Fields | Damaged]:
    """All lines of a block, in any order; null is what a line does not have."""
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
    """None if that is not for Arrow to read."""
    lines = data.count(b"\n")
    if data[:1] != b"{" or data[-2:] != b"}\n" or data.count(b"}\n{") != lines - 1:
        return None
    try:
        if not data.isascii():
            data.decode()  # Arrow would let through what is no UTF-8.
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
    """Its fields, or why there are none."""
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
    # Half a surrogate pair is a text for Python, and for nobody else.
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_number(value: object) -> bool:
    return type(value) is int and -_INT64_END <= value < _INT64_END


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"\n".join([*lines, b""])
