"""When something was wrong, and with whom: from the beginning of a fault until it was undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verification.fault_campaign.history import Event

__all__ = ["Window", "windows_of"]


@dataclass(frozen=True, slots=True)
class Window:
    """One fault."""

    fault: str
    process: str
    place: str
    begin_s: float
    end_s: float

    def touches(self, begin_s: float, end_s: float, recovery_s: float) -> bool:
        """Whether it, or the time after it, has to do with a stretch of time."""
        return self.begin_s <= end_s and begin_s <= self.end_s + recovery_s


def windows_of(events: Sequence[Event]) -> list[Window]:
    """From each invoke to its ok; what never ended reaches to the end."""
    found: list[Window] = []
    begun: dict[tuple[str, str, str], float] = {}
    for event in events:
        if event.what != "fault":
            continue
        key = (event.detail, event.process, event.place)
        if event.type == "invoke":
            begun[key] = event.at_s
        elif key in begun:
            found.append(Window(*key, begun.pop(key), event.at_s))
    return found + [Window(*key, begin_s, float("inf")) for key, begin_s in begun.items()]
