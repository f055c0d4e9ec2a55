"""What the demo tells while it runs.

Rule 1: the story says sentences and shows views; it does not know what becomes of them. Another
        screen, for instance one that is drawn again and again, needs these two methods only.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Final, Protocol, TextIO

__all__ = ["PlainScreen", "Screen", "View"]

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
