"""Ascending keys in a list, cheap at both ends.

Sequence numbers arrive in ascending order and leave mostly from the front, so a list with a
moving head serves a queue of a million messages without moving a million references each time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

Key = TypeVar("Key", int, tuple[int, int])


class SortedKeys(Generic[Key]):
    """A sorted set."""

    __slots__ = ("_head", "_keys")

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._keys) - self._head

    def __iter__(self) -> Iterator[Key]:
        return islice(self._keys, self._head, None)

    def add(self, key: Key) -> None:
        if not self._keys or self._keys[-1] < key:
            self._keys.append(key)
        else:
            insort(self._keys, key, self._head)

    def remove(self, key: Key) -> None:
        at = bisect_left(self._keys, key, self._head)
        if at > self._head:
            del self._keys[at]
            return
        self._head += 1
        # Half of the list is dead: give it back, at a cost that the removals have paid.
        if self._head * 2 > len(self._keys):
            del self._keys[: self._head]
            self._head = 0

    def first(self) -> Key | None:
        return self._keys[self._head] if len(self) else None

    def starting(self, key: Key) -> Iterator[Key]:
        """The keys at or above ``key``, ascending, while nobody changes the set."""
        for at in range(bisect_left(self._keys, key, self._head), len(self._keys)):
            yield self._keys[at]

    def between(self, first: Key, last: Key) -> list[Key]:
        low = bisect_left(self._keys, first, self._head)
        high = bisect_left(self._keys, last, low)
        high += high < len(self._keys) and self._keys[high] == last
        return self._keys[low:high]

    def at_or_before(self, key: Key) -> Key | None:
        at = bisect_left(self._keys, key, self._head)
        if at < len(self._keys) and self._keys[at] == key:
            return key
        return self._keys[at - 1] if at > self._head else None
