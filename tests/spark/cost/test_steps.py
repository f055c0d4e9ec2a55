"""From lines to sums, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.cost.logs import line, without, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MINUTE = 29_745_240 + 3_600  # Of some day; what matters is its neighbours.
JUDGED = (
    "reason string, text string, file string, file_day int, minute int, namespace string, "
    "source string, run string, number long, entity string, operation string, calls long, "
    "messages long, units long, bytes_in long, bytes_out long, to_ms long, "
    "unwritten_units_max long"
)
DAY = MINUTE // 1440

DAMAGED: list[tuple[dict[str, Any] | str, str]] = [
    ('{"version":1,"run":"00', "not a line of JSON with a version"),
    ("\x00\x00\x00", "not a line of JSON with a version"),
    ("[1, 2]", "not a line of JSON with a version"),
    (line(1, units="three"), "a field of another type"),
    (line(2, units=1.5), "a field of another type"),
    (line(3, version=2), "unknown version"),
    (without("version", 4), "a field is missing"),
    (without("run", 5), "a field is missing"),
    (without("entity", 6), "a field is missing"),
    (without("bytes_out", 7), "a field is missing"),
    (line(8, operation="teleport"), "unknown operation"),
    (line(9, source="rumour"), "unknown source"),
    (line(10, units=-1), "a negative number"),
    (line(11, messages=10**13), "an absurd number"),
    (line(12) | {"from": "yesterday"}, "a time that is none"),
    (line(13) | {"from": "2026-11-16T10:00:00"}, "a time that is none"),
    (line(14) | {"to": "2026-11-16T09:59:59.000Z"}, "it ends before it begins"),
    (line(15, "1970-01-01T00:00:00"), "an absurd time"),
    (line(16, "2999-01-01T00:00:00"), "an absurd time"),
    (line(17) | {"to": "2026-11-18T10:00:00.000Z"}, "an absurd time"),
]


def judged_row(number: int, **fields: Any) -> dict[str, Any]:
    amounts = {"calls": 1, "messages": 3, "units": 3, "bytes_in": 300, "bytes_out": 0}
    usual = {
        "file_day": DAY, "minute": MINUTE, "namespace": "home", "source": "broker", "run": "r",
        "number": number, "entity": "orders", "operation": "send", "to_ms": 10, **amounts,
    }  # fmt: skip
    return usual | fields


def frame(spark: SparkSession, schema: str, rows: list[dict[str, Any]]) -> DataFrame:
    names = [column.split()[0] for column in schema.split(", ")]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], schema)


def test_a_line_is_usable_or_damaged_for_one_reason(spark: SparkSession, tmp_path: Path) -> None:
    """C3: damaged records are kept with their text and a reason, and nothing else of them."""
    from twinbus.spark.cost.lines import judged, read_lines, with_fields

    good = line(20, "2026-11-16T10:01:00", unknown_field="from a later version")
    dated = write(
        tmp_path / "a [b] *{c}?" / "operations-2026-11-16.1.jsonl",
        [*(each for each, _ in DAMAGED), "", good],
    )
    older = without("source", 21)
    undated = write(tmp_path / "operations-x.jsonl", [older])

    lines = read_lines(spark, [str(dated), str(undated)]).transform(with_fields)
    rows = [row.asDict() for row in lines.transform(judged).collect()]

    found = {row["text"]: row["reason"] for row in rows if row["reason"] is not None}
    assert sorted(found.values()) == sorted(reason for _, reason in DAMAGED)
    assert found['{"version":1,"run":"00'] == "not a line of JSON with a version"
    for row in rows:
        if row["reason"] is not None:
            assert row["minute"] is row["units"] is row["namespace"] is row["run"] is None
            assert row["file"].endswith("operations-2026-11-16.1.jsonl")
    usable = {row["number"]: row for row in rows if row["reason"] is None}
    assert usable.keys() == {20, 21}
    assert usable[20] | {"to_ms": 0} == {
        "reason": None, "text": None, "file": None, "file_day": 20_773, "minute": 29_913_721,
        "namespace": "home", "source": "broker", "run": "00000000000000aa", "number": 20,
        "entity": "orders", "operation": "send", "calls": 1, "messages": 3, "units": 3,
        "bytes_in": 300, "bytes_out": 0, "to_ms": 0, "unwritten_units_max": None,
    }  # fmt: skip
    assert (usable[21]["file_day"], usable[21]["source"]) == (-1, "broker")


def test_what_came_twice_is_counted_once_and_then_by_the_minute(spark: SparkSession) -> None:
    """C3: duplicates are dropped by run and number; late lines count on their own day."""
    from twinbus.spark.cost.steps import summed_by_minute, with_day, without_copies

    rows = [
        judged_row(1),
        judged_row(1),  # A copy.
        judged_row(2, units=5, to_ms=20),
        judged_row(2, run="another"),
        judged_row(2, namespace="away"),
        judged_row(2, source="client"),
        judged_row(3, minute=MINUTE + 1),
        judged_row(4, file_day=DAY + 1, entity="late"),
        judged_row(5, file_day=DAY + 1, entity="copied"),
        judged_row(5, entity="copied"),  # Also where it belongs, so it is not late.
        judged_row(6, file_day=-1, entity="undated"),
        {"reason": "torn", "text": "{", "file": "f", "file_day": DAY},
        {"reason": "torn", "text": "{", "file": "f", "file_day": DAY},
        {"reason": "torn", "text": "[", "file": "f", "file_day": DAY},
    ]

    once = frame(spark, JUDGED, rows).transform(without_copies, 3, 2).cache()
    sums = [row.asDict() for row in once.transform(summed_by_minute).transform(with_day).collect()]

    assert {(row.namespace, row.source, row.run, row.number, row.copies)
            for row in once.collect() if row.number is not None} == {
        ("home", "broker", "r", 1, 2), ("home", "broker", "r", 2, 1),
        ("home", "broker", "another", 2, 1), ("away", "broker", "r", 2, 1),
        ("home", "client", "r", 2, 1), ("home", "broker", "r", 3, 1), ("home", "broker", "r", 4, 1),
        ("home", "broker", "r", 5, 2), ("home", "broker", "r", 6, 1),
    }  # fmt: skip
    once.unpersist()
    [first] = [
        s for s in sums
        if (s["run"], s["namespace"], s["source"], s["minute"], s["entity"])
        == ("r", "home", "broker", MINUTE, "orders")
    ]  # fmt: skip
    assert (first["units"], first["calls"], first["messages"], first["to_ms"]) == (8, 2, 6, 20)
    assert (first["records"], first["duplicates"], first["late"]) == (2, 1, 0)
    late = {s["entity"]: (s["late"], s["duplicates"], s["day"]) for s in sums if s["late"]}
    assert late == {"late": (1, 0, DAY)}
    damaged = [(s["text"], s["records"] + s["duplicates"], s["day"]) for s in sums if s["reason"]]
    assert sorted(damaged) == [("[", 1, None), ("{", 2, None)]


SUMS = (
    "minute int, namespace string, entity string, operation string, source string, calls long, "
    "messages long, units long, bytes_in long, bytes_out long, records long, duplicates long, "
    "late long"
)


def sum_row(entity: str = "orders", operation: str = "send", **fields: Any) -> dict[str, Any]:
    usual = {
        "minute": MINUTE, "namespace": "home", "source": "broker", "calls": 1, "messages": 3,
        "units": 3, "bytes_in": 300, "bytes_out": 50, "records": 1, "duplicates": 0, "late": 0,
    }  # fmt: skip
    return usual | {"entity": entity, "operation": operation} | fields


def test_a_broker_is_believed_before_its_clients(spark: SparkSession) -> None:
    """C3: the lines of a broker and of its clients are never counted both."""
    from twinbus.spark.cost.slicing import from_one_source, in_range

    rows = [
        sum_row("a"), sum_row("b", source="client"), sum_row("c", source="client", namespace="az"),
        sum_row("before", minute=MINUTE - 1), sum_row("after", minute=MINUTE + 1),
        sum_row("", operation="opened"), sum_row("", operation="closed"),
    ]  # fmt: skip
    sums = frame(spark, SUMS, rows).transform(in_range, MINUTE, MINUTE + 1)

    def entities(source: str | None) -> set[str]:
        return {row.entity for row in sums.transform(from_one_source, source, {"home"}).collect()}

    assert entities(None) == {"a", "c"}
    assert entities("broker") == {"a"}
    assert entities("client") == {"b", "c"}


def test_one_query_sums_by_what_was_asked_by_kind_and_by_entity(spark: SparkSession) -> None:
    """C2: what is done at backlog queues, and pings, are on the account of their pair."""
    from pyspark.sql import functions as F

    from twinbus.spark.cost.slicing import (
        BY_ENTITY,
        BY_STEP,
        by_step,
        set_numbers,
        sliced,
        with_pair,
    )

    backlog = "home/x-servicebus-transfer/3"
    rows = [
        sum_row(), sum_row(minute=MINUTE + 1), sum_row(operation="ping", units=1),
        sum_row(backlog, namespace="away"), sum_row(backlog, "receive", namespace="away"),
        sum_row(f"{backlog}/$deadletterqueue", "peek", namespace="away"),
        sum_row("x-servicebus-transfer/3"), sum_row(minute=MINUTE + 1440),
    ]  # fmt: skip
    by = ("namespace", "day")

    found = (
        frame(spark, SUMS, rows).transform(with_pair).transform(by_step, 10)
        .withColumn("cost", F.col("units")).transform(sliced, by).collect()
    )  # fmt: skip

    sets = set_numbers(by)

    def of(names: tuple[str, ...]) -> dict[tuple[Any, ...], int]:
        rows = [row for row in found if row.which == sets[names]]
        return {tuple(row[name] for name in names): row.units for row in rows}

    step, next_day = MINUTE // 10 * 10, (MINUTE + 1440) // 10 * 10
    assert of(by) == {("home", DAY): 10, ("away", DAY): 9, ("home", DAY + 1): 3}
    assert of(BY_STEP) == {
        (step, "send", None): 9, (step, "ping", "home"): 1, (step, "send", "home"): 3,
        (step, "receive", "home"): 3, (step, "peek", "home"): 3, (next_day, "send", None): 3,
    }  # fmt: skip
    assert sum(of(BY_ENTITY).values()) == sum(of(by).values()) == sum(of(BY_STEP).values())


def test_asking_by_entity_and_namespace_is_one_sum_less() -> None:
    from twinbus.spark.cost.slicing import BY_ENTITY, set_numbers

    numbers = set_numbers(("entity", "namespace"))
    assert numbers[BY_ENTITY] == numbers["entity", "namespace"]


@pytest.mark.parametrize("already", [0, 12_999_990])
def test_spark_prices_as_the_arithmetic_does(spark: SparkSession, already: int) -> None:
    """C3: a day costs what its tier says, shared by its operations; months begin anew."""
    from decimal import Decimal

    from twinbus.prices import load_prices
    from twinbus.spark.cost.pricing import Consumed, day_prices, priced, prices_on

    sheet = load_prices("standard")
    days = {
        "2026-10-30": Consumed(14_000_000, 10**9), "2026-10-31": Consumed(100_000_003, 0),
        "2026-11-01": Consumed(7, 0),
    }  # fmt: skip
    prices = day_prices(days, sheet, already)
    schema = "day int, operation string, messages long, units long, bytes_out long"
    rows = [
        (20_756, "send", 0, 4_000_000, 10**9), (20_756, "receive", 0, 10_000_000, 0),
        (20_757, "ping", 0, 3, 0), (20_757, "send", 0, 100_000_000, 0),
        (20_757, "settle", 5, 0, 0), (20_758, "send", 0, 7, 0),
    ]  # fmt: skip

    found = spark.createDataFrame(rows, schema).transform(priced, prices_on(spark, prices), sheet)

    cost: dict[int, Decimal] = {}
    for row in found.collect():
        cost[row.day] = cost.get(row.day, Decimal(0)) + row.cost
        assert row.operation != "settle" or row.cost == 0
    expected = [
        sheet.charge(14_000_000, already), sheet.charge(100_000_003, 14_000_000 + already), 0,
    ]  # fmt: skip
    for (_, spent), charge in zip(sorted(cost.items()), expected, strict=True):
        assert abs(spent - charge) < Decimal("1e-11")
