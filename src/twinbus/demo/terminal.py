"""What the demo shows: a live screen, or plain lines.

What the demo tells while it runs.

The demo on a terminal: the story scrolls by, and below it a picture shows how things are.

    application ──▶ ● east   primary     DOWN
         └────────▶ ● west   secondary   3,412 messages wait in its backlog

    sent      ▆▇▇▇▇▇▇▇▇▇▇▇    4,612   0 failed
    received  ▆▇▇▇            1,200
    backlog        ▁▂▃▅▆▇█    3,412   0 home again

Rule 1: the story says sentences and shows views; it does not know what becomes of them. Another
        screen, for instance one that is drawn again and again, needs these two methods only.
Rule 2: a column of a curve is a second; those in which the primary was down are red.
Rule 3: on a terminal that cannot draw, or when somebody else reads, there are plain lines.
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
    "picture",
    "screen_here",
]

VIEW_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How things are at one moment."""

    is_primary_up: bool
    sent: int
    failed_sends: int
    arrived: int
    """Copies that receivers got."""
    diverted: tuple[str, ...]
    """Entities whose messages go to the backlog."""
    detoured: int
    """Messages that went there so far."""
    moved: int
    """Messages that the syphon brought home so far."""
    pings: int
    syphon: str
    """What it does, in its own word."""


class Screen(Protocol):
    """Where the story is told."""

    def say(self, sentence: str) -> None:
        """Something happened."""

    def show(self, view: View) -> None:
        """How things are; several times a second."""


class PlainScreen:
    """Plain lines, each with its second."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = sys.stdout if file is None else file
        self._began_s = time.monotonic()
        self._shown_s = self._began_s

    def say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._began_s:5.1f} s  {sentence}", file=self._file, flush=True)

    def show(self, view: View) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < VIEW_INTERVAL_S:
            return
        self._shown_s = now_s
        parts = [f"sent {view.sent:,} ({view.failed_sends:,} failed)", f"received {view.arrived:,}"]
        if view.detoured:
            parts.append(f"by the backlog {view.detoured:,}, home again {view.moved:,}")
        if view.diverted:
            parts.append(f"pings {view.pings:,}")
        self.say(f"    {' · '.join(parts)}")


_BARS: Final = " ▁▂▃▄▅▆▇█"
_LEVELS: Final = len(_BARS) - 1
_GOOD, _BAD, _WAITING, _QUIET = "green", "red", "yellow", "dim"
# Names, figures and the frame beside a curve.
_BESIDE_CURVE: Final = 46
_CURVE_WIDTH: Final = (10, 60)
_WIDTH_MAX: Final = 110


@dataclass(slots=True)
class RateHistory:
    """What came and went in each second so far."""

    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    was_up: list[bool] = field(default_factory=list)
    _second: int = -1
    _sent_before: int = 0
    _received_before: int = 0

    def add(self, view: View, elapsed_s: float) -> None:
        """Take one view into the second that it belongs to."""
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
        self.waiting[-1] = waiting_of(view)
        self.was_up[-1] = self.was_up[-1] and view.is_primary_up


def waiting_of(view: View) -> int:
    """Messages that are in the backlog."""
    return max(0, view.detoured - view.moved)


def curve(values: Sequence[int], width: int, was_up: Sequence[bool] = ()) -> Text:
    """The last values as bars, the highest of all as a full one; something is never nothing."""
    highest = max(values, default=0)
    drawn = Text(no_wrap=True)
    marks = list(was_up) or [True] * len(values)
    for value, is_up in list(zip(values, marks, strict=True))[-width:]:
        level = -(-value * _LEVELS // highest) if highest else 0
        drawn.append(_BARS[level], _GOOD if is_up else _BAD)
    drawn.append(" " * (width - len(drawn)))
    return drawn


def picture(view: View, history: RateHistory, elapsed_s: float, width: int) -> Panel:
    """How things are, as wide as ``width``."""
    narrow, wide = _CURVE_WIDTH
    bars = max(narrow, min(wide, width - _BESIDE_CURVE))
    return Panel(
        Group(_flow(view), Text(), _curves(view, history, bars), Text(), _also(view)),
        title="twinbus: an outage, from beginning to end",
        title_align="left",
        subtitle=f"{elapsed_s:.0f} s",
        subtitle_align="right",
        box=ROUNDED,
        width=min(width, _WIDTH_MAX),
        padding=(1, 2),
    )


def _flow(view: View) -> Table:
    flow = Table.grid(padding=(0, 1))
    is_up, waiting = view.is_primary_up, waiting_of(view)
    usual = Text("application ──▶", "" if is_up and not view.diverted else _QUIET)
    detour = Text("     └────────▶", _WAITING if view.diverted else _QUIET)
    state = Text("up", _GOOD) if is_up else Text("DOWN", f"bold {_BAD}")
    flow.add_row(usual, Text("●", _GOOD if is_up else _BAD), PRIMARY, "primary", state)
    told = f"{waiting:,} messages wait in its backlog" if waiting else "its backlog is empty"
    flow.add_row(
        detour,
        Text("●", _GOOD),
        SECONDARY,
        "secondary",
        Text(told, _WAITING if waiting else _QUIET),
    )
    return flow


def _curves(view: View, history: RateHistory, width: int) -> Table:
    curves = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "left"):
        curves.add_column(justify=justify, no_wrap=True)
    failed = Text(f"{view.failed_sends:,} failed", _BAD if view.failed_sends else _GOOD)
    rows = (
        ("sent", history.sent, view.sent, failed),
        ("received", history.received, view.arrived, Text(f"{TOPIC} count twice", _QUIET)),
        ("backlog", history.waiting, waiting_of(view), Text(f"{view.moved:,} home again")),
    )
    for name, values, total, note in rows:
        curves.add_row(name, curve(values, width, history.was_up), f"{total:,}", note)
    return curves


def _also(view: View) -> Text:
    parts = [f"syphon on Spark: {view.syphon or 'starting'}", f"pings: {view.pings:,}"]
    if view.diverted:
        is_all = len(view.diverted) == len(DESTINATIONS)
        parts.append(f"diverted: {'all' if is_all else ', '.join(sorted(view.diverted))}")
    return Text(" · ".join(parts), _QUIET)


class LiveScreen:
    """Draws the picture again and again; sentences go above it and stay."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._history = RateHistory()
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=False)

    def say(self, sentence: str) -> None:
        # A column of its own: what is longer than the terminal goes on below itself.
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
        """The terminal is given back as it was, whatever happens."""
        with self._live:
            yield self


@contextmanager
def screen_here() -> Iterator[Screen]:
    """A picture on a terminal that can draw one, plain lines elsewhere."""
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        with LiveScreen(console).drawing() as screen:
            yield screen
    else:
        yield PlainScreen()
