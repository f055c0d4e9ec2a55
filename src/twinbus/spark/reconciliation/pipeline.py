"""Reconciles a pair: the chain of steps, and the result as values.

Rule 1: the result names the sources that were used (``AvailableSources``). A directory of logs
        without a line about its side of the pair is refused: the result would hide that nothing
        was checked.
Rule 2: the logs are read after the scan of the queues. A message that was received between both has
        its line then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.common.entity_path import backlog_owner, backlog_prefix
from twinbus.cost.reconciliation import (
    AvailableSources,
    Difference,
    DifferenceKind,
    EntityReconciliation,
    MessageStatus,
    Outage,
    Reconciliation,
    Trace,
    describe_trace,
)
from twinbus.errors import ConfigurationError
from twinbus.spark.reconciliation.accounts import (
    TOOK,
    Time,
    accounts_of,
    by_entity,
    entries,
    within,
)
from twinbus.spark.reconciliation.copies import (
    HOPS_MAX,
    adopted,
    copies_in_receipts,
    copies_of,
    named,
    signed,
    with_entity,
    with_status,
)
from twinbus.spark.reconciliation.differences import outages_in, that_differ, traces, with_traces
from twinbus.spark.reconciliation.log_tables import (
    EVENT_COLUMNS,
    RECEIPTS,
    SENT_COLUMNS,
    RunPart,
    audit_lines,
    census,
    events_of,
    have_copies,
    lost_lines,
    receipt_lines,
    receipts_of,
    run_parts,
    sent_of,
    unclosed,
    without_copies,
)
from twinbus.spark.reconciliation.message_locations import (
    compared_with_scan,
    ended_with_their_entity,
    marked,
    places_of,
)
from twinbus.spark.reconciliation.queue_scan import scan_queues
from twinbus.spark.runtime.tuning import done, empty, small_input_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.spark.connection_refs import NamespaceRef

__all__ = ["Sources", "reconcile"]

# More than a person reads.
DIFFERENCES_MAX: Final = 100_000
_SIDES: Final = {
    "primary": "written by the broker of {pair}",
    "secondary": "written by another broker than that of {pair}",
    "client": "written by a client of {pair}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources to read; at least one of them."""

    primary_logs: Path | None = None
    secondary_logs: Path | None = None
    client_logs: Path | None = None
    receipts: Path | None = None
    journal: Path | None = None
    primary: NamespaceRef | None = None
    """To scan the queues; both or none."""
    secondary: NamespaceRef | None = None

    @property
    def given(self) -> AvailableSources:
        return AvailableSources(
            client=self.client_logs is not None,
            primary=self.primary_logs is not None,
            secondary=self.secondary_logs is not None,
            receipts=self.receipts is not None,
            journal=self.journal is not None,
            look=self.primary is not None,
        )

    @property
    def logs(self) -> dict[str, Path]:
        """The directories with audit logs, by their side of the pair."""
        found = {
            "primary": self.primary_logs,
            "secondary": self.secondary_logs,
            "client": self.client_logs,
        }
        return {name: each for name, each in found.items() if each is not None}


def reconcile(
    spark: SparkSession,
    sources: Sources,
    *,
    pair: str | None = None,
    begins: datetime | None = None,
    ends: datetime | None = None,
) -> Reconciliation:
    """Read all sources, follow every message, and return what does not add up."""
    given = sources.given
    if not any((given.client, given.primary, given.secondary, given.receipts)):
        raise ConfigurationError(
            "Reconciliation requires at least one source",
            hint="Name the logs of the primary, of the secondary or of a client, or receipts",
        )
    kept: list[DataFrame] = []
    files = [each for path in sources.logs.values() for each in path.rglob("*.jsonl")]
    with small_input_settings(spark, sum(each.stat().st_size for each in files)):
        try:
            return _Job(spark, sources, pair, kept).run(begins, ends)
        finally:
            _forget(kept)


def _forget(kept: list[DataFrame]) -> None:
    while kept:
        kept.pop().unpersist()


class _Job:
    """One reconciliation."""

    def __init__(
        self, spark: SparkSession, sources: Sources, pair: str | None, kept: list[DataFrame]
    ) -> None:
        self._spark = spark
        self._kept = kept
        self._sources = sources
        self._given = sources.given
        self._read()
        self._pair = (pair or self._find_pair()).lower()
        self._check_sides()

    def _read(self) -> None:
        """All files as they are now: Spark reads them up to their size at this time."""
        # For Spark a table of the same files is the same: it would return the persisted one.
        _forget(self._kept)
        logs, receipts = self._sources.logs, self._sources.receipts
        self._lines = self._keep(audit_lines(self._spark, logs)) if logs else None
        found = [] if self._lines is None else census(self._lines).collect()
        self._damaged_lines = sum(row["lines"] for row in found if row["is_damaged"])
        self._census = [row for row in found if not row["is_damaged"]]
        self._parts = self._runs()
        if self._lines is not None and have_copies(self._parts):
            self._lines = self._keep(without_copies(self._lines))
            self._parts = self._runs()
        self._receipt_lines = None if receipts is None else receipt_lines(self._spark, receipts)

    def _runs(self) -> list[RunPart]:
        if self._lines is None:
            return []
        return [RunPart(**row.asDict()) for row in run_parts(self._lines).collect()]

    # -- which pair -----------------------------------------------------------------------

    def _find_pair(self) -> str:
        """The primary's name in the lines of clients and in paths of backlog queues, if it is
        only one."""
        brokers = {row["namespace"] for row in self._census if row["source"] == "broker"}
        names = {row["namespace"] for row in self._census if row["source"] == "client"}
        names |= {backlog_owner(row["place"]) for row in self._census if row["source"] == "broker"}
        if self._receipt_lines is not None:
            queues = self._receipt_lines.select("queue").distinct().collect()
            names |= {backlog_owner(row["queue"].lower()) for row in queues}
        names -= {""}
        if self._given.primary:
            names = names & brokers or names or brokers
        if len(names) == 1:
            return str(names.pop())
        if not names:
            raise ConfigurationError(
                "The logs do not name a pair", hint="Set the name of the primary with --pair"
            )
        raise ConfigurationError(
            f"The logs name several primaries: {', '.join(sorted(names)[:5])}",
            hint="Choose one with --pair",
        )

    def _check_sides(self) -> None:
        """Every directory has a line of its side (rule 1)."""
        for name, directory in self._sources.logs.items():
            lines = [row for row in self._census if name in row["given"].split(",")]
            if not any(self._is_of_side(row, name) for row in lines):
                raise ConfigurationError(
                    f"The audit logs below {str(directory)!r} contain no line "
                    f"{_SIDES[name].format(pair=self._pair)}",
                    hint="Check --pair, and whether the directories were exchanged",
                )

    def _is_of_side(self, row: Any, name: str) -> bool:
        is_primary = row["namespace"] == self._pair
        if name == "client":
            return bool(row["source"] == "client" and is_primary)
        return bool(row["source"] == "broker" and is_primary == (name == "primary"))

    def _concerns(self, part: RunPart) -> bool:
        return part.source == "broker" or part.namespace == self._pair

    # -- tables ---------------------------------------------------------------------------

    def _events(self) -> DataFrame:
        sides = [*(["primary"] * self._given.primary), *(["backlog"] * self._given.secondary)]
        if self._lines is None or not sides:
            return empty(self._spark, EVENT_COLUMNS)
        events = events_of(self._lines, self._pair)
        return events.where(events["side"].isin(*sides))

    def _sent(self) -> DataFrame:
        if self._lines is None or not self._given.client:
            return empty(self._spark, SENT_COLUMNS)
        return sent_of(self._lines, self._pair)

    def _receipts(self) -> DataFrame:
        if self._receipt_lines is None:
            return empty(self._spark, RECEIPTS)
        return receipts_of(self._receipt_lines, self._pair)

    def _scan(self) -> tuple[DataFrame, DataFrame] | None:
        primary, secondary = self._sources.primary, self._sources.secondary
        if primary is None or secondary is None:
            return None
        prefix = backlog_prefix(self._pair)
        known = {row["place"] for row in self._census if row["namespace"] == self._pair}
        on_primary, places = scan_queues(
            self._spark,
            "primary",
            primary,
            (each for each in known if each and not backlog_owner(each)),
            topics={row["place"] for row in self._census if row["event"] == "published"},
            has_log=self._given.primary,
        )
        in_backlog, backlog_places = scan_queues(
            self._spark,
            "backlog",
            secondary,
            (row["place"] for row in self._census if row["place"].startswith(prefix)),
            prefix=prefix,
            has_log=self._given.secondary,
        )
        return on_primary.unionByName(in_backlog), places.unionByName(backlog_places)

    def _has_events(self, *events: str) -> bool:
        return any(row["event"] in events for row in self._census)

    def _hops_max(self) -> int:
        """A message moves on from an entity that forwards, and finally to the dead letters."""
        forwarding = {row["place"] for row in self._census if row["event"] == "forwarded"}
        return min(HOPS_MAX, len(forwarding) + self._has_events("dead-lettered"))

    def _keep(self, table: DataFrame) -> DataFrame:
        """Several steps need it: it is computed once."""
        self._kept.append(table.persist())
        return table

    # -- the chain ------------------------------------------------------------------------

    def run(self, begins: datetime | None, ends: datetime | None) -> Reconciliation:
        scan = self._scan()
        if scan is not None:
            self._read()
        events, sent, receipts = self._events(), self._sent(), self._receipts()
        places = events.transform(places_of)
        # Most logs contain no deletions and no forwarded messages: those steps cost seconds.
        if self._has_events("deleted"):
            places = places.transform(ended_with_their_entity, events)
        if scan is not None:
            places = places.transform(done).transform(compared_with_scan, *scan)
        if self._has_events("published", "duplicate"):
            places = places.transform(marked, events)
        stays = (
            places.transform(with_entity)
            .transform(signed, receipts)
            .transform(named)
            .transform(done)
        )
        if self._has_events("forwarded", "dead-lettered"):
            stays = stays.transform(adopted, self._hops_max())
            stays = stays.transform(done)
        stays = stays.transform(with_status)
        copies = stays.transform(copies_of)
        if not self._given.secondary:
            copies = copies.unionByName(copies_in_receipts(receipts))
        accounts = (
            entries(copies, sent, receipts, self._given)
            .transform(accounts_of, self._given, Time(_ms(begins), _ms(ends)))
            .transform(within)
            .transform(done)
        )
        table = accounts.transform(by_entity).collect()
        differing: list[Any] = []
        if any(
            row["unexpected"] + row["doubled"] + row[TOOK[MessageStatus.MISSING]] for row in table
        ):
            differing = (
                accounts.transform(that_differ)
                .limit(DIFFERENCES_MAX + 1)
                .transform(done)
                .transform(with_traces, traces(stays, sent, receipts))
                .collect()
            )
        return self._result(table, differing, begins, ends)

    def _result(
        self,
        table: Iterable[Any],
        differing: list[Any],
        begins: datetime | None,
        ends: datetime | None,
    ) -> Reconciliation:
        parts = [each for each in self._parts if self._concerns(each)]
        journal = self._sources.journal
        outages = {} if journal is None else outages_in(journal)
        entities = tuple(
            _entity(row, outages.get(row["entity"], ()))
            for row in sorted(table, key=lambda row: str(row["entity"]))
        )
        return Reconciliation(
            pair=self._pair,
            begins=begins,
            ends=ends,
            sources=self._given,
            entities=entities,
            differences=tuple(_differences(differing[:DIFFERENCES_MAX], self._given)),
            damaged_lines=self._damaged_lines,
            lost_lines=lost_lines(parts),
            notes=(
                *unclosed(parts),
                *_notes(entities, has_range=begins is not None or ends is not None),
                *_cut(len(differing)),
            ),
        )


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def _entity(row: Any, outages: tuple[Outage, ...]) -> EntityReconciliation:
    return EntityReconciliation(
        entity=row["entity"],
        sent=row["sent"],
        statuses={status: row[name] for status, name in TOOK.items()},
        duplicates=row["duplicates"],
        duplicates_explained=row["explained"],
        unexpected=row["unexpected"],
        without_id=row["without_id"],
        outages=outages,
    )


def _differences(rows: Iterable[Any], given: AvailableSources) -> Iterable[Difference]:
    for row in sorted(rows, key=lambda row: (row["entity"], row["message_id"] or "")):
        trace = describe_trace((Trace(*each) for each in row["traces"] or ()), given)
        for kind, count in (
            (DifferenceKind.MISSING, row["missing"]),
            (DifferenceKind.UNEXPECTED, row["unexpected"]),
            (DifferenceKind.DUPLICATE, row["doubled"]),
        ):
            if count:
                yield Difference(
                    entity=row["entity"],
                    message_id=row["message_id"],
                    kind=kind,
                    count=count,
                    trace=trace if row["message_id"] is not None else _without_id(trace),
                )


def _without_id(trace: str) -> str:
    return f"messages without id; unexplained: {trace}" if trace else "messages without id"


def _cut(count: int) -> Iterable[str]:
    if count > DIFFERENCES_MAX:
        yield f"Only {DIFFERENCES_MAX:,} differing ids are listed; the counts include all."


def _notes(entities: Iterable[EntityReconciliation], *, has_range: bool) -> Iterable[str]:
    nameless = sum(each.without_id for each in entities)
    if nameless and has_range:
        yield (
            f"{nameless:,} messages have no id and cannot be selected by time: "
            "all of them are counted."
        )
