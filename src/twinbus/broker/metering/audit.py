"""The audit log: one line for each thing that happens to a message, if the operator asks.

    {"version":1,"at":"…","namespace":"demo","entity":"orders","event":"stored",
     "sequence_number":7,"message_id":"order-7","bytes":311}
    {"version":1,"at":"…","namespace":"demo","entity":"orders","event":"dead-lettered",
     "sequence_number":7,"reason":"MaxDeliveryCountExceeded"}

Rule 1: ids, never bodies. ``stored`` and ``delivered`` carry the message id; the others the
        sequence number, which is enough to find it.
Rule 2: lines are handed to the disk with every commit; a kill can lose those of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from twinbus.broker.entities.chunk import Chunk, spans_of
from twinbus.broker.entities.facts import facts_of
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.witness import Happening, Note
from twinbus.clock import Clock
from twinbus.metering.lines import JsonLines, timestamp

RECORD_VERSION = 1

Submit = Callable[[Callable[[], None]], None]


class AuditLog:
    """The witness of all queues of a namespace."""

    def __init__(self, namespace_name: str, directory: Path, clock: Clock) -> None:
        self._namespace_name = namespace_name
        self._lines = JsonLines(directory / namespace_name, "audit")
        self._clock = clock
        self._submit: Submit | None = None

    def start(self, submit: Submit) -> None:
        """From now on; ``submit`` runs a job that may wait for the disk."""
        self._submit = submit

    def committed(self, queue: Queue, stored: list[Chunk], notes: list[Note]) -> None:
        records = [
            record
            for chunk in stored
            for record in self._with_ids(
                queue, Happening.STORED, chunk, chunk.blob or b"", 0, chunk.count
            )
        ]
        for note in notes:
            records += self._noted(queue, note)
        self._write(records)

    def delivered(self, queue: Queue, chunk: Chunk, blob: bytes, start: int, count: int) -> None:
        self._write(list(self._with_ids(queue, Happening.DELIVERED, chunk, blob, start, count)))

    def _with_ids(
        self, queue: Queue, what: Happening, chunk: Chunk, blob: bytes, start: int, count: int
    ) -> Iterator[dict[str, Any]]:
        for index in range(start, start + count):
            record = blob[chunk.starts[index] : chunk.starts[index + 1]]
            line = self._line(queue, what, chunk.first_seq + index)
            yield {**line, "message_id": facts_of(record).message_id, "bytes": len(record)}

    def _noted(self, queue: Queue, note: Note) -> Iterator[dict[str, Any]]:
        for start, count in spans_of(note.mask):
            for index in range(start, start + count):
                line = self._line(queue, note.what, note.chunk.first_seq + index)
                yield {**line, "reason": note.reason} if note.reason else line

    def _line(self, queue: Queue, what: Happening, seq: int) -> dict[str, Any]:
        path = queue.description.path
        return {
            "version": RECORD_VERSION,
            "at": timestamp(self._clock.now().wall_ms),
            "namespace": self._namespace_name,
            "entity": f"{path}/$deadletterqueue" if queue.is_dead_letter_queue else path,
            "event": what.value,
            "sequence_number": seq,
        }

    def _write(self, records: list[dict[str, Any]]) -> None:
        if records and self._submit is not None:
            at_ms = self._clock.now().wall_ms
            self._submit(lambda: self._lines.append(at_ms, records))
