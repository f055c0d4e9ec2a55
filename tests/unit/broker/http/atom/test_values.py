"""How the administration protocol spells values."""

from __future__ import annotations

from datetime import timedelta

import isodate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.answers import assert_well_put
from twinbus.broker.engine.descriptions import DURATION_MS_MAX
from twinbus.broker.http.atom.xml import (
    duration_ms,
    duration_text,
    duration_us,
    flag,
    lifetime_ms,
    lifetime_text,
    time_text,
    whole_number,
)
from twinbus.common.durations import NEVER, format_duration_us
from twinbus.errors import ConfigurationError


@given(st.integers(0, DURATION_MS_MAX - 1))
def test_a_duration_comes_back_as_it_was(total_ms: int) -> None:
    """M5"""
    assert duration_ms(duration_text(total_ms), "x") == total_ms


@given(st.integers(0, 10**15))
def test_the_stock_client_reads_our_durations_and_we_read_its(total_us: int) -> None:
    """M10: it uses isodate."""
    value = timedelta(microseconds=total_us)
    assert isodate.parse_duration(format_duration_us(total_us)) == value
    assert duration_us(isodate.duration_isoformat(value), "x") == total_us


@pytest.mark.parametrize(
    ("text", "total_ms"),
    [
        ("PT0S", 0),
        ("PT30S", 30_000),
        ("PT0.25S", 250),
        ("PT0.0009S", 0),
        ("P1DT2H3M4.5S", 93_784_500),
        ("P2W", 1_209_600_000),
        ("P1D", 86_400_000),
        ("PT300M", 18_000_000),
    ],
)
def test_durations_in_their_spellings(text: str, total_ms: int) -> None:
    assert duration_ms(text, "x") == total_ms


@pytest.mark.parametrize(
    "text",
    [
        *("", "P", "PT", "P1DT", "1D", "-PT1S", "PT1,5S", "P1Y", "P1M", "PT1S ", "PT1H1D", "pt1s"),
        *("PT" + "9" * 5000 + "S", "PT\u0661S", "P99999999999D", "PT1e5S", "P10675200D"),
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """M5: quickly, and in a sentence."""
    with pytest.raises(ConfigurationError) as refused:
        duration_ms(text, "LockDuration")
    assert_well_put(str(refused.value))


def test_the_longest_duration_means_never() -> None:
    """M5: also when the stock client has rounded it."""
    for text in (NEVER, "P10675199DT2H48M5.47758S", "P10675199DT2H48M5.477581S"):
        assert lifetime_ms(text, "x") is None
    assert lifetime_text(None) == NEVER
    assert lifetime_ms("P10675199DT2H48M5S", "x") is not None


def test_times_are_told_in_utc() -> None:
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert time_text(0) == time_text(-1) == time_text(10**18) == "0001-01-01T00:00:00Z"


def test_flags_and_numbers() -> None:
    assert [flag(text, "x") for text in ("true", "True", "1", "false", "0")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert whole_number("+7", "x") == 7
    for read in (flag, whole_number):
        for text in ("", "yes", "1.0", "9" * 5000, "\u0661"):
            with pytest.raises(ConfigurationError) as refused:
                read(text, "The value")
            assert_well_put(str(refused.value))
