"""Queues with which something went wrong: each is left alone for a while.

Rule 1: the pause is a second and doubles up to a minute; a success ends it.
"""

from __future__ import annotations

from random import Random

from twinbus.core.chunk_board import Backoff

__all__ = ["Pauses"]


class Pauses:
    """How long each queue is left alone."""

    def __init__(self) -> None:
        self._backoff, self._random = Backoff(), Random()
        self._rounds: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def note(self, path: str, now_s: float) -> float:
        """It went wrong; the pause that begins now."""
        self._rounds[path] = self._rounds.get(path, 0) + 1
        pause_s = self._backoff.pause_s(self._rounds[path], self._random)
        self._until_s[path] = now_s + pause_s
        return pause_s

    def is_over(self, path: str, now_s: float) -> bool:
        return now_s >= self._until_s.get(path, 0.0)

    def forget(self, path: str) -> None:
        self._rounds.pop(path, None)
        self._until_s.pop(path, None)
