"""What the log says about peers that misbehave.

Rule 1: one line for an offence, and only so many lines in a second: a flood of offences must
        not become a flood of the disk. What was left out is counted and said.
Rule 2: a line has words of ours only. What a peer sent can hold line breaks and secrets.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("twinbus.broker")

LINES_PER_S_MAX = 10


class OffenceLog:
    """The offences against one namespace."""

    def __init__(self, namespace_name: str) -> None:
        self._name = namespace_name
        self._began_at_s = float("-inf")
        self._line_count = 0
        self._untold_count = 0

    def note(self, what: str, now_s: float) -> None:
        """Write a line, unless there were too many of late."""
        if now_s - self._began_at_s >= 1:
            self._begin_second(now_s)
        if self._line_count >= LINES_PER_S_MAX:
            self._untold_count += 1
            return
        self._line_count += 1
        logger.warning("namespace %s: %s", self._name, what)

    def _begin_second(self, now_s: float) -> None:
        untold, self._untold_count = self._untold_count, 0
        self._began_at_s, self._line_count = now_s, 0
        if untold:
            self._line_count = 1
            logger.warning("namespace %s: %d more lines like these", self._name, untold)
