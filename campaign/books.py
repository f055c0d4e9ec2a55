"""What was in a queue when it was deleted, from the broker's audit log.

Rule 1: a message that was stored and not settled is in the queue. Its line was written before its
        sender was answered, so that nothing that was acknowledged is missing.
Rule 2: a queue that is made again begins a new book.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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

    def _lines(self, queue: str) -> Iterator[dict[str, Any]]:
        for path in sorted(self._metering.glob("*/audit-*.jsonl")):
            content = path.read_bytes()
            begin = self._read_bytes.get((queue, path), 0)
            self._read_bytes[queue, path] = content.rfind(b"\n") + 1
            for line in content[begin:].split(b"\n"):
                if line.endswith(b"}"):  # A last one may be torn by a kill.
                    yield json.loads(line)
