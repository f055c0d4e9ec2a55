"""What everybody did and what they were told: one file of JSON lines for each process.

    invoke   somebody asked for something
    ok       it was done
    fail     it was refused
    info     nobody can say: no answer, a line that broke, a lock that was lost

Rule 1: a line is written before the next thing happens, with one call to the kernel, so that
        kill -9 loses no line that was written; a torn last line is left out when reading.
Rule 2: times are those of the machine's monotonic clock, which all processes share.
Rule 3: a message is known by its value, ``<sender>-<counter>``, which is its message id too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

__all__ = ["ASKED", "BY_ITSELF", "LOCK_LOST", "Event", "Journal", "Tail", "merged", "read"]

ASKED: Final = "asked to end"
"""The detail of a kill that was a SIGTERM."""
BY_ITSELF: Final = "by itself"
"""The detail of a kill that nobody did: a syphon has noticed that a part of it is gone."""
LOCK_LOST: Final = "lock lost"
"""The detail of a completion that came too late: somebody else has the message by now."""

Type = Literal["invoke", "ok", "fail", "info"]
What = Literal[
    "send", "receive", "complete", "ping", "possible-duplicate", "move", "start", "kill", "died",
    "fault", "clock", "probe", "removed", "stored", "delivered", "scheduled", "completed",
    "expired", "dead", "left", "depth",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line."""

    what: What
    type: Type
    process: str
    at_s: float
    values: tuple[str, ...] = ()
    """The messages that it is about."""
    place: str = ""
    """The entity, subscription or backlog queue."""
    copy: int | None = None
    """Which copy of a message: its sequence number in that place."""
    enqueued_s: float | None = None
    """When the broker took that copy: by its wall clock in a journal, by the monotonic clock once
    the jumps of the wall clock are known."""
    took_s: float | None = None
    """How long a probe took."""
    print: str = ""
    """Every field of a message that was received (messages.py)."""
    count: int = 0
    detail: str = ""
    """An error's class, a reason, the name of a fault."""


class Journal:
    """The file of one process."""

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: What, type: Type, **facts: Any) -> Event:
        """Write one line; ``process`` is the writer unless the line is about another one, and
        ``at_s`` is now unless it is about something that is only known afterwards."""
        facts = {"process": self.process, "at_s": time.monotonic(), **facts}
        event = Event(what=what, type=type, **facts)
        told = {name: value for name, value in asdict(event).items() if value != _EMPTY[name]}
        os.write(self._file, json.dumps(told, separators=(",", ":")).encode() + b"\n")
        return event

    def close(self) -> None:
        os.fsync(self._file)
        os.close(self._file)


_EMPTY = {each.name: each.default for each in fields(Event)}


def read(path: Path) -> Iterator[Event]:
    """The events of one file, without a last line that was torn by a kill."""
    yield from _events(path.read_bytes())


def _events(content: bytes) -> Iterator[Event]:
    for line in content.split(b"\n")[:-1]:
        told = json.loads(line)
        told["values"] = tuple(told.get("values", ()))
        yield Event(**told)


class Tail:
    """Reads files that grow, each line once."""

    def __init__(self) -> None:
        self._read_bytes: dict[Path, int] = {}

    def read(self, paths: Iterable[Path]) -> list[Event]:
        """The events that were written since the last time."""
        found: list[Event] = []
        for path in paths:
            new = self._new(path)
            whole = new[: new.rfind(b"\n") + 1]
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole)
            found += _events(whole)
        return found

    def _new(self, path: Path) -> bytes:
        with path.open("rb") as file:
            file.seek(self._read_bytes.get(path, 0))
            return file.read()


def merged(paths: Iterable[Path]) -> list[Event]:
    """The events of many files in the order in which they happened."""
    return sorted((event for path in paths for event in read(path)), key=lambda each: each.at_s)
