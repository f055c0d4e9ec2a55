"""Checks whether the salvaged rows of a store match each other, and corrects what does not.

    damaged places -> ledger -> deleted queues -> messages (message_references.py)
    -> entities (the caller's part, because the store does not interpret topics)
    -> sessions and expiries -> counters (counter_check.py)

Rule 1: a message is dropped only when its bytes are lost. A message in question is kept.
Rule 2: a number that is assigned next (sequence numbers, ids) is never lowered; if it is lost, it
        starts far above everything that was found.
Rule 3: everything happens inside a draft (``new_store_file``); the examined store is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twinbus.broker.storage import row_checksum
from twinbus.broker.storage.interface import SEQ_BITS, SEQ_MAX, EntityRow
from twinbus.broker.storage.repair.catalogue_rows import (
    CatalogueCheck,
    CataloguePlan,
    CatalogueRows,
    keep_entities,
)
from twinbus.broker.storage.repair.counter_check import KIND_RULE, CounterCheck
from twinbus.broker.storage.repair.findings import FindingKind, Totals, counted
from twinbus.broker.storage.repair.inspection import Inspection
from twinbus.broker.storage.repair.message_references import MessageCheck
from twinbus.broker.storage.repair.page_file import Flaw
from twinbus.broker.storage.repair.salvage import SCHEMA_TABLE
from twinbus.broker.storage.schema import QUEUE_TABLES
from twinbus.broker.storage.shared_bodies import SHEET_BITS

_PAGES_NAMED_MAX: Final = 8

_CONSEQUENCES: Final = {
    "chunk": "The messages of its other rows are kept.",
    "sheet": "Messages stored only there are lost; all others are kept.",
    "share": "Selections are recovered from the checksums of their chunks, as far as possible.",
    "scheduled": "The other scheduled messages are kept.",
    "tombstone": "Messages that were settled there are repeated, not lost.",
    "state": "Delivery counts there restart at 0, and messages deferred there become active.",
    "expiry": "The expiry of those chunks is read from their messages.",
    "session_chunk": "The session of those chunks is read from their messages.",
    "session_state": "Session states there are lost.",
    "seen": "Duplicates of messages recorded there are not detected.",
    "counters": "Messages are counted again, and sequence numbers continue after a gap.",
    "entity": "Entities with messages are created again, with default properties.",
    "garbage": "Rows of deleted entities may reappear as an entity 'recovered-<id>'.",
    "meta": "Values of the namespace there are lost.",
    "ledger": "The ledger is written again.",
    SCHEMA_TABLE: "The tables are identified by their rows.",
}


class ReferenceCheck:
    """Checks a filled draft, reports what is wrong and corrects it."""

    def __init__(
        self,
        inspection: Inspection,
        *,
        catalogue: CatalogueCheck = keep_entities,
        commit_number_min: int = 0,
    ) -> None:
        self._inspection = inspection
        self._draft = inspection.draft
        self._catalogue = catalogue
        self._commit_number_min = commit_number_min
        self.totals = Totals()
        self.paths: dict[int, str] = {}
        self.commit_number = 0
        self.queue_id_last = 0
        self._known_ids: set[int] = set()
        self._perhaps_deleted: set[int] = set()

    def run(self) -> None:
        self._report_flaws()
        self._read_ledger()
        self._drop_deleted_queues()
        messages = MessageCheck(self._inspection)
        messages.run()
        plan = self._check_entities()
        messages.finish(plan.with_sessions)
        counters = CounterCheck(self._inspection, self._known_ids, self._perhaps_deleted)
        counters.run(plan.with_counters)
        self.totals = counters.totals

    # -- what could not be read -----------------------------------------------------------

    def _report_flaws(self) -> None:
        for table, flaws in self._inspection.rows.flaws.items():
            self._report_flaws_of(table, flaws)

    def _report_flaws_of(self, table: str, flaws: list[Flaw]) -> None:
        rows = [flaw for flaw in flaws if flaw.row_id is not None]
        pages = sorted({flaw.page for flaw in flaws})
        shown = ", ".join(map(str, pages[:_PAGES_NAMED_MAX]))
        shown += " and others" if len(pages) > _PAGES_NAMED_MAX else ""
        reasons = " and ".join(sorted({flaw.reason for flaw in flaws}))
        kind = FindingKind.ROW_DAMAGED if len(rows) == len(flaws) else FindingKind.PAGE_DAMAGED
        if table == SCHEMA_TABLE:
            kind = FindingKind.SCHEMA_DAMAGED
        self._inspection.report(
            kind,
            f"Table {table!r} is damaged in {counted(len(flaws), 'place')} "
            f"(page {shown}): {reasons}.",
            _CONSEQUENCES.get(table, "All other rows are kept."),
            table=table,
        )

    # -- the store as a whole -------------------------------------------------------------

    def _read_ledger(self) -> None:
        rows = self._draft.execute("SELECT commit_number, queue_id_last FROM ledger")
        if len(rows) != 1:
            self._inspection.report(
                FindingKind.LEDGER_DAMAGED,
                f"The ledger of the store has {counted(len(rows), 'readable row')}, expected 1.",
                "It is written again, with numbers above all that were found.",
                table="ledger",
            )
        number = max((row[0] for row in rows), default=0)
        sheets = self._draft.number("SELECT MAX(id) FROM sheet") >> SHEET_BITS
        self.commit_number = max(number, sheets, self._commit_number_min) + 1
        self.queue_id_last = max((row[1] for row in rows), default=0)
        highest = self._draft.number("SELECT MAX(queue_id) FROM entity")
        if rows and highest > self.queue_id_last:
            self._inspection.report(
                FindingKind.LEDGER_DAMAGED,
                f"The highest entity number is {highest}, but the ledger shows "
                f"{self.queue_id_last}.",
                "The ledger is corrected, so that no number is used twice.",
                table="ledger",
            )
        used = [highest]
        for table in ("garbage", "counters"):
            used.append(self._draft.number(f"SELECT MAX(queue_id) FROM {table}"))
        used += [
            self._draft.number(f"SELECT MAX(id) FROM {table}") >> SEQ_BITS for table in QUEUE_TABLES
        ]
        self.queue_id_last = max(self.queue_id_last, *used)

    def _drop_deleted_queues(self) -> None:
        """Delete the rows of deleted queues; a new store does not contain them."""
        loose = (
            "SELECT COUNT(*) FROM sheet WHERE id NOT IN (SELECT sheet_id FROM share)",
            "DELETE FROM sheet WHERE id NOT IN (SELECT sheet_id FROM share)",
        )
        count = self._draft.number(loose[0])
        if count:
            self._inspection.report(
                FindingKind.REFERENCE_BROKEN,
                f"{count:,} shared bodies belong to no message."
                if count > 1
                else "A shared body belongs to no message.",
                "It is dropped unless a message that needs it is found.",
                table="sheet",
            )
        entities = (
            "SELECT queue_id FROM garbage WHERE queue_id NOT IN (SELECT queue_id FROM entity)"
        )
        for (queue_id,) in self._draft.execute(entities):
            self._drop(queue_id)
        self._draft.execute("DELETE FROM garbage")

    def _drop(self, queue_id: int) -> None:
        queue = queue_id << SEQ_BITS
        for table in QUEUE_TABLES:
            sql = f"DELETE FROM {table} WHERE id BETWEEN ? AND ?"
            self._draft.execute(sql, (queue, queue | SEQ_MAX))
        self._draft.execute("DELETE FROM counters WHERE queue_id = ?", (queue_id,))

    # -- entities -------------------------------------------------------------------------

    def _check_entities(self) -> CataloguePlan:
        sql = "SELECT queue_id, path, kind, description_json FROM entity"
        entities = [EntityRow(*row) for row in self._draft.execute(sql)]
        known = self._known_ids = {entity.queue_id for entity in entities}
        contents = self._inspection.contents()
        counters = {row[0] for row in self._draft.execute("SELECT queue_id FROM counters")}
        orphans = self._orphans(known, counters)
        unsealed = {
            entity.queue_id: entity
            for entity in self._inspection.rows.entities_unsealed
            if entity.queue_id not in known and self._is_likely(entity, orphans)
        }
        rows = CatalogueRows(
            entities,
            list(unsealed.values()),
            contents,
            orphans,
            self._inspection.queues_with_sessions(),
            counters,
            self.queue_id_last + 1,
        )
        plan = self._catalogue(rows)
        self._inspection.findings += plan.findings
        planned = [entity.queue_id for entity in plan.entities]
        self.queue_id_last = max(rows.next_queue_id - 1, *planned, 0)
        for queue_id in plan.dropped:
            self._drop(queue_id)
        self._draft.execute("DELETE FROM entity")
        for entity in plan.entities:
            values = (entity.queue_id, entity.path, entity.kind, entity.description_json)
            self._draft.put("entity", [(*values, row_checksum.of_values(*values))])
        self.paths = {entity.queue_id: entity.path for entity in plan.entities}
        self._perhaps_deleted = self._deleted_among(rows.orphans - unsealed.keys(), counters)
        return plan

    def _is_likely(self, entity: EntityRow, orphans: set[int]) -> bool:
        """Whether the number of an entity can be right although its checksum is wrong.

        The number itself may be damaged. Every entity except a rule has counters from its
        creation on, and none has a number that was not assigned.
        """
        if not 0 < entity.queue_id <= self.queue_id_last:
            return False
        has_all_counters = not self._inspection.rows.flaws.keys() & {"counters", SCHEMA_TABLE}
        return entity.queue_id in orphans or entity.kind == KIND_RULE or not has_all_counters

    def _deleted_among(self, orphans: set[int], with_counters: set[int]) -> set[int]:
        """Ids without an entity that may be those of deleted queues.

        A deleted queue has no counters, and is in the list of deleted queues: one can be unknown
        only if that list is damaged.
        """
        flaws = self._inspection.rows.flaws
        if not flaws.keys() & {"garbage", SCHEMA_TABLE}:
            return set()
        return orphans if "counters" in flaws else orphans - with_counters

    def _orphans(self, known: set[int], counters: Iterable[int]) -> set[int]:
        with_rows = {queue_id for queue_id in counters if queue_id > 0}
        for table in ("chunk", "scheduled", "session_state", "seen"):
            sql = f"SELECT DISTINCT id >> 40 FROM {table}"
            with_rows |= {row[0] for row in self._draft.execute(sql) if row[0] > 0}
        return with_rows - known
