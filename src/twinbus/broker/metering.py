"""The metering of a namespace: its operations log and its audit log.

The audit log is optional and has one line for each event of a message:

    {"version":1,"run":"5f0c…","number":12,"namespace":"demo","at":"…","entity":"orders",
     "event":"stored","sequence_number":7,"message_id":"order-7","bytes":311}
    {"version":1,"run":"5f0c…","number":19,"namespace":"demo","at":"…","entity":"orders",
     "event":"dead-lettered","sequence_number":7,"reason":"MaxDeliveryCountExceeded"}

Without a directory, operations are only counted.

Rule 1: ids, never bodies. Lines with bytes have the message id, as text like the audit log of
        a client and the receipts; the others have the sequence number, which is enough to find it.
        In a backlog queue the destination follows the id.
Rule 2: the lines of a commit are written when it has succeeded, and before any client gets its
        acknowledgement. A killed process loses only lines of changes that were not acknowledged;
        a machine that stops may lose more.
Rule 3: the line of a moved message has the entity and the number that it had before, and the
        number that it got in its first entity. The message that a topic received and its copies
        have the same publication number.
Rule 4: the line of a message with a time to live has its expiry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from twinbus.broker.engine.audit_hooks import (
    BatchAudit,
    MessageEvent,
    MessageEventRange,
    UnstoredMessageEvent,
    audited_path,
)
from twinbus.broker.engine.chunk import Chunk, spans_of
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.stored_message import MessageOrigin, annotation_of, unpack_record
from twinbus.common.clock import Clock
from twinbus.common.entity_path import backlog_owner
from twinbus.encoding.envelope.restored_message import read_destination, read_message_id
from twinbus.metering.audit_log import AuditLines
from twinbus.metering.json_lines import JsonLines, timestamp
from twinbus.metering.operations_log import Meter, OperationsLog, Timers, operations_log

_ORIGINAL_SEQ = "x-opt-enqueue-sequence-number"

Submit = Callable[[Callable[[], None]], None]
AuditLine = dict[str, Any]


class AuditLog:
    """The audit sink of all queues of a namespace."""

    def __init__(
        self,
        namespace_name: str,
        directory: Path,
        run: str,
        clock: Clock,
        *,
        keep_days: int | None = None,
    ) -> None:
        lines = JsonLines(directory / namespace_name, "audit", keep_days=keep_days)
        self._lines = AuditLines(lines, run, namespace_name)
        self._publication = 0
        self._clock = clock
        self._submit: Submit | None = None
        self._closed: list[AuditLine] = []
        """Lines of the batches in the next commit."""

    def start(self, submit: Submit) -> None:
        """Write from now on; ``submit`` runs a job that may wait for the disk."""
        self._submit = submit
        at_ms = self._clock.now().wall_ms
        submit(lambda: self._lines.opened(at_ms))

    def stop(self) -> None:
        """Submit no more jobs: their thread is about to end."""
        self._submit = None

    def close(self) -> None:
        """Write the last line; may wait for the disk."""
        self._lines.closed(self._clock.now().wall_ms)

    # -- events ---------------------------------------------------------------------------

    def next_publication(self) -> int:
        self._publication += 1
        return self._publication

    def closed(self, queue: Queue, batch: BatchAudit) -> None:
        trails = iter(batch.trails)
        for chunk in batch.stored:
            lines = self._run(queue, MessageEvent.STORED, chunk, chunk.blob or b"", 0, chunk.count)
            self._closed += [{**line, **_origin_fields(next(trails))} for line in lines]
        for seq, record in batch.scheduled:
            self._closed.append(self._named(queue, MessageEvent.SCHEDULED, record, seq))
        for note in batch.notes:
            self._closed += self._noted(queue, note)

    def delivered(self, queue: Queue, chunk: Chunk, blob: bytes, start: int, count: int) -> None:
        self._write(list(self._run(queue, MessageEvent.DELIVERED, chunk, blob, start, count)))

    def deleted(self, queue: Queue) -> None:
        self._write([self._line(queue, MessageEvent.DELETED)])

    # -- lines ----------------------------------------------------------------------------

    def _run(
        self, queue: Queue, what: MessageEvent, chunk: Chunk, blob: bytes, start: int, count: int
    ) -> Iterator[AuditLine]:
        for index in range(start, start + count):
            record = blob[chunk.starts[index] : chunk.starts[index + 1]]
            yield self._named(queue, what, record, chunk.first_seq + index)

    def _noted(
        self, queue: Queue, note: MessageEventRange | UnstoredMessageEvent
    ) -> Iterator[AuditLine]:
        if isinstance(note, UnstoredMessageEvent):
            line = self._named(queue, note.what, note.message.record, None)
            line |= _origin_fields(note.message.trail)
            if note.takers is not None:
                line["copies"] = sum(not each.is_deleted for each in note.takers)
            yield line
            return
        for start, count in spans_of(note.mask):
            for index in range(start, start + count):
                line = self._line(queue, note.what, note.first_seq + index)
                yield {**line, "reason": note.reason} if note.reason else line

    def _named(self, queue: Queue, what: MessageEvent, record: bytes, seq: int | None) -> AuditLine:
        line = self._line(queue, what, seq)
        taken_apart = unpack_record(record, 0, len(record))
        line |= {"message_id": read_message_id(taken_apart.bare), "bytes": len(record)}
        if what in (MessageEvent.STORED, MessageEvent.SCHEDULED):
            original = annotation_of(taken_apart, _ORIGINAL_SEQ)
            if isinstance(original, int):
                line["original_sequence_number"] = int(original)
            if taken_apart.expires_ms is not None:
                line["expires"] = timestamp(taken_apart.expires_ms)
            if backlog_owner(queue.description.path):
                line["destination"] = read_destination(taken_apart.bare)[0]
        return line

    def _line(self, queue: Queue, what: MessageEvent, seq: int | None = None) -> AuditLine:
        line: AuditLine = {
            "at": timestamp(self._clock.now().wall_ms),
            "entity": audited_path(queue),
            "event": what.value,
        }
        return line if seq is None else {**line, "sequence_number": seq}

    # -- the disk -------------------------------------------------------------------------

    def take_closed(self) -> list[AuditLine]:
        """The lines of the batches that were closed."""
        lines, self._closed = self._closed, []
        return lines

    def commit_with_lines(
        self, commit: Callable[[], None], lines: list[AuditLine]
    ) -> Callable[[], None]:
        """A commit, followed by writing its lines (rule 2)."""
        at_ms = self._clock.now().wall_ms

        def commit_and_log() -> None:
            commit()
            self._lines.append(at_ms, lines)

        return commit_and_log if lines else commit

    def _write(self, lines: list[AuditLine]) -> None:
        if lines and self._submit is not None:
            at_ms = self._clock.now().wall_ms
            self._submit(lambda: self._lines.append(at_ms, lines))


def _origin_fields(trail: MessageOrigin | None) -> AuditLine:
    """The fields about where a message was before (rule 3)."""
    if trail is None:
        return {}
    fields: AuditLine = {}
    if trail.entity:
        fields |= {"from_entity": trail.entity, "from_sequence_number": trail.number}
    return fields if trail.publication is None else {**fields, "publication": trail.publication}


class NamespaceMetering:
    """The meter and the logs of one namespace, from its start to its close."""

    def __init__(
        self,
        namespace_name: str,
        directory: Path | None,
        clock: Clock,
        chance: Random,
        *,
        audit: bool,
        keep_days: int | None = None,
    ) -> None:
        self.meter = Meter()
        self.audit: AuditLog | None = None
        self._operations: OperationsLog | None = None
        if directory is not None:
            run = f"{chance.getrandbits(64):016x}"
            self._operations = operations_log(
                directory,
                namespace_name,
                self.meter,
                run,
                clock,
                source="broker",
                keep_days=keep_days,
            )
            if audit:
                self.audit = AuditLog(namespace_name, directory, run, clock, keep_days=keep_days)

    @property
    def run(self) -> str | None:
        """The id of this run in every line; None without logs."""
        return None if self._operations is None else self._operations.run

    def start(self, timers: Timers, submit: Callable[[Callable[[], None]], None]) -> None:
        """Write from now on; ``submit`` runs a job that may wait for the disk."""
        if self.audit is not None:
            self.audit.start(submit)
        if self._operations is not None:
            self._operations.start(timers, submit)

    def stop(self) -> None:
        """Submit no more jobs: their thread is about to end."""
        if self.audit is not None:
            self.audit.stop()
        if self._operations is not None:
            self._operations.stop()

    def take_lines(self) -> list[AuditLine]:
        """The audit lines of the batches that were closed."""
        return [] if self.audit is None else self.audit.take_closed()

    def commit_with_audit(
        self, commit: Callable[[], None], lines: list[AuditLine]
    ) -> Callable[[], None]:
        """The commit, followed by writing the lines to the audit log."""
        return commit if self.audit is None else self.audit.commit_with_lines(commit, lines)

    async def close(self) -> None:
        """Write what was counted since the last line, and the last line."""
        if self.audit is not None:
            await asyncio.to_thread(self.audit.close)
        if self._operations is not None:
            await asyncio.to_thread(self._operations.close())
