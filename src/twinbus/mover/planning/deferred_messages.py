"""The sequence numbers of deferred messages of a backlog queue, by destination.

A message for an unavailable destination is deferred: it is only received by its sequence number.
So it does not delay others, costs nothing while it waits, and survives every crash. This module
remembers the numbers; a mover that has none finds them again by a scan of the queue.

Rule 1: a number that was taken and whose message was not moved is added again at the end, so that
        one message that always fails is not the only one that is ever tried.
Rule 2: a destination can be held without a number, when another process has the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.sections import scan_front

__all__ = ["DEFERRED", "SCHEDULED", "DeferredMessages", "is_deferred", "read_message_state"]

MESSAGE_STATE: Final = "x-opt-message-state"
ACTIVE: Final = 0
DEFERRED: Final = 1
SCHEDULED: Final = 2

# A number takes about 100 bytes here. Messages whose numbers do not fit stay in the queue and are
# found again by the next scan.
NUMBERS_MAX: Final = 1_000_000


class DeferredMessages:
    """The deferred messages of one backlog queue."""

    def __init__(self, *, numbers_max: int = NUMBERS_MAX) -> None:
        self._numbers_max = numbers_max
        # Dictionaries as ordered sets.
        self._by_path: dict[str, dict[int, None]] = {}
        self._count = 0
        self._held_elsewhere: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return self._count

    @property
    def fullness(self) -> float:
        """From 0 to 1; at 1 further numbers are not remembered."""
        return self._count / self._numbers_max

    def holds(self, path: str) -> bool:
        return path in self._by_path or path in self._held_elsewhere

    def hold(self, paths: Iterable[str]) -> None:
        """Messages of these destinations are deferred, and another process has their numbers."""
        self._held_elsewhere |= frozenset(paths)

    def count(self, path: str) -> int:
        return len(self._by_path.get(path, ()))

    def paths(self) -> list[str]:
        return list(self._by_path)

    def numbers(self) -> dict[str, tuple[int, ...]]:
        """All numbers by destination, the longest waiting first."""
        return {path: tuple(numbers) for path, numbers in self._by_path.items()}

    def add(self, path: str, sequence_numbers: Iterable[int]) -> None:
        """Remember them, after all others of that destination."""
        room = self._numbers_max - self._count
        numbers = self._by_path.get(path, {})
        fresh = [each for each in sequence_numbers if each not in numbers][: max(0, room)]
        if fresh:
            numbers.update(dict.fromkeys(fresh))
            self._by_path[path] = numbers
            self._count += len(fresh)

    def take(self, path: str, count_max: int) -> list[int]:
        """Remove and return up to ``count_max`` of a destination, the longest waiting first."""
        numbers = self._by_path.get(path, {})
        taken = list(numbers)[:count_max] if count_max < len(numbers) else list(numbers)
        for number in taken:
            del numbers[number]
        if not numbers:
            self._by_path.pop(path, None)
        self._count -= len(taken)
        return taken


def is_deferred(encoded: bytes) -> bool:
    """Whether a message that was peeked is deferred: only then it can be received by number."""
    return read_message_state(encoded) == DEFERRED


def read_message_state(encoded: bytes) -> int:
    """The state of a message that was peeked; without the annotation it is active."""
    try:
        found = scan_front(encoded, 0, len(encoded))
        span = found.message_annotations
        if span is None:
            return ACTIVE
        annotations, _end = decode_value(encoded, span[0], span[1], Budget())
    except DecodeError:
        return ACTIVE
    state = annotations.get(MESSAGE_STATE)
    return int(state) if isinstance(state, int) else ACTIVE
