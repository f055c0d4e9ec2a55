"""Receipts as rows of a table: the schema for Spark, and record batches with that schema.

Rule 1: the columns are the fields of Receipt, in their order; its milliseconds become timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from twinbus.mover.planning.receipts import Receipt

if TYPE_CHECKING:
    import pyarrow

__all__ = ["RECEIPT_COLUMNS", "to_record_batch"]

RECEIPT_COLUMNS: Final = (
    "queue string, sequence_number bigint, message_id string, destination string, "
    "outcome string, reason string, size_bytes bigint, enqueued_at timestamp, "
    "received_at timestamp, settled_at timestamp, host string, pid bigint"
)
_NAMES_AND_KINDS: Final = [described.split() for described in RECEIPT_COLUMNS.split(", ")]
_FIELDS: Final = [itemgetter(place) for place in range(len(_NAMES_AND_KINDS))]


def to_record_batch(receipts: Sequence[Receipt]) -> pyarrow.RecordBatch:
    """The rows of at least one receipt."""
    import pyarrow as pa

    arrays = [
        _array(list(map(field, receipts)), kind)
        for field, (_name, kind) in zip(_FIELDS, _NAMES_AND_KINDS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _kind in _NAMES_AND_KINDS])


def _array(values: list[Any], kind: str) -> Any:
    import pyarrow as pa

    spark_type = _types()[kind]
    given_type = pa.timestamp("ms", tz="UTC") if kind == "timestamp" else spark_type
    first = values[0]
    # Most columns have the same value in all rows of a chunk: one conversion is enough.
    if first is not None and values.count(first) == len(values):
        array = pa.repeat(pa.scalar(first, given_type), len(values))
    else:
        array = pa.array(values, given_type)
    return array if given_type is spark_type else array.cast(spark_type)


@cache
def _types() -> dict[str, Any]:
    import pyarrow as pa

    return {
        "string": pa.string(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
