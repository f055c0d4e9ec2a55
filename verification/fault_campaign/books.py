"""What was in a queue when it was deleted, and what else a broker's audit log tells.

Rule 1: a message that was stored and not settled is in the queue. Its line was written before its
        sender was answered, so that nothing that was acknowledged is missing.
Rule 2: a queue that is made again begins a new book.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

_IN: Final = ("stored", "scheduled")
_OUT: Final = (
    "completed", "forwarded", "dead-lettered", "expired", "purged", "cancelled", "due",
)  # fmt: skip


class Books:
    """The audit log of one broker."""

    def __init__(self, metering: Path) -> None:
        self._metering = metering
        self._read_bytes: dict[tuple[str, Path], int] = {}
        """How far each file belongs to earlier books of a queue."""

    def removed_with(self, queue: str) -> list[str]:
        """The ids that were in a queue (and its dead letters) which has just been deleted."""
        there: dict[tuple[str, int], str] = {}
        gone: set[tuple[str, int]] = set()
        for line in self._lines(queue):
            entity = line.get("entity", "")
            if entity.lower() not in (queue.lower(), f"{queue}/$deadletterqueue".lower()):
                continue
            key = (entity.lower(), line.get("sequence_number", -1))
            if line["event"] in _IN:
                there[key] = line["message_id"]
            elif line["event"] in _OUT:
                gone.add(key)
        return [value for key, value in there.items() if key not in gone]

    def told(self, event: str) -> Iterator[tuple[float, str, int, str]]:
        """When, where, which copy and which message, of all that this happened to."""
        names: dict[tuple[str, int], str] = {}
        found: list[tuple[float, str, int, str]] = []
        for path in sorted(self._metering.glob("*/audit-*.jsonl")):
            for text in path.read_bytes().split(b"\n"):
                if text.endswith(b"}"):
                    line = json.loads(text)
                    key = (line.get("entity", ""), line.get("sequence_number", -1))
                    name = line.get("message_id") or ""
                    names[key] = name or names.get(key, "")
                    if line["event"] == event:
                        found.append((datetime.fromisoformat(line["at"]).timestamp(), *key, name))
        # A clock that jumps puts lines into the files of other days: names come first.
        # A queue that is made again begins again with its numbers: a line's own name is the best.
        for at_s, entity, number, name in found:
            yield at_s, entity, number, name or names[entity, number]

    def _lines(self, queue: str) -> Iterator[dict[str, Any]]:
        for path in sorted(self._metering.glob("*/audit-*.jsonl")):
            content = path.read_bytes()
            begin = self._read_bytes.get((queue, path), 0)
            self._read_bytes[queue, path] = content.rfind(b"\n") + 1
            for line in content[begin:].split(b"\n"):
                if line.endswith(b"}"):  # A last one may be torn by a kill.
                    yield json.loads(line)
