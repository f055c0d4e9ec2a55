"""Examines one store, and writes a new store with everything that can be read from it.

    files -> header -> rows (salvage) -> references -> the broker's own check
                          |
                          +--> draft --> a new store (only when one is wanted)

Rule 1: the examined store is opened for reading only. The broker's own check runs on a copy.
Rule 2: a store that the broker would refuse is never reported as healthy.
Rule 3: any bytes are examined; content that cannot be read is a finding, never an error.
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
from twinbus.broker.storage.sqlite_connection import translate_errors
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.broker.storage.store_files import SLOT_BYTES, MarkRecord, beside, read_mark
from twinbus.errors import StoreCorrupt, StoreFailed, StoreVersionMismatch

# The files of a store; the index of the log is rebuilt when the store is opened.
FILE_SUFFIXES: Final = ("", "-wal", ".mark")
_COMPANIONS: Final = ("-wal", ".mark", "-journal")

Progress = Callable[[str, int], None]
"""The current step, and the number of pages that it has finished."""


@dataclass(slots=True)
class StoreReport:
    """The result of examining one store."""

    findings: list[Finding] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    lost: list[LostRange] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)
    """Queue id -> path of the entity in the repaired store."""
    can_repair: bool = True
    is_repaired: bool = False

    @property
    def is_healthy(self) -> bool:
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


class _Built(NamedTuple):
    """The header of a store and the length of its log."""

    commit_number: int | None
    store_id: bytes | None
    commits_logged: int
    """The number of commits in the log."""


@dataclass(frozen=True, slots=True)
class Doctor:
    """Examines stores; the callables interpret entities and messages."""

    scratch: Path
    """The directory for copies, which need as much disk space as the store."""
    catalogue: CatalogueCheck = keep_entities
    read_messages: MessageReader | None = None
    build_entities: Callable[[Recovered], object] | None = None
    """Builds a store's entities as a broker does, and raises if that fails."""
    progress: Progress | None = None

    def examine(self, path: Path, into: Path | None = None) -> StoreReport:
        """Examine a store; with ``into``, write a new one with all that can be read.

        ``into`` is the path of the new store file; it is durable when this returns.
        """
        report = StoreReport()
        if not self._exists(path, report):
            return report
        try:
            with TemporaryDirectory(prefix=".doctor-", dir=self.scratch) as scratch:
                self._examine(path, into, Path(scratch), report)
        except (apsw.Error, OSError) as error:
            with translate_errors(self.scratch):
                raise error
        return report

    def _exists(self, path: Path, report: StoreReport) -> bool:
        """Whether there is anything to examine; a namespace without a store is empty."""
        if path.exists():
            if path.stat().st_size == 0:
                report.findings.append(
                    Finding(
                        kind=FindingKind.DATABASE_EMPTY,
                        sentence=f"Database {path.name!r} is an empty file.",
                        repair="The content of its log is kept.",
                    )
                )
            return True
        left = [suffix for suffix in _COMPANIONS if beside(path, suffix).exists()]
        if left:
            names = " and ".join(path.name + suffix for suffix in left)
            report.findings.append(
                Finding(
                    kind=FindingKind.DATABASE_MISSING,
                    sentence=f"Database {path.name!r} is missing, but {names} exists.",
                    repair="The content of the log is kept; restore the database from a backup if "
                    "there is one.",
                )
            )
        return bool(left)

    def _examine(self, path: Path, into: Path | None, scratch: Path, report: StoreReport) -> None:
        mark = self._check_mark(path, report)
        before = list(report.findings)
        built = self._build(path, into, scratch, report, mark, is_lenient=False)
        number, store_id = built.commit_number, built.store_id
        if mark is not None and store_id is not None and mark.store_id != store_id:
            report.findings.append(
                Finding(
                    kind=FindingKind.MARK_FOREIGN,
                    sentence=f"File {path.name + '.mark'!r} belongs to another store.",
                    repair="It is written again. Check that all files are from the same backup.",
                )
            )
            mark = None
        if number is not None and mark is not None and number < mark.commit_number:
            # Acknowledged commits are missing: read on after the place where SQLite cut the log.
            retry = StoreReport(findings=[*before])
            behind = self._build(path, into, scratch, retry, mark, is_lenient=True)
            again = behind.commit_number or number
            if again == number and behind.commits_logged > built.commits_logged:
                # The ledger is damaged. Where it is of an older commit, so is everything else.
                more = behind.commits_logged - built.commits_logged
                again = min(number + more, mark.commit_number)
            if again > number:
                report.findings, report.totals = retry.findings, retry.totals
                report.lost, report.paths = retry.lost, retry.paths
            else:
                self._build(path, into, scratch, StoreReport(), mark, is_lenient=False)
            self._report_missing_commits(report, number, again, mark.commit_number)
        if report.is_healthy and report.can_repair:
            self._check_as_broker(path, scratch, report)
        if into is not None and report.can_repair:
            self._report_progress("checking the new store", 0)
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
        """Salvage the rows into a draft."""
        target = scratch / "draft.db" if into is None else into
        target.unlink(missing_ok=True)
        with Draft(target, has_bodies=into is not None) as draft:
            with PageFile(path, is_lenient=is_lenient) as pages:
                salvage = Salvage(
                    pages, draft, lambda count: self._report_progress("reading pages", count)
                )
                found = salvage.run()
                self._check_header(pages, found, report)
                self._report_unreadable_places(path, pages, report)
                commits_logged = pages.log.commit_count
            if not report.can_repair:
                target.unlink()
                return _Built(None, None, commits_logged)
            ledger = draft.execute("SELECT commit_number, store_id FROM ledger LIMIT 1")
            self._report_progress("checking references", 0)
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
                self._report_progress("writing the new store", 0)
                draft.finish(check.commit_number, check.queue_id_last)
        if into is None:
            target.unlink()
        number, store_id = ledger[0] if ledger else (None, None)
        return _Built(number, store_id, commits_logged)

    # -- the files ------------------------------------------------------------------------

    def _check_mark(self, path: Path, report: StoreReport) -> MarkRecord | None:
        mark_path = beside(path, ".mark")
        try:
            size = mark_path.stat().st_size
            mark = read_mark(mark_path)
        except FileNotFoundError:
            return None
        except OSError:
            report.findings.append(_unreadable(mark_path.name, 1, "It is written again."))
            return None
        if mark is None and size >= SLOT_BYTES:
            report.findings.append(
                Finding(
                    kind=FindingKind.MARK_DAMAGED,
                    severity=Severity.WARNING,
                    sentence=f"Neither record of {mark_path.name!r} can be read, so it is unknown "
                    "whether the last commits are complete.",
                    repair="It is written again.",
                )
            )
        return mark

    def _report_unreadable_places(self, path: Path, pages: PageFile, report: StoreReport) -> None:
        """Report what the disk could not read, even if nothing seems to be missing: the content
        is unknown."""
        repair = "Everything else is kept. Replace this disk."
        for name, places in ((path.name, pages.places), (f"{path.name}-wal", pages.log.places)):
            if places.unreadable:
                report.findings.append(_unreadable(name, len(places.unreadable), repair))

    def _check_header(self, pages: PageFile, found: Found, report: StoreReport) -> None:
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
                    repair="None. It contains no messages of twinbus.",
                )
            )
        elif version not in schema.VERSIONS and found.has_other_tables:
            report.can_repair = False
            report.findings.append(
                Finding(
                    kind=FindingKind.VERSION_NEWER,
                    sentence=f"The store has format {version}; this version of twinbus reads "
                    f"format {schema.FORMAT_VERSION}.",
                    repair="None. Examine it with the twinbus version that wrote it.",
                )
            )
        elif version not in schema.VERSIONS or application_id != schema.APPLICATION_ID:
            self._add_once(
                report, FindingKind.HEADER_DAMAGED, "The header of the database is damaged."
            )

    def _add_once(self, report: StoreReport, kind: FindingKind, sentence: str) -> None:
        if all(finding.kind is not kind for finding in report.findings):
            repair = "It is written again; the tables are identified by their rows."
            report.findings.append(Finding(kind=kind, sentence=sentence, repair=repair))

    def _report_missing_commits(
        self, report: StoreReport, there: int, found: int, acknowledged: int
    ) -> None:
        if found > there:
            report.findings.append(
                Finding(
                    kind=FindingKind.LOG_DAMAGED,
                    sentence=f"The log is damaged after commit {there:,}; commits up to {found:,} "
                    "can be read after the damage.",
                    repair="These commits are kept, without the rows of the damaged pages.",
                )
            )
        if found < acknowledged:
            report.findings.append(
                Finding(
                    kind=FindingKind.COMMITS_MISSING,
                    sentence=f"Commits {found + 1:,} to {acknowledged:,} were acknowledged and are "
                    "missing (an older copy of the files, or a damaged log).",
                    repair="Everything up to the last readable commit is kept. Messages settled in "
                    "the missing commits are repeated, messages sent in them are lost.",
                )
            )

    # -- the broker's own check -----------------------------------------------------------

    def _check_as_broker(self, path: Path, scratch: Path, report: StoreReport) -> None:
        """Open a copy as the broker would: only this also checks the indexes."""
        self._report_progress("checking as the broker does", 0)
        copy = scratch / path.name
        for suffix in FILE_SUFFIXES:
            if beside(path, suffix).exists():
                shutil.copyfile(beside(path, suffix), beside(copy, suffix))
        try:
            _verify(copy, self.build_entities)
        except Exception as error:
            # Whatever the error is, a broker would not start. Its text may contain anything.
            is_ours = isinstance(error, StoreCorrupt | StoreVersionMismatch | StoreFailed)
            detail = getattr(error, "detail", str(error)) if is_ours else type(error).__name__
            report.findings.append(
                Finding(
                    kind=FindingKind.REFUSED_BY_BROKER,
                    sentence=f"The broker refuses the store: {detail}.",
                    repair="The rows are written again, with new indexes and a new mark.",
                    queue_id=getattr(error, "queue_id", None),
                    first_seq=getattr(error, "first_seq", None),
                    last_seq=getattr(error, "last_seq", None),
                )
            )

    def _report_progress(self, what: str, count: int) -> None:
        if self.progress is not None:
            self.progress(what, count)


def _unreadable(name: str, count: int, repair: str) -> Finding:
    return Finding(
        kind=FindingKind.FILE_UNREADABLE,
        sentence=f"The disk cannot read {counted(count, 'place')} of {name!r}.",
        repair=repair,
    )


def _verify(path: Path, build_entities: Callable[[Recovered], object] | None) -> None:
    """Open a store as a broker does, read every row, and close it."""
    store = SqliteStore(path)
    try:
        recovered = store.open()
        store.verify_all()
        if build_entities is not None:
            build_entities(recovered)
    finally:
        store.close()
