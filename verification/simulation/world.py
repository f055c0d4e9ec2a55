"""Simulated time: events in order, processes that sleep and die, and a trace that replays.

Rule 1: whatever happens is an event on one heap; equal times keep the order of their making.
Rule 2: an event of a process waits while the process sleeps and is dropped when it is dead.
Rule 3: chance has one source for each purpose, so that a change in one leaves the others alone.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

# The busiest schedule takes about 3,000: what takes ten times more does not end (S10).
EVENTS_MAX = 30_000


class Broken(AssertionError):
    """A promise that was not kept, with what is needed to see it again."""

    def __init__(self, check: str, sentence: str, seed: int, at_s: float) -> None:
        self.check, self.sentence, self.seed, self.at_s = check, sentence, seed, at_s
        super().__init__(
            f"{check}: {sentence} (at {at_s:.3f} s, SEED={seed}; replay: make simulate SEED={seed})"
        )

    def __reduce__(self) -> tuple[type[Broken], tuple[str, str, int, float]]:
        return Broken, (self.check, self.sentence, self.seed, self.at_s)


class Process:
    """Something that runs, sleeps and dies."""

    __slots__ = ("asleep_until_s", "is_alive", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.asleep_until_s = 0.0
        """Also the end of its last sleep."""

    def sleep(self, until_s: float) -> None:
        self.asleep_until_s = max(self.asleep_until_s, until_s)


class World:
    """The clock, the chance and the events of one schedule."""

    __slots__ = (
        "_events",
        "_heap",
        "_made",
        "core_chance",
        "digest",
        "is_healed",
        "network_chance",
        "now_s",
        "plan_chance",
        "seed",
        "seen",
        "trace",
        "wall_offset_ms",
    )

    def __init__(self, seed: int, *, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.plan_chance = Random(seed * 4)
        self.network_chance = Random(seed * 4 + 1)
        self.core_chance = Random(seed * 4 + 2)
        self.now_s = 0.0
        self.wall_offset_ms = 1_700_000_000_000
        self.is_healed = False
        """Whether the faults are over for good."""
        self.digest = seed
        self.seen: set[str] = set()
        """What happened of the things that must happen sometimes."""
        self.trace: list[str] | None = [] if keeps_trace else None
        self._heap: list[tuple[float, int, Process | None, Callable[..., Any], tuple[Any, ...]]]
        self._heap = []
        self._made = 0
        self._events = 0

    def at(
        self, when_s: float, owner: Process | None, call: Callable[..., Any], *arguments: Any
    ) -> None:
        """Have something happen then, to ``owner`` or to the world itself."""
        self._made += 1
        heappush(self._heap, (when_s, self._made, owner, call, arguments))

    def run(self, until_s: float) -> None:
        """Let everything happen that is due by then."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            when_s, number, owner, call, arguments = heappop(heap)
            if owner is not None:
                if not owner.is_alive:
                    continue
                if owner.asleep_until_s > when_s:
                    heappush(heap, (owner.asleep_until_s, number, owner, call, arguments))
                    continue
            self.now_s = when_s
            # Numbers and floats hash alike everywhere; text would not.
            self.digest = hash((self.digest, when_s, number))
            self._events += 1
            if self._events > EVENTS_MAX:
                raise self.broken("S10 no storm", f"more than {EVENTS_MAX} events")
            call(*arguments)
        self.now_s = until_s

    def wall_ms(self) -> int:
        """The wall clock, which jumps; ``now_s`` never does."""
        return self.wall_offset_ms + int(self.now_s * 1000)

    def note(self, text: str, *facts: object) -> None:
        """A line of the trace, when somebody reads it."""
        if self.trace is not None:
            self.trace.append(f"{self.now_s:9.3f}  " + text.format(*facts))

    def broken(self, check: str, sentence: str) -> Broken:
        return Broken(check, sentence, self.seed, self.now_s)

    @property
    def events(self) -> int:
        return self._events
