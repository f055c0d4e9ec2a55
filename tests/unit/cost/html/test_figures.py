"""Numbers, money, times and names as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.cost.html.formatting import (
    data_size,
    decimals_for,
    duration,
    money,
    period,
    share,
    short_number,
    shorten,
)


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("0", "0.00 USD"),
        ("9.81", "9.81 USD"),
        ("123456.789", "123,456.79 USD"),
        ("1234567.891", "1,234,568 USD"),
        ("0.5", "0.50 USD"),
        ("0.00016", "0.00016 USD"),
        ("0.0000008", "0.0000008 USD"),
        ("0.000000001", "< 0.00000001 USD"),
        ("123456789012345678901234567890.5", "123,456,789,012,345,678,901,234,567,890 USD"),
    ],
)
def test_money_has_as_many_places_as_it_needs(amount: str, shown: str) -> None:
    assert plain(money(Decimal(amount), "USD")) == shown


@given(st.decimals(min_value=0, max_value=10**15, allow_nan=False), st.integers(0, 8))
def test_what_is_not_nothing_is_never_shown_as_nothing(amount: Decimal, places: int) -> None:
    shown = money(amount, decimals=places)
    assert any(digit in shown for digit in "123456789") == bool(amount)


def test_a_column_has_the_places_of_its_largest() -> None:
    assert decimals_for(Decimal("31.7")) == 2
    assert decimals_for(Decimal("0.0123")) == 4
    assert plain(money(Decimal("0.001"), "", decimals_for(Decimal("31.7")))) == "< 0.01"


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (0, "0 %"),
        (0.0004, "< 0.1 %"),
        (0.031, "3.1 %"),
        (0.5, "50 %"),
        (0.99995, "> 99.9 %"),
        (1, "100 %"),
    ],
)
def test_a_share_is_neither_nothing_nor_all_when_it_is_not(part: float, shown: str) -> None:
    assert plain(share(part)) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (999, "999 B"), (2_050, "2.0 KB"), (123_456_789, "123 MB"), (10**18, "1,000 PB")],
)
def test_sizes_have_their_unit(size: int, shown: str) -> None:
    assert plain(data_size(size)) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        ("0", "0"),
        ("0.5", "0.5"),
        ("2000", "2,000"),
        ("20000", "20k"),
        ("1500000", "1.5M"),
        ("5e9", "5B"),
        ("2e12", "2T"),
        ("5e20", "5e8T"),
        ("0.0002", "0.0002"),
        ("2e-9", "2e-9"),
    ],
)
def test_numbers_of_an_axis_are_short(number: str, shown: str) -> None:
    assert short_number(Decimal(number)) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 seconds"),
        (60, "1 minute"),
        (600, "10 minutes"),
        (3_600, "1 hour"),
        (172_800, "2 days"),
    ],
)
def test_durations_are_told_in_the_largest_unit(seconds: int, shown: str) -> None:
    assert plain(duration(seconds)) == shown


@pytest.mark.parametrize(
    ("begins", "ends", "shown"),
    [
        ("2026-11-01", "2026-12-01", "1 Nov to 30 Nov 2026 (30 days, UTC)"),
        ("2026-11-16", "2026-11-17", "16 Nov 2026 (UTC)"),
        ("2026-12-31", "2027-01-02", "31 Dec 2026 to 1 Jan 2027 (2 days, UTC)"),
        ("2026-11-16T10:00", "2026-11-16T10:45", "16 Nov 2026, 10:00 to 10:45 (45 minutes, UTC)"),
        (
            "2026-11-16T22:00",
            "2026-11-17T01:00",
            "16 Nov 2026, 22:00 to 17 Nov 2026, 01:00 (3 hours, UTC)",
        ),
    ],
)
def test_a_period_is_told_as_people_say_it(begins: str, ends: str, shown: str) -> None:
    def utc(text: str) -> datetime:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)

    assert plain(period(utc(begins), utc(ends))) == shown


def test_a_long_name_is_cut_in_the_middle() -> None:
    assert shorten("orders", 8) == "orders"
    assert shorten("contoso/x-servicebus-transfer/3", 15) == "contoso…nsfer/3"
    assert shorten("注文" * 20, 9) == "注文…注文"


@given(st.text(max_size=300), st.integers(3, 80))
def test_a_cut_name_is_never_too_long(name: str, columns: int) -> None:
    assert len(shorten(name, columns)) <= columns
