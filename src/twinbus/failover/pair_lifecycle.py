"""What happens when one factory of a pair closes or faults (L1, L2).

    hosting the syphon
      one faults     the other is faulted at once, the syphon stops
      one closes     the other must be closed within 5 s, or it is faulted
    not hosting it
      the factories are independent; closing the primary ends the pings

Rule 1: closing the primary of a hosting pair closes the secondary too (L2): the syphon is
        stopped first, after the current chunk.
Rule 2: what is closed or faulted stays so; the first end of a side is the one that counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

CLOSE_WINDOW_S: Final = 5.0


class Side(Enum):
    PRIMARY = "primary"
    SECONDARY = "secondary"

    @property
    def other(self) -> Side:
        return Side.SECONDARY if self is Side.PRIMARY else Side.PRIMARY


class FactoryState(Enum):
    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


@dataclass(frozen=True, slots=True)
class StopPings:
    """No more pings: the primary was closed or has faulted."""


@dataclass(frozen=True, slots=True)
class StopSyphon:
    """Stop after the current chunk, at most ``within_s`` from now."""

    within_s: float


@dataclass(frozen=True, slots=True)
class CloseFactory:
    side: Side


@dataclass(frozen=True, slots=True)
class FaultFactory:
    side: Side
    reason: str


Effect: TypeAlias = StopPings | StopSyphon | CloseFactory | FaultFactory


class PairLifecycle:
    """Tracks the state of both sides, and what the end of one means for the other."""

    def __init__(self, *, hosts_syphon: bool) -> None:
        self.hosts_syphon = hosts_syphon
        self.states = {Side.PRIMARY: FactoryState.OPEN, Side.SECONDARY: FactoryState.OPEN}
        self._window_end_s: float | None = None

    def closed(self, side: Side, now_s: float) -> list[Effect]:
        """A side has been closed by its owner."""
        if not self._ends(side, FactoryState.CLOSED):
            return []
        effects = self._stops(side)
        if self.hosts_syphon and self.states[side.other] is FactoryState.OPEN:
            self._window_end_s = now_s + CLOSE_WINDOW_S
            if side is Side.PRIMARY:
                effects.append(CloseFactory(Side.SECONDARY))
        return effects

    def faulted(self, side: Side, now_s: float, reason: str) -> list[Effect]:
        """A side has failed for good."""
        if not self._ends(side, FactoryState.FAULTED):
            return []
        effects = self._stops(side)
        if self.hosts_syphon and self.states[side.other] is FactoryState.OPEN:
            # First, because a syphon needs time to stop and the fault must take effect at once.
            fault = FaultFactory(side.other, f"the {side.value} has faulted: {reason}")
            effects.insert(0, fault)
        return effects

    def next_timer(self) -> float | None:
        return self._window_end_s

    def handle_timer(self, now_s: float) -> list[Effect]:
        """Fault the side that did not close in time."""
        if self._window_end_s is None or now_s < self._window_end_s:
            return []
        self._window_end_s = None
        return [
            FaultFactory(
                side,
                f"the {side.other.value} was closed, and the {side.value} was still open "
                f"{CLOSE_WINDOW_S:g} s later",
            )
            for side, state in self.states.items()
            if state is FactoryState.OPEN
        ]

    def _ends(self, side: Side, state: FactoryState) -> bool:
        if self.states[side] is not FactoryState.OPEN:
            return False
        self.states[side] = state
        if FactoryState.OPEN not in self.states.values():
            self._window_end_s = None
        return True

    def _stops(self, side: Side) -> list[Effect]:
        effects: list[Effect] = []
        if side is Side.PRIMARY:
            effects.append(StopPings())
        if self.hosts_syphon and self.states[side.other] is FactoryState.OPEN:
            effects.append(StopSyphon(CLOSE_WINDOW_S))
        return effects
