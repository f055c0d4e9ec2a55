"""Compares the counters of the queues with their rows, and counts again where they differ.

Rule 1: the next sequence number is never lowered. If it is lost, it starts far above everything
        that was found.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from struct import error as StructError
from struct import unpack_from
from typing import Final

from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import SEQ_BITS, SEQ_MAX, QueueCounters
from twinbus.broker.storage.repair.findings import FindingKind, Totals
from twinbus.broker.storage.repair.inspection import Inspection

# If a queue's next sequence number is lost, it starts this far above the highest that was found:
# the numbers in between may have been assigned to messages that are gone.
SEQ_GAP: Final = 1 << 20

# Rules are entities without messages, and so without counters.
KIND_RULE: Final = "rule"

# A chunk begins with the lengths of its messages, four bytes each.
_IS_PLAIN: Final = (
    "(length(blob) > 0 AND NOT EXISTS (SELECT 1 FROM tombstone"
    " WHERE tombstone.id BETWEEN chunk.id AND chunk.id + chunk.count - 1))"
)
_PLAIN_BYTES: Final = (
    "SELECT SUM(MAX(length(blob) - 4 * count, 0)) FROM chunk"
    f" WHERE id BETWEEN ? AND ? AND {_IS_PLAIN}"
)
_NOT_PLAIN: Final = f"SELECT id FROM chunk WHERE id BETWEEN ? AND ? AND NOT {_IS_PLAIN}"


class CounterCheck:
    """Compares the counters with the rows, reports differences and corrects them."""

    def __init__(
        self, inspection: Inspection, known_ids: set[int], perhaps_deleted: set[int]
    ) -> None:
        """``known_ids`` had an entity before the repair; ``perhaps_deleted`` may be ids of deleted
        queues."""
        self._inspection = inspection
        self._draft = inspection.draft
        self._known_ids = known_ids
        self._perhaps_deleted = perhaps_deleted
        self._lost_in: dict[int, int] = defaultdict(int)
        for lost in inspection.lost:
            if lost.is_exact:
                self._lost_in[lost.queue_id] += lost.last_seq - lost.first_seq + 1
        self.totals = Totals()

    def run(self, with_counters: set[int]) -> None:
        """``with_counters`` are entities that must have had counters."""
        rows = self._draft.execute(
            "SELECT queue_id, next_seq, message_count, byte_count, deferred_count, scheduled_count"
            " FROM counters"
        )
        known = {row[0]: QueueCounters(*row) for row in rows}
        found = self._count_rows()
        flawed = "counters" in self._inspection.rows.flaws
        for queue_id, kind in self._draft.execute("SELECT queue_id, kind FROM entity"):
            if kind == KIND_RULE:
                continue
            counters, old = found[queue_id], known.pop(queue_id, None)
            self._add_up(counters, old)
            is_expected = counters.next_seq > 1 or queue_id in with_counters
            is_expected = is_expected or (flawed and queue_id in self._known_ids)
            if old is None and not is_expected:
                if queue_id not in self._known_ids:
                    self._put_counters(counters)
                continue
            self._settle_counters(counters, old)
        for queue_id in known:
            self._draft.execute("DELETE FROM counters WHERE queue_id = ?", (queue_id,))

    def _count_rows(self) -> dict[int, QueueCounters]:
        found: dict[int, QueueCounters] = _Counted()
        sql = "SELECT id >> 40, SUM(count), MAX(id + count) FROM chunk GROUP BY 1"
        for queue_id, count, ends in self._draft.execute(sql):
            found[queue_id].message_count = count
            found[queue_id].next_seq = ends & SEQ_MAX
        sql = "SELECT id >> 40, SUM(last_id - id + 1) FROM tombstone GROUP BY 1"
        for queue_id, count in self._draft.execute(sql):
            found[queue_id].message_count -= count
        sql = "SELECT id >> 40, COUNT(*) FROM state WHERE deferred = 1 GROUP BY 1"
        for queue_id, count in self._draft.execute(sql):
            found[queue_id].deferred_count = count
        sql = "SELECT id >> 40, COUNT(*), MAX(id) FROM scheduled GROUP BY 1"
        for queue_id, count, last in self._draft.execute(sql):
            each = found[queue_id]
            each.scheduled_count = count
            each.next_seq = max(each.next_seq, (last & SEQ_MAX) + 1)
        return found

    def _add_up(self, now: QueueCounters, old: QueueCounters | None) -> None:
        found = now.message_count + now.scheduled_count
        self.totals.found += found
        if now.queue_id in self._perhaps_deleted:
            self.totals.repeated += found
            return
        extra = self._inspection.repeated.get(now.queue_id, 0)
        self.totals.repeated += extra
        if old is None:
            self.totals.lost += self._lost_in.get(now.queue_id, 0)
            return
        for before, after in (
            (old.message_count, now.message_count - extra),
            (old.scheduled_count, now.scheduled_count),
        ):
            self.totals.lost += max(0, before - after)
            self.totals.repeated += max(0, after - before)

    def _settle_counters(self, now: QueueCounters, old: QueueCounters | None) -> None:
        if old is None:
            self._inspection.report(
                FindingKind.COUNTERS_MISSING,
                "The counters of the entity are missing.",
                "Messages are counted again, and sequence numbers continue after a gap, so that "
                "none is assigned twice.",
                table="counters",
                queue_id=now.queue_id,
            )
            now.next_seq += SEQ_GAP
            now.byte_count = self._bytes_of(now.queue_id)
            self._put_counters(now)
            return
        counts = (now.message_count, now.deferred_count, now.scheduled_count)
        stored = (old.message_count, old.deferred_count, old.scheduled_count)
        if counts != stored:
            self._inspection.report(
                FindingKind.COUNTERS_WRONG,
                f"The counters show {stored[0]:,} messages, {stored[1]:,} deferred and "
                f"{stored[2]:,} scheduled, the rows {counts[0]:,}, {counts[1]:,} and "
                f"{counts[2]:,}.",
                "The messages are counted again.",
                table="counters",
                queue_id=now.queue_id,
            )
        if now.next_seq > old.next_seq:
            self._inspection.report(
                FindingKind.SEQUENCE_REUSE,
                f"The next sequence number is {old.next_seq:,}, but numbers up to "
                f"{now.next_seq - 1:,} are in use.",
                "Sequence numbers continue above the highest one in use.",
                table="counters",
                queue_id=now.queue_id,
                first_seq=old.next_seq,
                last_seq=now.next_seq - 1,
            )
        is_older = "counters" in self._inspection.rows.tables_with_older
        if counts == stored and now.next_seq <= old.next_seq and not is_older:
            return
        now.next_seq = max(now.next_seq, old.next_seq) + (SEQ_GAP if is_older else 0)
        now.byte_count = old.byte_count if counts == stored else self._bytes_of(now.queue_id)
        self._put_counters(now)

    def _put_counters(self, counters: QueueCounters) -> None:
        values = counters.values()
        self._draft.execute("DELETE FROM counters WHERE queue_id = ?", (counters.queue_id,))
        self._draft.put("counters", [(*values, row_checksum.of_values(*values))])

    def _bytes_of(self, queue_id: int) -> int:
        """The bytes of a queue's messages that are not settled."""
        if not self._draft.has_bodies:
            return 0
        queue = queue_id << SEQ_BITS
        limits = (queue, queue | SEQ_MAX)
        total = self._draft.number(
            "SELECT SUM(length(blob)) FROM scheduled WHERE id BETWEEN ? AND ?", limits
        )
        total += self._draft.number(_PLAIN_BYTES, limits)
        for (row_id,) in self._draft.execute(_NOT_PLAIN, limits):
            count, blob = self._inspection.blob(row_id)
            runs = self._draft.execute(
                "SELECT id, last_id FROM tombstone WHERE id BETWEEN ? AND ?",
                (row_id, row_id + count - 1),
            )
            total += _bytes_left(blob, count, [(a - row_id, b - row_id) for a, b in runs])
        return total


class _Counted(dict[int, QueueCounters]):
    """Counters by queue, zero until something is counted."""

    def __missing__(self, queue_id: int) -> QueueCounters:
        counters = self[queue_id] = QueueCounters(queue_id)
        return counters


def _bytes_left(blob: bytes, count: int, gone: list[tuple[int, int]]) -> int:
    try:
        lengths = unpack_from(f">{count}I", blob)
    except StructError:
        return len(blob)
    starts = list(accumulate(lengths, initial=0))
    if starts[-1] + 4 * count != len(blob):
        return len(blob)
    settled = sum(starts[last + 1] - starts[first] for first, last in gone)
    return int(starts[-1] - settled)
