"""Log lines about clients that break the protocol, and about errors that they cause.

Rule 1: the number of lines is limited: for one kind and one address in a minute, and for all
        together in a second. A flood of violations must not fill the disk. Suppressed lines are
        counted and logged: "490 similar messages suppressed".
Rule 2: a line contains the broker's own words only. Input of a client can contain line breaks and
        secrets.
Rule 3: memory is bounded. With too many addresses the oldest is dropped; its suppressed lines stay
        in the count.
Rule 4: a bug of the broker is logged with a traceback if the client has shown a token, once
        a minute. Without a token there is one line with the place in the code, and no traceback.

`twinbus serve` adds a LogFloodFilter to its log, for all other lines.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Hashable
from typing import Final

logger = logging.getLogger("twinbus.broker")

LINES_PER_S_MAX: Final = 10
"""For one namespace, from all addresses."""
LINES_PER_MINUTE_MAX: Final = 10
"""For one kind and one address."""
TRACEBACKS_PER_MINUTE_MAX: Final = 1
KEYS_MAX: Final = 1_024
MINUTE_S: Final = 60.0

FILTERED_PER_MINUTE_MAX: Final = 120
"""For one log message, in the whole process."""


class LineLimit:
    """How many lines of each key were written in the minute that began with the first of them."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._windows: dict[Hashable, list[float]] = {}
        """By key: when its minute began, and the number of lines since then."""

    def __len__(self) -> int:
        return len(self._windows)

    def takes(self, key: Hashable, now_s: float, lines_max: int) -> bool:
        """Whether one more line of that key may be written now."""
        window = self._windows.get(key)
        if window is None or now_s - window[0] >= MINUTE_S:
            self._windows.pop(key, None)
            if len(self._windows) >= self._keys_max:
                del self._windows[next(iter(self._windows))]
            self._windows[key] = [now_s, 1]
            return True
        if window[1] >= lines_max:
            return False
        window[1] += 1
        return True


class ViolationLog:
    """The protocol violations of one namespace's clients."""

    def __init__(self, namespace_name: str) -> None:
        self._name = namespace_name
        self._limit = LineLimit()
        self._began_at_s = float("-inf")
        self._line_count = 0
        self._suppressed_count = 0

    def note(self, what: str, now_s: float, *, address: str = "") -> None:
        """Write a line, unless the limit is reached."""
        if self._takes(what, now_s, address, LINES_PER_MINUTE_MAX):
            logger.warning("Namespace %s: %s", self._name, what)

    def note_mistake(
        self, what: str, error: Exception, now_s: float, *, address: str, is_stranger: bool
    ) -> None:
        """Log a bug of the broker that a client has run into (rule 4)."""
        if not self._takes(what, now_s, address, TRACEBACKS_PER_MINUTE_MAX):
            return
        if is_stranger:
            logger.error("Namespace %s: %s: %s", self._name, what, place_of(error))
        else:
            logger.error("Namespace %s: %s", self._name, what, exc_info=error)

    def _takes(self, what: str, now_s: float, address: str, lines_max: int) -> bool:
        if now_s - self._began_at_s >= 1:
            self._begin_second(now_s)
        if self._line_count < LINES_PER_S_MAX and self._limit.takes(
            (what, address), now_s, lines_max
        ):
            self._line_count += 1
            return True
        self._suppressed_count += 1
        return False

    def _begin_second(self, now_s: float) -> None:
        """The count of suppressed lines is logged once a minute at most."""
        self._began_at_s, self._line_count = now_s, 0
        count = self._suppressed_count
        if count and self._limit.takes("the sum", now_s, 1):
            self._suppressed_count = 0
            self._line_count = 1
            logger.warning("Namespace %s: %d similar messages suppressed", self._name, count)


class LogFloodFilter(logging.Filter):
    """Limits the lines of one log message in a minute, for the log of a whole process."""

    def __init__(self, lines_max: int = FILTERED_PER_MINUTE_MAX) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._limit = LineLimit()
        self._suppressed_counts: dict[Hashable, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.name, record.levelno, record.msg if isinstance(record.msg, str) else "")
        if not self._limit.takes(key, time.monotonic(), self._lines_max):
            if key in self._suppressed_counts or len(self._suppressed_counts) < KEYS_MAX:
                self._suppressed_counts[key] = self._suppressed_counts.get(key, 0) + 1
            return False
        count = self._suppressed_counts.pop(key, 0)
        if count:
            record.msg = f"{record.getMessage()} ({count} similar messages suppressed)"
            record.args = None
        return True


def place_of(error: BaseException) -> str:
    """The class of an error and where in the code it was raised, in one line."""
    places = traceback.extract_tb(error.__traceback__)
    if not places:
        return type(error).__name__
    last = places[-1]
    return f"{type(error).__name__} in {last.name}, line {last.lineno}"
