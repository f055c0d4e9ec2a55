"""The demo's picture on a terminal, and plain lines elsewhere."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from twinbus.demo.terminal import (
    LiveScreen,
    PlainScreen,
    RateHistory,
    View,
    curve,
    open_screen,
    picture,
)

CALM = View(
    is_primary_up=True,
    sent=400,
    failed_sends=0,
    arrived=390,
    diverted=(),
    messages_diverted=0,
    moved=0,
    pings=0,
    syphon="waiting",
)
OUTAGE = replace(
    CALM,
    is_primary_up=False,
    sent=1_000,
    diverted=("orders", "events"),
    messages_diverted=600,
    pings=7,
)


def drawn(view: View, history: RateHistory, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width, record=True)
    console.print(picture(view, history, 12.0, width))
    return console.export_text()


def test_a_curve_shows_the_highest_as_full_and_something_as_more_than_nothing() -> None:
    assert curve([0, 1, 50, 100], 6).plain == " ▁▄█  "
    assert curve([], 3).plain == "   "
    assert curve([0, 0], 2).plain == "  "


def test_a_long_story_shows_its_last_seconds() -> None:
    assert curve([100, 0, 0, 100], 2).plain == " █"


def test_seconds_without_the_primary_are_red() -> None:
    styles = [span.style for span in curve([1, 1, 1], 3, [True, False, True]).spans]
    assert styles == ["green", "red", "green"]


def test_a_second_counts_what_happened_in_it() -> None:
    history = RateHistory()
    history.add(CALM, 0.2)
    history.add(replace(CALM, sent=500), 0.9)
    history.add(replace(OUTAGE, arrived=391), 1.1)
    history.add(replace(CALM, sent=1_100, arrived=1_000, messages_diverted=600, moved=200), 1.9)
    assert history.sent == [500, 600]
    assert history.received == [390, 610]
    assert history.waiting == [0, 400]
    assert history.was_up == [True, False]


def test_the_picture_says_where_sends_go_and_what_waits() -> None:
    history = RateHistory()
    history.add(OUTAGE, 0.0)
    told = drawn(OUTAGE, history)
    assert "DOWN" in told
    assert "600 messages in the backlog" in told
    assert "diverted: events, orders" in told
    assert "0 failed" in told
    assert "backlog is empty" in drawn(CALM, history)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_picture_fits_the_terminal(width: int) -> None:
    history = RateHistory()
    history.add(CALM, 0.0)
    assert max(map(len, drawn(CALM, history, width).splitlines())) <= width


def test_sentences_stay_above_the_picture_and_the_cursor_comes_back() -> None:
    written = StringIO()
    screen = LiveScreen(Console(file=written, force_terminal=True, width=90))

    def interrupted() -> None:
        with screen.drawing():
            screen.show(CALM)
            screen.print_line("kill -9 42: [east] is gone")
            screen.show(OUTAGE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    told = written.getvalue()
    assert "kill -9 42: [east] is gone" in told
    assert told.index("backlog is empty") < told.index("kill -9") < told.rindex("DOWN")
    assert told.rindex("\x1b[?25h") > told.rindex("\x1b[?25l")


def test_a_long_sentence_goes_on_below_itself() -> None:
    written = StringIO()
    screen = LiveScreen(Console(file=written, width=40))
    screen.print_line("two brokers run, and this sentence is longer than the terminal is wide")
    first, *others = written.getvalue().rstrip().splitlines()
    assert others and max(map(len, [first, *others])) <= 40
    assert {len(each) - len(each.lstrip()) for each in others} == {first.index("two brokers")}


def test_without_a_terminal_there_are_plain_lines() -> None:
    with open_screen() as screen:
        assert isinstance(screen, PlainScreen)
