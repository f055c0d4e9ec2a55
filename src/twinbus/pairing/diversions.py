"""Which entities are diverted, by what a journal says; pure.

Rule 1: the first diversion tells since when, the last event of an entity whether it still is.
Rule 2: a process that was killed writes no last line: ``last_event`` tells how old the news is.
        While an entity is diverted its pings are events, one each interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from twinbus.pairing.journal import JournalEntry

__all__ = ["Diversion", "diversions"]

_AT_HOME: Final = ("restored", "cleared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversion:
    """An entity whose sends go to the backlog."""

    path: str
    since: datetime
    reason: str
    is_held: bool = False
    """Whether it stays there until somebody says otherwise."""
    last_event: datetime
    ended: datetime | None = None
    """When the application that had diverted it was closed."""


def diversions(entries: Iterable[JournalEntry]) -> list[Diversion]:
    """The entities that were diverted last and not restored since, the oldest first."""
    found: dict[str, Diversion] = {}
    for entry in entries:
        if entry.name in ("closed", "faulted") and entry.facts.get("side") == "primary":
            found = {path: replace(each, ended=entry.at) for path, each in found.items()}
        path = entry.facts.get("path")
        if isinstance(path, str):
            _take(found, path, entry)
    return list(found.values())


def _take(found: dict[str, Diversion], path: str, entry: JournalEntry) -> None:
    is_held_away = entry.name == "held" and entry.facts.get("is_diverted") is True
    if entry.name in _AT_HOME or (entry.name == "held" and not is_held_away):
        found.pop(path, None)
        return
    if path not in found and (entry.name == "diverted" or is_held_away):
        reason = str(entry.facts.get("reason") or "")
        found[path] = Diversion(path=path, since=entry.at, reason=reason, last_event=entry.at)
    if path in found:
        is_held = found[path].is_held or is_held_away
        found[path] = replace(found[path], is_held=is_held, last_event=entry.at, ended=None)
