"""The output of the demo: a live screen, or plain lines.

On a terminal the events scroll by, and a panel below them shows the current state.

    application ──▶ ● east   primary     DOWN
         └────────▶ ● west   secondary   3,412 messages in the backlog

    sent      ▆▇▇▇▇▇▇▇▇▇▇▇    4,612   0 failed
    received  ▆▇▇▇            1,200
    backlog        ▁▂▃▅▆▇█    3,412   0 moved

Rule 1: the demo prints sentences and shows views through Screen; another screen needs only these
        two methods.
Rule 2: a column of a curve is a second; seconds in which the primary was down are red.
Rule 3: without a terminal that can draw, the output is plain lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TextIO

from rich.box import ROUNDED
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from twinbus.demo.scenario import DESTINATIONS, PRIMARY, SECONDARY, TOPIC

__all__ = [
    "LiveScreen",
    "PlainScreen",
    "RateHistory",
    "Screen",
    "View",
    "curve",
    "open_screen",
    "picture",
]

VIEW_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state at one moment."""

    is_primary_up: bool
    sent: int
    failed_sends: int
    arrived: int
    """Messages that receivers got, including those of each subscription."""
    diverted: tuple[str, ...]
    """Diverted entities."""
    messages_diverted: int
    """Messages that were sent to the backlog so far."""
    moved: int
    """Messages that the syphon has moved to the primary so far."""
    pings: int
    syphon: str
    """Its status word."""


class Screen(Protocol):
    """The output of the demo."""

    def print_line(self, sentence: str) -> None:
        """Print an event."""

    def show(self, view: View) -> None:
        """Show the current state; called several times a second."""


class PlainScreen:
    """Plain lines, each with its second."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = sys.stdout if file is None else file
        self._began_s = time.monotonic()
        self._shown_s = self._began_s

    def print_line(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._began_s:5.1f} s  {sentence}", file=self._file, flush=True)

    def show(self, view: View) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < VIEW_INTERVAL_S:
            return
        self._shown_s = now_s
        parts = [f"sent {view.sent:,} ({view.failed_sends:,} failed)", f"received {view.arrived:,}"]
        if view.messages_diverted:
            parts.append(f"diverted {view.messages_diverted:,}, moved {view.moved:,}")
        if view.diverted:
            parts.append(f"pings {view.pings:,}")
        self.print_line(f"    {' · '.join(parts)}")


_BARS: Final = " ▁▂▃▄▅▆▇█"
_LEVELS: Final = len(_BARS) - 1
_GOOD, _BAD, _WAITING, _QUIET = "green", "red", "yellow", "dim"
# Names, figures and the frame beside a curve.
_BESIDE_CURVE: Final = 46
_CURVE_WIDTH: Final = (10, 60)
_WIDTH_MAX: Final = 110


@dataclass(slots=True)
class RateHistory:
    """The numbers of each second so far."""

    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    was_up: list[bool] = field(default_factory=list)
    _second: int = -1
    _sent_before: int = 0
    _received_before: int = 0

    def add(self, view: View, elapsed_s: float) -> None:
        """Add one view to the second that it belongs to."""
        second = int(elapsed_s)
        if second > self._second:
            if self._second >= 0:
                self._sent_before += self.sent[-1]
                self._received_before += self.received[-1]
            self._second = second
            for values in (self.sent, self.received, self.waiting):
                values.append(0)
            self.was_up.append(True)
        self.sent[-1] = view.sent - self._sent_before
        self.received[-1] = view.arrived - self._received_before
        self.waiting[-1] = backlog_size(view)
        self.was_up[-1] = self.was_up[-1] and view.is_primary_up


def backlog_size(view: View) -> int:
    """Messages in the backlog."""
    return max(0, view.messages_diverted - view.moved)


def curve(values: Sequence[int], width: int, was_up: Sequence[bool] = ()) -> Text:
    """The last values as bars, relative to the highest; a value above 0 is always visible."""
    highest = max(values, default=0)
    drawn = Text(no_wrap=True)
    marks = list(was_up) or [True] * len(values)
    for value, is_up in list(zip(values, marks, strict=True))[-width:]:
        level = -(-value * _LEVELS // highest) if highest else 0
        drawn.append(_BARS[level], _GOOD if is_up else _BAD)
    drawn.append(" " * (width - len(drawn)))
    return drawn


def picture(view: View, history: RateHistory, elapsed_s: float, width: int) -> Panel:
    """The panel with the current state, at most ``width`` wide."""
    narrow, wide = _CURVE_WIDTH
    bars = max(narrow, min(wide, width - _BESIDE_CURVE))
    return Panel(
        Group(_flow(view), Text(), _curves(view, history, bars), Text(), _status_line(view)),
        title="twinbus: a complete outage",
        title_align="left",
        subtitle=f"{elapsed_s:.0f} s",
        subtitle_align="right",
        box=ROUNDED,
        width=min(width, _WIDTH_MAX),
        padding=(1, 2),
    )


def _flow(view: View) -> Table:
    flow = Table.grid(padding=(0, 1))
    is_up, waiting = view.is_primary_up, backlog_size(view)
    to_primary = Text("application ──▶", "" if is_up and not view.diverted else _QUIET)
    to_secondary = Text("     └────────▶", _WAITING if view.diverted else _QUIET)
    state = Text("up", _GOOD) if is_up else Text("DOWN", f"bold {_BAD}")
    flow.add_row(to_primary, Text("●", _GOOD if is_up else _BAD), PRIMARY, "primary", state)
    backlog = f"{waiting:,} messages in the backlog" if waiting else "backlog is empty"
    flow.add_row(
        to_secondary,
        Text("●", _GOOD),
        SECONDARY,
        "secondary",
        Text(backlog, _WAITING if waiting else _QUIET),
    )
    return flow


def _curves(view: View, history: RateHistory, width: int) -> Table:
    curves = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "left"):
        curves.add_column(justify=justify, no_wrap=True)
    failed = Text(f"{view.failed_sends:,} failed", _BAD if view.failed_sends else _GOOD)
    rows = (
        ("sent", history.sent, view.sent, failed),
        ("received", history.received, view.arrived, Text(f"{TOPIC} counts twice", _QUIET)),
        ("backlog", history.waiting, backlog_size(view), Text(f"{view.moved:,} moved")),
    )
    for name, values, total, note in rows:
        curves.add_row(name, curve(values, width, history.was_up), f"{total:,}", note)
    return curves


def _status_line(view: View) -> Text:
    parts = [f"syphon on Spark: {view.syphon or 'starting'}", f"pings: {view.pings:,}"]
    if view.diverted:
        is_all = len(view.diverted) == len(DESTINATIONS)
        parts.append(f"diverted: {'all' if is_all else ', '.join(sorted(view.diverted))}")
    return Text(" · ".join(parts), _QUIET)


class LiveScreen:
    """Redraws the panel; printed lines stay above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._history = RateHistory()
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=False)

    def print_line(self, sentence: str) -> None:
        # A column of its own, so that long sentences wrap below themselves.
        line = Table.grid(padding=(0, 2))
        line.add_column(style=_QUIET, no_wrap=True)
        line.add_row(f"{self._elapsed_s():5.1f} s", Text(sentence))
        self._console.print(line)

    def show(self, view: View) -> None:
        elapsed_s = self._elapsed_s()
        self._history.add(view, elapsed_s)
        drawn = picture(view, self._history, elapsed_s, self._console.width)
        self._live.update(drawn, refresh=True)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    @contextmanager
    def drawing(self) -> Iterator[LiveScreen]:
        """The terminal is restored at the end of the block, also after an error."""
        with self._live:
            yield self


@contextmanager
def open_screen() -> Iterator[Screen]:
    """A live screen on a terminal that can draw, plain lines otherwise."""
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        with LiveScreen(console).drawing() as screen:
            yield screen
    else:
        yield PlainScreen()
