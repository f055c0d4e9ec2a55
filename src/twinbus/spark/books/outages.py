"""When entities were diverted, from the journal of a pair."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from twinbus.core.reconciliation import Outage
from twinbus.errors import ConfigurationError
from twinbus.pairing.journal import read_journal

__all__ = ["outages_in"]


def outages_in(journal: Path) -> dict[str, tuple[Outage, ...]]:
    """The outages of each entity, oldest first.

    Several senders may write one journal: an entity is diverted from the first of them to the last.
    """
    began: dict[str, datetime] = {}
    depth: dict[str, int] = {}
    found: dict[str, list[Outage]] = {}
    for name, at, path in _events(journal):
        if name == "diverted":
            began.setdefault(path, at)
            depth[path] = depth.get(path, 0) + 1
        elif name == "restored" and path in began:
            depth[path] -= 1
            if depth[path] == 0:
                found.setdefault(path, []).append(Outage(begins=began.pop(path), ends=at))
    for path, at in began.items():
        found.setdefault(path, []).append(Outage(begins=at, ends=None))
    return {path: tuple(each) for path, each in found.items()}


def _events(journal: Path) -> list[tuple[str, datetime, str]]:
    try:
        entries = [
            (entry.name, entry.at, str(entry.facts.get("path", "")).lower())
            for entry in read_journal(journal)
        ]
    except OSError as error:
        raise ConfigurationError(
            f"the journal {str(journal)!r} cannot be read: {error.strerror}",
            hint="Name the file that was given as journal to the pair",
        ) from error
    return sorted(entries, key=lambda entry: entry[1])
