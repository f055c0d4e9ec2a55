"""Axes with round numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.cost.html.svg_charts import TIME_TICKS_MAX, time_ticks, value_scale

BEGINS = datetime(2026, 11, 1, tzinfo=UTC)
AMOUNTS = st.decimals(
    min_value=Decimal("1e-12"), max_value=10**15, allow_nan=False, allow_infinity=False
)


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        ("3.3", ["0", "1", "2", "3", "4"]),
        ("0.0047", ["0", "0.001", "0.002", "0.003", "0.004", "0.005"]),
        ("100", ["0", "20", "40", "60", "80", "100"]),
        ("0", ["0", "1"]),
    ],
)
def test_ticks_are_round(highest: str, ticks: list[str]) -> None:
    assert list(value_scale(Decimal(highest)).ticks) == list(map(Decimal, ticks))


def test_what_is_counted_has_whole_ticks() -> None:
    assert list(value_scale(Decimal(2), whole=True).ticks) == [0, 1, 2]


@given(AMOUNTS, AMOUNTS)
def test_every_value_lies_within_a_few_ticks_of_the_line(above: Decimal, below: Decimal) -> None:
    scale = value_scale(above, -below)
    assert 2 <= len(scale.ticks) <= 8
    assert 0 in scale.ticks
    assert 0 <= scale.height(-below) <= scale.height(Decimal(0)) <= scale.height(above) <= 1


@pytest.mark.parametrize(
    ("hours", "bar_s", "labels"),
    [
        (1, 60, ["1 Nov", "00:10", "00:20", "00:30", "00:40", "00:50"]),
        (24, 3_600, ["1 Nov", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00"]),
        (24 * 30, 86_400, ["1 Nov", "6 Nov", "11 Nov", "16 Nov", "21 Nov", "26 Nov"]),
        (24 * 365, 86_400, ["Nov", "Jan 2027", "Mar", "May", "Jul", "Sep"]),
    ],
)
def test_times_are_where_a_reader_looks_for_them(hours: int, bar_s: int, labels: list[str]) -> None:
    found = time_ticks(BEGINS, BEGINS + timedelta(hours=hours), bar_s)
    assert [tick.label.replace("\u00a0", " ") for tick in found] == labels


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
    st.sampled_from([60, 600, 3_600, 86_400]),
    st.integers(1, 2_000),
)
def test_there_are_a_few_times_and_all_lie_inside(begins: datetime, bar_s: int, bars: int) -> None:
    begins = datetime.fromtimestamp(begins.timestamp() // bar_s * bar_s, UTC)
    ends = begins + timedelta(seconds=bar_s * bars)
    found = time_ticks(begins, ends, bar_s)
    assert 1 <= len(found) <= TIME_TICKS_MAX + 1
    assert all(begins <= tick.at < ends for tick in found)
