"""Receipts as rows of a table: the schema for Spark, and record batches in that shape.

Rule 1: the columns are the fields of Receipt, in their order; its milliseconds become timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from twinbus.core.receipts import Receipt

if TYPE_CHECKING:
    import pyarrow

__all__ = ["RECEIPT_COLUMNS", "to_record_batch"]

RECEIPT_COLUMNS: Final = (
    "queue string, sequence_number bigint, message_id string, destination string, "
    "outcome string, reason string, size_bytes bigint, enqueued_at timestamp, "
    "received_at timestamp, settled_at timestamp, host string, pid bigint"
)
_TIMES: Final = {"enqueued_at", "received_at", "settled_at"}
_US_PER_MS: Final = 1_000


def to_record_batch(receipts: Sequence[Receipt]) -> pyarrow.RecordBatch:
    """Some receipts, at least one."""
    import pyarrow as pa

    columns: list[Any] = []
    for described, values in zip(
        RECEIPT_COLUMNS.split(", "), zip(*receipts, strict=True), strict=True
    ):
        name, kind = described.split()
        if name in _TIMES:
            us = [None if ms is None else ms * _US_PER_MS for ms in values]
            columns.append(pa.array(us, pa.timestamp("us", tz="UTC")))
        else:
            columns.append(pa.array(values, pa.int64() if kind == "bigint" else pa.string()))
    names = [described.split()[0] for described in RECEIPT_COLUMNS.split(", ")]
    return pa.RecordBatch.from_arrays(columns, names=names)
