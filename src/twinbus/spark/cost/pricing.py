"""Money for sums: what a day cost by the tiers of its month, shared by its operations.

Rule 1: prices are worked out by twinbus.core.prices. Here they are only multiplied.
Rule 2: a day's charge depends on what the month has had before it, which the logs tell as far as
        they reach. Within a day every operation costs the same.
Rule 3: money is Decimal, with 20 places.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, IntegerType, StructField, StructType

from twinbus.core.costs import Operation
from twinbus.core.prices import PriceSheet
from twinbus.spark.cost.days import day_number

__all__ = ["Consumed", "DayPrice", "day_prices", "priced", "prices_on"]

# A sum of two products of both has 38 digits, which is all that Spark can hold: nothing is
# rounded. A count of 14 digits is 100 TB in one step of one entity.
_PRICE: Final = DecimalType(22, 20)
_COUNT: Final = DecimalType(14, 0)
_PLACES: Final = Decimal(1).scaleb(-_PRICE.scale)
_CONTEXT: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)


class Consumed(NamedTuple):
    """What a day has had of what is paid for."""

    units: int
    bytes_out: int


class DayPrice(NamedTuple):
    """What one of each cost on a day."""

    unit: Decimal
    byte_out: Decimal


def day_prices(
    consumed: Mapping[str, Consumed], sheet: PriceSheet, already: int = 0
) -> dict[str, DayPrice]:
    """By day; ``already`` is what the first month has had before its first day."""
    prices: dict[str, DayPrice] = {}
    month, units, size = "", already, 0
    for day in sorted(consumed):
        if month and day[:7] != month:
            units, size = 0, 0
        month = day[:7]
        had = consumed[day]
        prices[day] = DayPrice(
            _share(sheet.charge(had.units, units), had.units),
            _share(sheet.transfer_charge(had.bytes_out, size), had.bytes_out),
        )
        units, size = units + had.units, size + had.bytes_out
    return prices


def _share(charge: Decimal, count: int) -> Decimal:
    if not count:
        return Decimal(0)
    return _CONTEXT.divide(charge, Decimal(count)).quantize(_PLACES, context=_CONTEXT)


def prices_on(spark: SparkSession, prices: Mapping[str, DayPrice]) -> DataFrame:
    """Prices by the number of their day."""
    schema = StructType(
        [
            StructField("day", IntegerType(), nullable=False),
            StructField("unit_price", _PRICE, nullable=False),
            StructField("byte_price", _PRICE, nullable=False),
        ]
    )
    return spark.createDataFrame([(day_number(day), *each) for day, each in prices.items()], schema)


def priced(sums: DataFrame, prices: DataFrame, sheet: PriceSheet) -> DataFrame:
    """What each row cost, in ``cost``."""
    operation = F.col("operation")
    # As PriceSheet.billable() has it: a settlement is charged by message, if at all.
    counted = F.when(operation == Operation.SETTLE.value, F.col("messages")).otherwise(
        F.col("units")
    )
    charged = operation.isin(sorted(each.value for each in sheet.charged))
    billable = F.when(charged, counted).otherwise(F.lit(0)).cast(_COUNT)
    cost = billable * F.col("unit_price") + F.col("bytes_out").cast(_COUNT) * F.col("byte_price")
    return (
        sums.join(F.broadcast(prices), on="day", how="left")
        .withColumn("cost", cost)
        .drop("unit_price", "byte_price")
    )
