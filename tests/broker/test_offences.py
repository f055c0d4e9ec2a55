"""The log of offences: a line each, ten in a second, and a sum of the rest."""

from __future__ import annotations

import pytest

from twinbus.broker.offences import LINES_PER_S_MAX, OffenceLog


def test_a_flood_is_ten_lines_and_a_sum(caplog: pytest.LogCaptureFixture) -> None:
    log = OffenceLog("demo")
    for number in range(500):
        log.note("a token was refused", now_s=100 + number / 1_000)
    assert len(caplog.messages) == LINES_PER_S_MAX
    caplog.clear()

    log.note("another", now_s=101)

    assert caplog.messages == [
        "namespace demo: 490 more lines like these",
        "namespace demo: another",
    ]


def test_what_comes_slowly_is_all_there(caplog: pytest.LogCaptureFixture) -> None:
    log = OffenceLog("demo")
    for second in range(50):
        log.note("again", now_s=second * 0.2)

    assert caplog.messages == ["namespace demo: again"] * 50


def test_the_first_line_is_never_held_back(caplog: pytest.LogCaptureFixture) -> None:
    OffenceLog("demo").note("first", now_s=0.0)

    assert caplog.messages == ["namespace demo: first"]
