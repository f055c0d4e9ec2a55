"""Literal rows for the steps of the books."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BACKLOG = "home/x-servicebus-transfer/3"
TYPES = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "boolean": pa.bool_()}


def frame(spark: SparkSession, columns: str, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """A table of rows that name only what matters."""
    schema = pa.schema([(name, TYPES[kind]) for name, kind in map(str.split, columns.split(", "))])
    rows = list(rows)
    for row in rows:
        assert not set(row) - set(schema.names), f"{set(row) - set(schema.names)} are no columns"
    # As a table of Arrow: Spark has it at once, where it would start tasks for a list.
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema))


def event(place: str, what: str, number: int | None, at_ms: int, **more: Any) -> dict[str, Any]:
    """One line of a broker's audit log."""
    side = "backlog" if "x-servicebus-transfer" in place else "primary"
    return {"side": side, "place": place, "event": what, "number": number, "at_ms": at_ms, **more}


def place(where: str, number: int, end: str | None = None, **more: Any) -> dict[str, Any]:
    """One stay, as places_of() makes it."""
    side = "backlog" if "x-servicebus-transfer" in where else "primary"
    usual = {"generation": 1, "born_ms": 1_000, "last": "stored", "last_ms": 1_000}
    ended = {} if end is None else {"end": end, "end_ms": 2_000, "last": end, "last_ms": 2_000}
    return {"side": side, "place": where, "number": number, **usual, **ended, "end": end, **more}
