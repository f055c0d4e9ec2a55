"""What is wrong with one store, and a new store with everything that can be read from it.

    files -> head -> rows (salvage) -> references -> the broker's own check
                          |
                          +--> draft --> a new store (only when one is wanted)

Rule 1: the store that is examined is opened for reading only. What the broker itself would say is
        asked of a copy.
Rule 2: nobody is told "healthy" about a store that the broker would refuse.
Rule 3: any bytes are examined; what cannot be understood is a finding, never an error.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import apsw

from twinbus.broker.storage import schema
from twinbus.broker.storage.interface import Recovered
from twinbus.broker.storage.repair.catalogue_rows import CatalogueCheck, keep_entities
from twinbus.broker.storage.repair.findings import (
    Finding,
    FindingKind,
    LostRange,
    Severity,
    Totals,
    counted,
)
from twinbus.broker.storage.repair.inspection import Inspection, MessageReader
from twinbus.broker.storage.repair.new_store_file import Draft
from twinbus.broker.storage.repair.page_file import MAGIC, PageFile
from twinbus.broker.storage.repair.references import ReferenceCheck
from twinbus.broker.storage.repair.salvage import Found, Salvage
from twinbus.broker.storage.sqlite_connection import translated
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.broker.storage.store_files import SLOT_BYTES, MarkRecord, beside, read_mark
from twinbus.errors import StoreCorrupt, StoreFailed, StoreVersionMismatch

# What a store consists of; the index of the log is rebuilt by whoever opens it.
FILE_SUFFIXES: Final = ("", "-wal", ".mark")
_COMPANIONS: Final = ("-wal", ".mark", "-journal")

Progress = Callable[[str, int], None]
"""What is being done, and how many pages of it are done."""


@dataclass(slots=True)
class StoreReport:
    """What was found in one store."""

    findings: list[Finding] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    lost: list[LostRange] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)
    """Queue id -> path of the entity, as a repaired store has it."""
    can_repair: bool = True
    is_repaired: bool = False

    @property
    def is_healthy(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


class _Built(NamedTuple):
    """What a store says about itself."""

    commit_number: int | None
    store_id: bytes | None
    commits_logged: int
    """How many commits the log holds."""


@dataclass(frozen=True, slots=True)
class Doctor:
    """How stores are examined; what entities and messages mean comes from whoever knows it."""

    scratch: Path
    """Where copies are made, which need as much room as the store."""
    catalogue: CatalogueCheck = keep_entities
    read_messages: MessageReader | None = None
    build_entities: Callable[[Recovered], object] | None = None
    """Makes of a store's entities what a broker does, and raises when that cannot be."""
    progress: Progress | None = None

    def examine(self, path: Path, into: Path | None = None) -> StoreReport:
        """Look at a store; with ``into``, write a new one with all that can be read.

        ``into`` is the path of the new store file; it is durable when this returns.
        """
        report = StoreReport()
        if not self._is_there(path, report):
            return report
        try:
            with TemporaryDirectory(prefix=".doctor-", dir=self.scratch) as scratch:
                self._examine(path, into, Path(scratch), report)
        except (apsw.Error, OSError) as error:
            with translated(self.scratch):
                raise error
        return report

    def _is_there(self, path: Path, report: StoreReport) -> bool:
        """Whether there is anything to look at; a namespace without a store is an empty one."""
        if path.exists():
            if path.stat().st_size == 0:
                report.findings.append(
                    Finding(
                        kind=FindingKind.DATABASE_EMPTY,
                        sentence=f"The database {path.name!r} is an empty file.",
                        repair="What the log beside it holds is kept.",
                    )
                )
            return True
        left = [suffix for suffix in _COMPANIONS if beside(path, suffix).exists()]
        if left:
            names = " and ".join(path.name + suffix for suffix in left)
            report.findings.append(
                Finding(
                    kind=FindingKind.DATABASE_MISSING,
                    sentence=f"The database {path.name!r} is missing while {names} is there.",
                    repair="What the log holds is kept; restore the database from a backup if "
                    "there is one.",
                )
            )
        return bool(left)

    def _examine(self, path: Path, into: Path | None, scratch: Path, report: StoreReport) -> None:
        mark = self._look_at_mark(path, report)
        before = list(report.findings)
        built = self._build(path, into, scratch, report, mark, is_lenient=False)
        number, store_id = built.commit_number, built.store_id
        if mark is not None and store_id is not None and mark.store_id != store_id:
            report.findings.append(
                Finding(
                    kind=FindingKind.MARK_FOREIGN,
                    sentence=f"{path.name}.mark belongs to another store.",
                    repair="It is written anew. Check that the files come from one backup.",
                )
            )
            mark = None
        if number is not None and mark is not None and number < mark.commit_number:
            # Acknowledged work is not there: look behind the place where SQLite cut the log.
            retry = StoreReport(findings=[*before])
            behind = self._build(path, into, scratch, retry, mark, is_lenient=True)
            again = behind.commit_number or number
            if again == number and behind.commits_logged > built.commits_logged:
                # The ledger is what is damaged. Where it went back, so did everything else.
                more = behind.commits_logged - built.commits_logged
                again = min(number + more, mark.commit_number)
            if again > number:
                report.findings, report.totals = retry.findings, retry.totals
                report.lost, report.paths = retry.lost, retry.paths
            else:
                self._build(path, into, scratch, StoreReport(), mark, is_lenient=False)
            self._name_missing_commits(report, number, again, mark.commit_number)
        if report.is_healthy and report.can_repair:
            self._ask_broker(path, scratch, report)
        if into is not None and report.can_repair:
            self._say("checking the new store", 0)
            _verify(into, self.build_entities)
            report.is_repaired = True

    def _build(
        self,
        path: Path,
        into: Path | None,
        scratch: Path,
        report: StoreReport,
        mark: MarkRecord | None,
        *,
        is_lenient: bool,
    ) -> _Built:
        """Salvage into a draft."""
        target = scratch / "draft.db" if into is None else into
        target.unlink(missing_ok=True)
        with Draft(target, has_bodies=into is not None) as draft:
            with PageFile(path, is_lenient=is_lenient) as pages:
                found = Salvage(pages, draft, lambda count: self._say("reading pages", count)).run()
                self._look_at_head(pages, found, report)
                self._look_at_places(path, pages, report)
                commits_logged = pages.log.commit_count
            if not report.can_repair:
                target.unlink()
                return _Built(None, None, commits_logged)
            ledger = draft.execute("SELECT commit_number, store_id FROM ledger LIMIT 1")
            self._say("checking references", 0)
            inspection = Inspection(draft, found, self.read_messages)
            check = ReferenceCheck(
                inspection,
                catalogue=self.catalogue,
                commit_number_min=0 if mark is None else mark.commit_number,
            )
            check.run()
            report.findings += inspection.findings
            report.totals, report.lost, report.paths = check.totals, inspection.lost, check.paths
            if into is not None:
                self._say("writing the new store", 0)
                draft.finish(check.commit_number, check.queue_id_last)
        if into is None:
            target.unlink()
        number, store_id = ledger[0] if ledger else (None, None)
        return _Built(number, store_id, commits_logged)

    # -- the files ------------------------------------------------------------------------

    def _look_at_mark(self, path: Path, report: StoreReport) -> MarkRecord | None:
        mark_path = beside(path, ".mark")
        try:
            size = mark_path.stat().st_size
            mark = read_mark(mark_path)
        except FileNotFoundError:
            return None
        except OSError:
            report.findings.append(_unreadable(mark_path.name, 1, "It is written anew."))
            return None
        if mark is None and size >= SLOT_BYTES:
            report.findings.append(
                Finding(
                    kind=FindingKind.MARK_DAMAGED,
                    severity=Severity.WARNING,
                    sentence=f"Neither record of {mark_path.name!r} can be read, so it is not "
                    "known whether the last commits are there.",
                    repair="It is written anew.",
                )
            )
        return mark

    def _look_at_places(self, path: Path, pages: PageFile, report: StoreReport) -> None:
        """What the disk could not read. It is said even if nothing seems to be missing: nobody
        knows what stood there."""
        repair = "Everything else is kept. Do not go on using this disk."
        for name, places in ((path.name, pages.places), (f"{path.name}-wal", pages.log.places)):
            if places.unreadable:
                report.findings.append(_unreadable(name, len(places.unreadable), repair))

    def _look_at_head(self, pages: PageFile, found: Found, report: StoreReport) -> None:
        head = pages.header
        if not head:
            return
        if not head.startswith(MAGIC) or len(head) < 100:
            self._add_once(
                report, FindingKind.HEADER_DAMAGED, "The header of the database is damaged."
            )
            return
        version, application_id = (int.from_bytes(head[at : at + 4], "big") for at in (60, 68))
        if not found.is_ours and not found.has_schema:
            report.can_repair = False
            report.findings.append(
                Finding(
                    kind=FindingKind.FOREIGN_DATABASE,
                    sentence="The file is a database of another program.",
                    repair="None. It holds no messages of twinbus.",
                )
            )
        elif version not in schema.VERSIONS and found.has_other_tables:
            report.can_repair = False
            report.findings.append(
                Finding(
                    kind=FindingKind.VERSION_NEWER,
                    sentence=f"The store has format {version}, and this twinbus reads "
                    f"{schema.FORMAT_VERSION}.",
                    repair="None. Examine it with the twinbus version that wrote it.",
                )
            )
        elif version not in schema.VERSIONS or application_id != schema.APPLICATION_ID:
            self._add_once(
                report, FindingKind.HEADER_DAMAGED, "The header of the database is damaged."
            )

    def _add_once(self, report: StoreReport, kind: FindingKind, sentence: str) -> None:
        if all(finding.kind is not kind for finding in report.findings):
            repair = "It is written anew; the tables are recognised by their rows."
            report.findings.append(Finding(kind=kind, sentence=sentence, repair=repair))

    def _name_missing_commits(
        self, report: StoreReport, there: int, found: int, acknowledged: int
    ) -> None:
        if found > there:
            report.findings.append(
                Finding(
                    kind=FindingKind.LOG_DAMAGED,
                    sentence=f"The log is damaged behind commit {there:,}; commits up to {found:,} "
                    "can be read behind the damage.",
                    repair="They are kept, without the rows of the damaged pages.",
                )
            )
        if found < acknowledged:
            report.findings.append(
                Finding(
                    kind=FindingKind.COMMITS_MISSING,
                    sentence=f"Commits {found + 1:,} to {acknowledged:,} were acknowledged and are "
                    "not there (an older copy of the files, or a damaged log).",
                    repair="Everything up to the last readable commit is kept. Messages settled in "
                    "the missing commits come back, messages sent in them are lost.",
                )
            )

    # -- what the broker says -------------------------------------------------------------

    def _ask_broker(self, path: Path, scratch: Path, report: StoreReport) -> None:
        """Open a copy as the broker would: it also looks at indexes, which nobody else needs."""
        self._say("checking as the broker does", 0)
        copy = scratch / path.name
        for suffix in FILE_SUFFIXES:
            if beside(path, suffix).exists():
                shutil.copyfile(beside(path, suffix), beside(copy, suffix))
        try:
            _verify(copy, self.build_entities)
        except Exception as error:
            # Whatever it is: a broker would not start with it. Its text may hold anything.
            is_ours = isinstance(error, StoreCorrupt | StoreVersionMismatch | StoreFailed)
            detail = getattr(error, "detail", str(error)) if is_ours else type(error).__name__
            report.findings.append(
                Finding(
                    kind=FindingKind.REFUSED_BY_BROKER,
                    sentence=f"The broker refuses the store: {detail}.",
                    repair="Rows are written anew, with new indexes and a new mark.",
                    queue_id=getattr(error, "queue_id", None),
                    first_seq=getattr(error, "first_seq", None),
                    last_seq=getattr(error, "last_seq", None),
                )
            )

    def _say(self, what: str, count: int) -> None:
        if self.progress is not None:
            self.progress(what, count)


def _unreadable(name: str, count: int, repair: str) -> Finding:
    return Finding(
        kind=FindingKind.FILE_UNREADABLE,
        sentence=f"The disk cannot read {counted(count, 'place')} of {name!r}.",
        repair=repair,
    )


def _verify(path: Path, build_entities: Callable[[Recovered], object] | None) -> None:
    """Open a store as a broker does, read every row of it, and close it again."""
    store = SqliteStore(path)
    try:
        recovered = store.open()
        store.verify_all()
        if build_entities is not None:
            build_entities(recovered)
    finally:
        store.close()
