"""The lines of an audit log, of a broker or a client: numbered, with a first and a last line.

    {"version":1,"run":"5f0c…","number":1,"at":"…","namespace":"demo","entity":"","event":"opened"}

Rule 1: ``run`` and ``number`` identify a line of a namespace for ever; a reader that finds one
        twice drops it. The numbers of a run have no gap: where one is missing, a line was lost.
Rule 2: a run begins with the line ``opened`` and, if it is closed and not killed, ends with the
        line ``closed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from twinbus.metering.json_lines import JsonLines, timestamp
from twinbus.metering.operations_log import CLOSED, OPENED

__all__ = ["AuditLines"]

RECORD_VERSION: Final = 1


class AuditLines:
    """One audit log; all calls come from one thread."""

    def __init__(self, lines: JsonLines, run: str, namespace_name: str, **facts: Any) -> None:
        """``facts`` are in every line."""
        self._lines = lines
        self._head = {"version": RECORD_VERSION, "run": run}
        self._facts = {**facts, "namespace": namespace_name}
        self._number = 0

    def append(self, at_ms: int, records: Sequence[dict[str, Any]]) -> None:
        """Add a line for each record; lines that the disk refuses have numbers, too."""
        first = self._number + 1
        self._number += len(records)
        self._lines.append(
            at_ms,
            [
                {**self._head, "number": number, **self._facts, **record}
                for number, record in enumerate(records, first)
            ],
        )

    def opened(self, at_ms: int) -> None:
        self._mark(at_ms, OPENED)

    def closed(self, at_ms: int) -> None:
        self._mark(at_ms, CLOSED)

    def _mark(self, at_ms: int, event: str) -> None:
        self.append(at_ms, [{"at": timestamp(at_ms), "entity": "", "event": event}])

    def lost(self, count: int) -> None:
        """``count`` lines were not written: leave a gap in the numbers."""
        self._number += count
