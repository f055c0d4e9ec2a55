"""Literal rows for the steps of the books."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BACKLOG = "home/x-servicebus-transfer/3"


def frame(spark: SparkSession, columns: str, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """A table of rows that name only what matters."""
    names = [each.split()[0] for each in columns.split(", ")]
    for row in rows:
        assert not set(row) - set(names), f"{set(row) - set(names)} are no columns"
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], columns)


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
