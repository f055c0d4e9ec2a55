"""The numbers of messages that were set aside in a backlog queue, by destination.

A message for a destination that takes nothing is deferred: the queue hands it to nobody, and
whoever knows its number can ask for it. So it stands in nobody's way, costs nothing while it
waits, and survives every crash. This file is the memory of the numbers; a mover that has none
finds them again by looking through the queue.

Rule 1: what was taken out and not moved comes back at the end, so that one message that always
        fails is not the only one that is ever tried.
Rule 2: a destination can be held without a number, when somebody else has them.
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

# A number takes about 100 bytes here. What does not fit stays in the queue and is found again
# by the next look through it.
NUMBERS_MAX: Final = 1_000_000


class DeferredMessages:
    """What one backlog queue holds for later."""

    def __init__(self, *, numbers_max: int = NUMBERS_MAX) -> None:
        self._numbers_max = numbers_max
        # Dictionaries keep their order and know what they hold: queues without doubles.
        self._by_path: dict[str, dict[int, None]] = {}
        self._count = 0
        self._held_elsewhere: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return self._count

    @property
    def fullness(self) -> float:
        """From 0 to 1: what comes after that is left out."""
        return self._count / self._numbers_max

    def holds(self, path: str) -> bool:
        return path in self._by_path or path in self._held_elsewhere

    def hold(self, paths: Iterable[str]) -> None:
        """Messages of these destinations are set aside whose numbers somebody else knows."""
        self._held_elsewhere |= frozenset(paths)

    def count(self, path: str) -> int:
        return len(self._by_path.get(path, ()))

    def paths(self) -> list[str]:
        return list(self._by_path)

    def numbers(self) -> dict[str, tuple[int, ...]]:
        """All of them by destination, the longest waiting first."""
        return {path: tuple(numbers) for path, numbers in self._by_path.items()}

    def add(self, path: str, sequence_numbers: Iterable[int]) -> None:
        """Remember them, behind all others of that destination."""
        room = self._numbers_max - self._count
        numbers = self._by_path.get(path, {})
        fresh = [each for each in sequence_numbers if each not in numbers][: max(0, room)]
        if fresh:
            numbers.update(dict.fromkeys(fresh))
            self._by_path[path] = numbers
            self._count += len(fresh)

    def take(self, path: str, count_max: int) -> list[int]:
        """Up to so many of a destination, the longest waiting first; they are forgotten here."""
        numbers = self._by_path.get(path, {})
        taken = list(numbers)[:count_max] if count_max < len(numbers) else list(numbers)
        for number in taken:
            del numbers[number]
        if not numbers:
            self._by_path.pop(path, None)
        self._count -= len(taken)
        return taken


def is_deferred(encoded: bytes) -> bool:
    """Whether a message that was peeked is deferred: only then its number can be asked for."""
    return read_message_state(encoded) == DEFERRED


def read_message_state(encoded: bytes) -> int:
    """The state of a message that was peeked; one that says nothing is active."""
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
