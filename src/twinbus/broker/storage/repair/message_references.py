"""Checks the rows about messages: bodies, settlements, states, expiries and sessions.

    shared bodies -> overlaps -> lost numbers -> tombstones, states, details, session states
    -> (the entities are known now) sessions and expiries of chunks

Rule 1: a message is dropped only when its bytes are lost. A message in question is kept, or
        repeated at the end of its queue.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import SEQ_BITS, SEQ_MAX
from twinbus.broker.storage.repair.body_selections import (
    SharedBodyFound,
    SharedBodySearch,
    SharedChunk,
)
from twinbus.broker.storage.repair.findings import FindingKind, LostRange, counted
from twinbus.broker.storage.repair.inspection import Inspection
from twinbus.broker.storage.repair.page_file import Flaw
from twinbus.broker.storage.shared_bodies import encode_reference

_CHUNK_ENDS: Final = (
    "COALESCE((SELECT chunk.id + chunk.count FROM chunk WHERE chunk.id <= {table}.id"
    " ORDER BY chunk.id DESC LIMIT 1), 0)"
)
_SHARED: Final = (
    "SELECT chunk.id, chunk.count, enqueued_ms, chunk.crc, share.sheet_id, selection, sheet.count"
    " FROM chunk LEFT JOIN share ON share.id = chunk.id LEFT JOIN sheet ON sheet.id = sheet_id"
    " WHERE length(chunk.blob) = 0 ORDER BY chunk.id"
)
_OVERLAPS: Final = (
    "SELECT id FROM (SELECT id, MAX(id + count) OVER (PARTITION BY id >> 40 ORDER BY id"
    " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS taken FROM chunk) WHERE id < taken"
)
_TOMBSTONES_OVERLAP: Final = (
    "SELECT id, last_id, taken FROM (SELECT id, last_id, MAX(last_id) OVER (ORDER BY id"
    " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS taken FROM tombstone) WHERE id <= taken"
)
_REFERENCES: Final = {
    "share": "selections of shared messages refer to a missing chunk",
    "expiry": "expiries refer to a missing chunk",
    "session_chunk": "sessions refer to a missing chunk",
}
_WITHOUT_SESSION: Final = (
    "SELECT chunk.id FROM chunk WHERE chunk.id BETWEEN ? AND ? AND NOT EXISTS"
    " (SELECT 1 FROM session_chunk WHERE session_chunk.id = chunk.id)"
)
_WITHOUT_EXPIRY: Final = (
    "SELECT chunk.id FROM chunk WHERE NOT EXISTS (SELECT 1 FROM expiry WHERE expiry.id = chunk.id)"
)


class MessageCheck:
    """Checks the rows about messages, reports what is wrong and corrects it."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection
        self._draft = inspection.draft
        self._ends: dict[int, int] = {}

    def run(self) -> None:
        """All checks that do not need the entities."""
        self._check_shared_bodies()
        self._check_overlaps()
        self._note_lost_rows()
        self._check_tombstones()
        self._check_states()
        self._check_details()
        self._check_session_states()

    def finish(self, with_sessions: set[int]) -> None:
        """The checks that need the entities; these ids require sessions."""
        self._check_sessions(with_sessions)
        self._read_expiries()

    # -- bodies ---------------------------------------------------------------------------

    def _check_shared_bodies(self) -> None:
        alone: list[SharedChunk] = []
        missing: list[SharedChunk] = []
        for row in self._draft.execute(_SHARED):
            row_id, count, enqueued_ms, crc, sheet_id, selection, size = row
            chunk = SharedChunk(row_id, count, enqueued_ms, crc)
            if row_checksum.of_blob(row_id, count, enqueued_ms, b"") == crc:
                continue
            if sheet_id is None:
                alone.append(chunk)
            elif (
                row_checksum.of_bytes(
                    encode_reference(row_id, count, enqueued_ms, sheet_id, selection)
                )
                != crc
                or size is None
                or not _selects(selection, size, count)
            ):
                missing.append(chunk)
        missing += self._recover_selections(alone)
        for chunk in missing:
            self._inspection.lose(chunk.row_id, chunk.messages)
            self._drop_chunk(chunk.row_id, chunk.messages)
        if missing:
            self._inspection.report(
                FindingKind.SHARED_BODY_MISSING,
                f"{counted(len(missing), 'chunk')} of messages refer to a shared body that is "
                "missing or does not match.",
                "These messages are lost; their sequence numbers are listed.",
                table="chunk",
            )

    def _recover_selections(self, alone: list[SharedChunk]) -> list[SharedChunk]:
        """Recover lost selections; returns the chunks for which none is found."""
        search = SharedBodySearch(self._draft)
        undecided: list[SharedChunk] = []
        for chunk in alone:
            found = search.find(chunk).found
            if not found:
                undecided.append(chunk)
            for each in found[:1]:
                self._put_share(chunk.row_id, each.sheet_id, each.selection)
            self._repeat_at_end(chunk, found[1:])
        # The selections that were found narrow the search for the others.
        missing: list[SharedChunk] = []
        for chunk in undecided:
            candidates = search.find(chunk).candidates
            if not candidates:
                missing.append(chunk)
                continue
            self._repeat_at_end(chunk, candidates)
            limits = (chunk.row_id, chunk.row_id + chunk.messages - 1)
            sql = "SELECT SUM(last_id - id + 1) FROM tombstone WHERE id BETWEEN ? AND ?"
            left = chunk.messages - self._draft.number(sql, limits)
            self._inspection.repeated[chunk.row_id >> SEQ_BITS] -= left
            self._drop_chunk(chunk.row_id, chunk.messages)
        return missing

    def _repeat_at_end(self, chunk: SharedChunk, sheets: list[SharedBodyFound]) -> None:
        """Add everything that a chunk may have contained at the end of its queue."""
        queue_id = chunk.row_id >> SEQ_BITS
        for sheet_id, sheet_count, selection in sheets:
            count = int.from_bytes(selection, "little").bit_count() or sheet_count
            new_id = self._take_ids(queue_id, count)
            content = encode_reference(new_id, count, chunk.enqueued_ms, sheet_id, selection)
            values = (new_id, count, chunk.enqueued_ms, row_checksum.of_bytes(content), b"")
            self._draft.put("chunk", [values])
            self._put_share(new_id, sheet_id, selection)
            self._copy_details(chunk.row_id, new_id)
            self._inspection.repeated[queue_id] += count
        if sheets:
            self._inspection.report(
                FindingKind.SHARED_BODY_MISSING,
                "The selection of shared messages that belong to the entity is lost.",
                "All messages that may belong to it are added at its end; some may not.",
                table="share",
                queue_id=queue_id,
                first_seq=chunk.row_id & SEQ_MAX,
                last_seq=(chunk.row_id & SEQ_MAX) + chunk.messages - 1,
            )

    def _put_share(self, row_id: int, sheet_id: int, selection: bytes) -> None:
        crc = row_checksum.of_blob(row_id, sheet_id, 0, selection)
        self._draft.put("share", [(row_id, sheet_id, crc, selection)])

    def _drop_chunk(self, row_id: int, count: int) -> None:
        limits = (row_id, row_id + count - 1)
        for table in ("tombstone", "state"):
            self._draft.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", limits)
        for table in ("share", "expiry", "session_chunk", "chunk"):
            self._draft.execute(f"DELETE FROM {table} WHERE id = ?", (row_id,))

    def _check_overlaps(self) -> None:
        for (row_id,) in self._draft.execute(_OVERLAPS):
            queue_id, seq = row_id >> SEQ_BITS, row_id & SEQ_MAX
            self._inspection.report(
                FindingKind.CHUNKS_OVERLAP,
                f"Two chunks of messages contain the sequence number {seq}.",
                "The messages of the second one get new sequence numbers at the end of the queue.",
                table="chunk",
                queue_id=queue_id,
                first_seq=seq,
                last_seq=seq,
            )
            self._renumber(row_id)

    def _renumber(self, row_id: int) -> None:
        """Move a chunk to the end of its queue."""
        ((count, enqueued_ms, crc, blob),) = self._draft.execute(
            "SELECT count, enqueued_ms, crc, blob FROM chunk WHERE id = ?", (row_id,)
        )
        new_id = self._take_ids(row_id >> SEQ_BITS, count)
        crc = row_checksum.of_blob(new_id, count, enqueued_ms, blob)
        share_sql = "SELECT sheet_id, selection FROM share WHERE id = ?"
        for sheet_id, selection in self._draft.execute(share_sql, (row_id,)):
            crc = row_checksum.of_bytes(
                encode_reference(new_id, count, enqueued_ms, sheet_id, selection)
            )
            self._put_share(new_id, sheet_id, selection)
        self._copy_details(row_id, new_id)
        self._draft.put("chunk", [(new_id, count, enqueued_ms, crc, blob)])
        for table in ("share", "expiry", "session_chunk", "chunk"):
            self._draft.execute(f"DELETE FROM {table} WHERE id = ?", (row_id,))

    def _take_ids(self, queue_id: int, count: int) -> int:
        """Reserve the id of a chunk with this many messages at the end of its queue.

        Every row is read once for each queue: chunks overlap, so the last may not end last.
        """
        first = self._ends.get(queue_id) or self._end_of(queue_id)
        self._ends[queue_id] = first + count
        return first

    def _end_of(self, queue_id: int) -> int:
        limits = (queue_id << SEQ_BITS, queue_id << SEQ_BITS | SEQ_MAX)
        last = self._draft.number(
            "SELECT MAX(id + count) FROM chunk WHERE id BETWEEN ? AND ?", limits
        )
        later = self._draft.number(
            "SELECT MAX(id) + 1 FROM scheduled WHERE id BETWEEN ? AND ?", limits
        )
        next_seq = self._draft.number(
            "SELECT next_seq FROM counters WHERE queue_id = ?", (queue_id,)
        )
        return max(last, later, limits[0] | next_seq)

    def _copy_details(self, row_id: int, new_id: int) -> None:
        """Copy session and expiry of a chunk to another one with its messages."""
        session_sql = "SELECT session FROM session_chunk WHERE id = ?"
        for (session,) in self._draft.execute(session_sql, (row_id,)):
            crc = row_checksum.of_values(new_id, session)
            self._draft.put("session_chunk", [(new_id, session, crc)])
        for (at_ms,) in self._draft.execute(
            "SELECT expires_ms FROM expiry WHERE id = ?", (row_id,)
        ):
            self._draft.put("expiry", [(new_id, at_ms, row_checksum.of_pair(new_id, at_ms))])

    # -- what belongs to messages ---------------------------------------------------------

    def _check_tombstones(self) -> None:
        for lost in self._inspection.lost:
            if lost.is_exact:
                queue = lost.queue_id << SEQ_BITS
                self._drop_chunk_details(queue | lost.first_seq, queue | lost.last_seq)
        ends = _CHUNK_ENDS.format(table="tombstone")
        count = self._draft.delete(f"DELETE FROM tombstone WHERE last_id < id OR last_id >= {ends}")
        for row_id, last_id, taken in self._draft.execute(_TOMBSTONES_OVERLAP):
            count += 1
            self._draft.execute("DELETE FROM tombstone WHERE id = ?", (row_id,))
            if last_id > taken:
                first = taken + 1
                self._draft.put(
                    "tombstone", [(first, last_id, row_checksum.of_pair(first, last_id))]
                )
        if count:
            self._report_broken(
                "tombstone", count, "settled ranges overlap, or are outside their chunk"
            )

    def _drop_chunk_details(self, first: int, last: int) -> None:
        """Delete rows of lost messages; the number of a damaged row may be another chunk's."""
        for table in ("tombstone", "state", "expiry", "session_chunk", "share"):
            ends = _CHUNK_ENDS.format(table=table)
            sql = f"DELETE FROM {table} WHERE id BETWEEN ? AND ? AND {ends} <= id"
            self._draft.execute(sql, (first, last))

    def _report_broken(self, table: str, count: int, what: str) -> None:
        self._inspection.report(
            FindingKind.REFERENCE_BROKEN,
            f"{counted(count, 'row')} of table {table!r}: {what}.",
            "The rows are dropped.",
            table=table,
        )

    def _check_states(self) -> None:
        gone = (
            "COALESCE((SELECT last_id FROM tombstone WHERE tombstone.id <= state.id"
            " ORDER BY tombstone.id DESC LIMIT 1), -1) >= state.id"
        )
        where = f"WHERE {_CHUNK_ENDS.format(table='state')} <= state.id OR {gone}"
        deferred = self._draft.number(
            f"SELECT COUNT(*) FROM (SELECT deferred FROM state {where}) WHERE deferred = 1"
        )
        self._draft.execute(f"DELETE FROM state {where}")
        if deferred:
            self._report_broken("state", deferred, "the deferred messages are missing")

    def _check_details(self) -> None:
        for table, what in _REFERENCES.items():
            count = self._draft.delete(
                f"DELETE FROM {table} WHERE NOT EXISTS"
                f" (SELECT 1 FROM chunk WHERE chunk.id = {table}.id)"
            )
            if count:
                self._report_broken(table, count, what)
        self._draft.execute("DELETE FROM sheet WHERE id NOT IN (SELECT sheet_id FROM share)")

    def _check_session_states(self) -> None:
        count = self._draft.delete(
            "DELETE FROM session_state WHERE id NOT IN"
            " (SELECT MAX(id) FROM session_state GROUP BY id >> 40, session)"
        )
        if count:
            self._report_broken(
                "session_state", count, "a session has two states; the newer one is kept"
            )

    def _check_sessions(self, with_sessions: set[int]) -> None:
        """Give every chunk of a queue with sessions a session."""
        queues = self._inspection.queues_with_sessions() | with_sessions
        for queue_id in sorted(queues):
            queue = queue_id << SEQ_BITS
            missing = self._draft.execute(_WITHOUT_SESSION, (queue, queue | SEQ_MAX))
            if not missing:
                continue
            self._inspection.report(
                FindingKind.SESSION_MISSING,
                f"{counted(len(missing), 'chunk')} of messages without a session.",
                "The session is read from the messages.",
                table="session_chunk",
                queue_id=queue_id,
            )
            for (row_id,) in missing:
                facts = self._inspection.facts(row_id)
                session = "" if facts is None or facts.session is None else facts.session
                crc = row_checksum.of_values(row_id, session)
                self._draft.put("session_chunk", [(row_id, session, crc)])

    def _read_expiries(self) -> None:
        """Where expiries are damaged, read them from the messages."""
        if "expiry" not in self._inspection.rows.flaws or not self._draft.has_bodies:
            return
        for (row_id,) in self._draft.execute(_WITHOUT_EXPIRY):
            facts = self._inspection.facts(row_id)
            if facts is not None and facts.expires_ms is not None:
                crc = row_checksum.of_pair(row_id, facts.expires_ms)
                self._draft.put("expiry", [(row_id, facts.expires_ms, crc)])

    # -- rows that are lost ---------------------------------------------------------------

    def _note_lost_rows(self) -> None:
        """Find the sequence numbers of the rows that could not be read."""
        for table in ("chunk", "scheduled"):
            flaws = [flaw for flaw in self._inspection.rows.flaws.get(table, ()) if flaw.is_loss]
            short = dict(sorted(self._queues_short_of(table).items()))
            unknown = [flaw for flaw in flaws if not self._is_known_loss(table, flaw, short)]
            queues = list(short)
            for after in {flaw.after_id for flaw in unknown}:
                self._note_gap(table, after, short, queues)
            # Rows of which nothing is left, in queues without any other known loss.
            known = {lost.queue_id for lost in self._inspection.lost}
            rest = {queue_id: last for queue_id, last in short.items() if queue_id not in known}
            self._note_gap(table, None, rest, list(rest))

    def _is_known_loss(self, table: str, flaw: Flaw, short: dict[int, int]) -> bool:
        """Whether the row was found elsewhere, or shows itself which messages it had.

        The numbers of a damaged row may be damaged too: they are accepted if they fill the gap
        between the adjacent rows.
        """
        row_id = flaw.row_id
        if row_id is None or row_id >> SEQ_BITS < 1:
            return False
        if self._draft.number(f"SELECT COUNT(*) FROM {table} WHERE id = ?", (row_id,)):
            # It was found, or its own number is damaged and this is the number of another row.
            return row_id >> SEQ_BITS not in short
        count = 1 if table == "scheduled" else flaw.messages
        if count is None or (row_id, row_id + count) != self._place_of(table, flaw, row_id):
            return False
        self._inspection.lose(row_id, count)
        return True

    def _place_of(self, table: str, flaw: Flaw, row_id: int) -> tuple[int, int]:
        """Where the adjacent rows in a row's queue end and begin."""
        after = -1 if flaw.after_id is None else flaw.after_id
        queue = row_id >> SEQ_BITS << SEQ_BITS
        count = "count" if table == "chunk" else "1"
        # They do not overlap any more, so the last one ends last.
        sql = f"SELECT id + {count} FROM {table} WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
        first = max(queue | 1, self._draft.number(sql, (queue, after)))
        sql = f"SELECT MIN(id) FROM {table} WHERE id > ? AND id <= ?"
        following = self._draft.number(sql, (max(after, queue), queue | SEQ_MAX))
        sql = "SELECT next_seq FROM counters WHERE queue_id = ?"
        ends = queue | self._draft.number(sql, (row_id >> SEQ_BITS,))
        return first, following or ends

    def _queues_short_of(self, table: str) -> dict[int, int]:
        """Queues with fewer messages than their counters show -> the last number they have used."""
        count = "message_count" if table == "chunk" else "scheduled_count"
        sql = f"SELECT queue_id, {count}, next_seq FROM counters"
        rows = self._draft.execute(sql)
        kept = self._inspection.contents((table, "tombstone") if table == "chunk" else (table,))
        return {
            queue_id: next_seq - 1
            for queue_id, stored, next_seq in rows
            if stored > kept.get(queue_id, 0)
        }

    def _note_gap(
        self, table: str, after: int | None, short: dict[int, int], queues: list[int]
    ) -> None:
        """Rows are missing between this one and the next existing one, or anywhere.

        ``queues`` are those of ``short`` in their order: each gap is in a few of them.
        """
        before = 1 << 63
        if after is None:
            after = -1
        else:
            sql = f"SELECT MIN(id) FROM {table} WHERE id > ?"
            before = self._draft.number(sql, (after,)) or before
        lowest = bisect_left(queues, (after + 1) >> SEQ_BITS)
        for queue_id in queues[lowest : bisect_right(queues, before >> SEQ_BITS)]:
            queue = queue_id << SEQ_BITS
            first, last = max(after + 1, queue | 1), min(before - 1, queue | short[queue_id])
            if first <= last:
                seqs = (first & SEQ_MAX, last & SEQ_MAX)
                self._inspection.lost.append(LostRange(queue_id, *seqs, is_exact=False))


def _selects(selection: bytes, sheet_count: int, count: int) -> bool:
    if not selection:
        return sheet_count == count
    mask = int.from_bytes(selection, "little")
    return mask.bit_length() <= sheet_count and mask.bit_count() == count
