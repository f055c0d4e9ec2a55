"""From sums to the rows of a report, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MINUTE = 29_745_240 + 3_600  # Of some day; what matters is its neighbours.
DAY = MINUTE // 1440


def frame(spark: SparkSession, schema: str, rows: list[dict[str, Any]]) -> DataFrame:
    names = [column.split()[0] for column in schema.split(", ")]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], schema)


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
    from functools import reduce

    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from twinbus.spark.cost_report.report_rows import from_one_source, in_range

    rows = [
        sum_row("a"), sum_row("b", source="client"), sum_row("c", source="client", namespace="az"),
        sum_row("before", minute=MINUTE - 1), sum_row("after", minute=MINUTE + 1),
        sum_row("", operation="opened"), sum_row("", operation="closed"),
    ]  # fmt: skip
    sums = frame(spark, SUMS, rows).transform(in_range, MINUTE, MINUTE + 1)

    asked = {"either": None, "broker": "broker", "client": "client"}
    answers = [
        sums.transform(from_one_source, source, {"home"}).select("entity", F.lit(name).alias("of"))
        for name, source in asked.items()
    ]
    found = [(row.of, row.entity) for row in reduce(DataFrame.unionAll, answers).collect()]

    assert sorted(found) == [
        ("broker", "a"), ("client", "b"), ("client", "c"), ("either", "a"), ("either", "c"),
    ]  # fmt: skip


def test_one_query_sums_by_what_was_asked_by_kind_and_by_entity(spark: SparkSession) -> None:
    """C2: what is done at backlog queues, and pings, are on the account of their pair."""
    from pyspark.sql import functions as F

    from twinbus.spark.cost_report.report_rows import (
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
    from twinbus.spark.cost_report.report_rows import BY_ENTITY, set_numbers

    numbers = set_numbers(("entity", "namespace"))
    assert numbers[BY_ENTITY] == numbers["entity", "namespace"]


def test_spark_prices_as_the_arithmetic_does(spark: SparkSession) -> None:
    """C3: a day costs what its tier says, shared by its operations; months begin anew."""
    from decimal import Decimal

    from twinbus.cost.price_sheets import load_prices
    from twinbus.spark.cost_report.report_rows import Consumed, day_prices, priced, prices_on

    sheet, already = load_prices("standard"), 12_999_990
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


@pytest.mark.parametrize("already", [0, 12_999_990])
def test_what_a_day_costs_adds_up_to_its_month(already: int) -> None:
    """C3: the price of one operation, times those of the day, is what the tiers say."""
    from twinbus.cost.price_sheets import load_prices
    from twinbus.spark.cost_report.report_rows import Consumed, day_prices

    sheet, units = load_prices("standard"), (14_000_000, 100_000_003)
    days = {f"2026-10-3{n}": Consumed(count, 0) for n, count in enumerate(units)}

    prices = day_prices(days, sheet, already)

    spent = sum(prices[day].unit * had.units for day, had in days.items())
    assert abs(spent - sheet.charge(sum(units), already)) < 1e-11
