"""M15: a place that the disk cannot read is a finding, and the rest is repaired.

The disk is not ours to break: reading it is refused here, with the error of a broken one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.broker.storage.repair.real_data import STORE
from twinbus.broker.data_repair import DataReport, examine_data
from twinbus.broker.storage import schema
from twinbus.broker.storage.repair.findings import FindingKind, Severity

PAGE = schema.PAGE_BYTES
FRAME = 24 + PAGE
Break = Callable[[Path, int, int], None]


@pytest.fixture
def break_place(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Makes a file unreadable between two places."""
    pread, read = os.pread, os.read
    broken: dict[int, tuple[int, int]] = {}

    def check(file: int, first: int, count: int) -> None:
        begins, ends = broken.get(os.fstat(file).st_ino, (0, 0))
        if first < ends and first + count > begins:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def refuse_pread(file: int, count: int, at: int) -> bytes:
        check(file, at, count)
        return pread(file, count, at)

    def refuse_read(file: int, count: int) -> bytes:
        if broken:
            check(file, 0, 1 << 40)
        return read(file, count)

    monkeypatch.setattr(os, "pread", refuse_pread)
    monkeypatch.setattr(os, "read", refuse_read)

    def add(path: Path, begins: int, ends: int) -> None:
        broken[path.stat().st_ino] = begins, ends

    return add


def repaired(data: Path) -> DataReport:
    """Repair; a diagnosis alone finds the places, too, and the new directory is healthy."""
    seen = examine_data(data)
    assert FindingKind.FILE_UNREADABLE in {each.kind for each in seen.all_findings()}
    report = examine_data(data, data.with_name("new"))
    assert FindingKind.FILE_UNREADABLE in {each.kind for each in report.all_findings()}
    assert not seen.is_healthy and not report.is_healthy
    assert examine_data(data.with_name("new")).is_healthy
    return report


@pytest.mark.parametrize(("first", "last"), [(0, 100), (0, 1), (0, PAGE), (1, 2)])
def test_the_head_of_the_database(first: int, last: int, closed: Path, break_place: Break) -> None:
    """M15: the size of a page is found by those that can be read."""
    total = examine_data(closed).totals.found
    break_place(closed / STORE, first, last)
    report = repaired(closed)
    assert (report.totals.found, report.totals.lost) == (total, 0)


def test_the_head_and_a_page_behind_it(closed: Path, break_place: Break) -> None:
    """M15: while the size of a page is looked for, some cannot be read."""
    total = examine_data(closed).totals.found
    break_place(closed / STORE, 0, 2 * PAGE)
    assert repaired(closed).totals.found == total


def test_the_head_of_the_log(killed: Path, break_place: Break) -> None:
    """M15: the frames say what it said."""
    total = examine_data(killed).totals.found
    break_place((killed / STORE).with_name("store.db-wal"), 0, 32)
    assert repaired(killed).totals.found == total


def test_a_frame_in_the_middle_of_the_log(killed: Path, break_place: Break) -> None:
    """M15: those behind it are read."""
    log = (killed / STORE).with_name("store.db-wal")
    total = examine_data(killed).totals.found
    frames = (log.stat().st_size - 32) // FRAME
    at = 32 + frames // 2 * FRAME
    break_place(log, at + 100, at + 200)
    report = repaired(killed)
    assert report.totals.found + report.totals.lost >= total
    assert report.totals.lost <= 16


def test_the_mark(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M15: it is not known whether the last commits are there."""
    total = examine_data(closed).totals.found
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == (closed / STORE).with_name("store.db.mark"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert repaired(closed).totals.found == total


def test_files_beside_the_store_do_not_cost_the_repair(closed: Path, break_place: Break) -> None:
    """M15: what cannot be copied is named, and everything else is there."""
    (closed / "records").mkdir()
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        (closed / "records" / name).write_bytes(name.encode())
    (closed / "records" / "b.jsonl").chmod(0o640)
    (closed / "records" / "link").symlink_to("a.jsonl")
    (closed / "linked").symlink_to("records")
    os.mkfifo(closed / "pipe")
    break_place(closed / "records" / "a.jsonl", 0, 10)
    report = examine_data(closed, closed.with_name("new"))
    new = closed.with_name("new") / "records"
    assert report.repaired is not None
    assert sorted(path.name for path in new.iterdir()) == ["b.jsonl", "c.jsonl"]
    assert (new / "b.jsonl").read_bytes() == b"b.jsonl"
    assert (new / "b.jsonl").stat().st_mode & 0o777 == 0o640
    assert not (new.parent / "linked").exists() and not (new.parent / "pipe").exists()
    said = {
        finding.sentence.split("'")[1]: finding.severity
        for finding in report.all_findings()
        if finding.kind is FindingKind.FILE_UNREADABLE
    }
    assert said == {
        "records/a.jsonl": Severity.ERROR,
        "records/link": Severity.WARNING,
        "linked": Severity.WARNING,
        "pipe": Severity.WARNING,
    }
