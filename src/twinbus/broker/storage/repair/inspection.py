"""What the checks of a salvaged store share: its draft, the findings so far, and lookups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinbus.broker.storage.interface import SEQ_BITS, SEQ_MAX
from twinbus.broker.storage.repair.findings import Finding, FindingKind, LostRange
from twinbus.broker.storage.repair.new_store_file import Draft
from twinbus.broker.storage.repair.salvage import Found
from twinbus.broker.storage.shared_bodies import select

_MESSAGES_IN: Final = {"chunk": "count", "tombstone": "id - last_id - 1", "scheduled": "1"}


class ChunkFacts(NamedTuple):
    """The properties of a chunk that its messages contain."""

    expires_ms: int | None
    session: str | None


MessageReader = Callable[[bytes, int], ChunkFacts]
"""Reads the blob of a chunk with this many messages; raises ValueError if it cannot."""


@dataclass(slots=True)
class Inspection:
    """A filled draft and what was found in it."""

    draft: Draft
    rows: Found
    """What is known about the rows that were salvaged."""
    read_messages: MessageReader | None = None
    findings: list[Finding] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    repeated: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Queue -> number of messages that it has more than once, as far as that is known."""
    _exact_losses: set[LostRange] = field(default_factory=set)
    """The exact ones of ``lost``, for fast lookups: a store can lose many thousands."""

    def report(
        self, kind: FindingKind, sentence: str, repair: str, **place: int | str | None
    ) -> None:
        self.findings.append(
            Finding(kind=kind, sentence=sentence, repair=repair, **place)  # type: ignore[arg-type]
        )

    def lose(self, row_id: int, count: int) -> None:
        first_seq = row_id & SEQ_MAX
        lost = LostRange(row_id >> SEQ_BITS, first_seq, first_seq + count - 1, is_exact=True)
        if lost not in self._exact_losses:
            self._exact_losses.add(lost)
            self.lost.append(lost)

    # -- lookups --------------------------------------------------------------------------

    def contents(
        self, tables: Iterable[str] = ("chunk", "tombstone", "scheduled")
    ) -> dict[int, int]:
        """Queue -> number of its messages according to these tables."""
        contents: dict[int, int] = defaultdict(int)
        for table in tables:
            sql = f"SELECT id >> 40, SUM({_MESSAGES_IN[table]}) FROM {table} GROUP BY 1"
            for queue_id, count in self.draft.execute(sql):
                contents[queue_id] += count
        return dict(contents)

    def queues_with_sessions(self) -> set[int]:
        sql = "SELECT DISTINCT id >> 40 FROM session_chunk"
        return {row[0] for row in self.draft.execute(sql)}

    def facts(self, row_id: int) -> ChunkFacts | None:
        if self.read_messages is None or not self.draft.has_bodies:
            return None
        count, blob = self.blob(row_id)
        try:
            return self.read_messages(blob, count)
        except ValueError:
            return None

    def blob(self, row_id: int) -> tuple[int, bytes]:
        ((count, blob),) = self.draft.execute(
            "SELECT count, blob FROM chunk WHERE id = ?", (row_id,)
        )
        sql = (
            "SELECT sheet.blob, sheet.count, selection FROM share"
            " JOIN sheet ON sheet.id = sheet_id WHERE share.id = ?"
        )
        for sheet, size, selection in self.draft.execute(sql, (row_id,)) if not blob else ():
            blob = select(sheet, size, selection)
        return count, blob
