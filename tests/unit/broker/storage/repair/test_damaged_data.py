"""M15: every store that we wrote can be opened or repaired, whatever the disk did to its files.

Each case damages the files of a data directory that a real broker wrote. The doctor says what is
wrong, the repaired directory is served by a real broker, and what that finds is compared with what
was there before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import apsw
import pytest

from tests.unit.broker.storage.repair.real_data import STORE, contents
from twinbus.broker.data_repair import DataReport, examine_data
from twinbus.broker.storage import schema
from twinbus.broker.storage.repair.findings import FindingKind
from twinbus.broker.storage.repair.page_file import PageFile, TreeReader
from twinbus.broker.storage.store_files import MarkRecord, encode
from twinbus.errors import ConfigurationError, StoreLocked

Contents = dict[str, list[tuple[int, int, bytes]]]
PAGE = schema.PAGE_BYTES


def fingerprint(data: Path) -> dict[str, tuple[str, int, int]]:
    """Hash, size and time of change of everything below a directory."""
    found = {}
    for path in sorted([data, *data.rglob("*")]):
        status = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (digest, status.st_size, status.st_mtime_ns)
    return found


def kinds(report: DataReport) -> set[FindingKind]:
    return {finding.kind for finding in report.all_findings()}


def repair(data: Path) -> DataReport:
    """Repair, and prove that the directory itself was not touched and its copy is healthy."""
    was = fingerprint(data)
    report = examine_data(data, data.with_name("new"))
    assert fingerprint(data) == was
    assert report.repaired == data.with_name("new")
    again = examine_data(report.repaired)
    assert again.is_healthy, again.all_findings()
    assert again.totals.found == report.totals.found
    return report


async def compare(report: DataReport, before: Contents) -> Contents:
    """What is missing from the repaired directory; nothing else may differ."""
    assert report.repaired is not None
    after = await contents(report.repaired)
    missing: Contents = {}
    for path, messages in before.items():
        kept = {(seq, text) for seq, _count, text in after[path]}
        there = {(seq, text) for seq, _count, text in messages}
        assert kept <= there, f"{path} has messages that were not there before"
        missing[path] = [each for each in messages if (each[0], each[2]) not in kept]
    return missing


def nothing_is_missing(missing: Contents) -> bool:
    return not any(missing.values())


def leaf_pages(store: Path, table: str) -> list[int]:
    with PageFile(store) as pages:
        connection = apsw.Connection(str(store), apsw.SQLITE_OPEN_READONLY)
        sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        root = connection.execute(sql, (table,)).get
        connection.close()
        return [number for number, _page in TreeReader(pages).leaves(table, root)]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def destroy_page(store: Path, number: int) -> None:
    overwrite(store, (number - 1) * PAGE, Random(number).randbytes(PAGE))


async def test_a_healthy_directory_is_healthy_and_its_repair_is_a_copy(
    closed: Path, before: Contents
) -> None:
    """M15: order, sequence numbers and delivery counts are kept, and so is the original."""
    report = repair(closed)
    assert report.is_healthy and report.all_findings() == []
    assert (report.totals.lost, report.totals.repeated) == (0, 0)
    assert report.repaired is not None
    assert await contents(report.repaired) == before


async def test_a_killed_broker_leaves_a_healthy_directory(killed: Path, before: Contents) -> None:
    """M15: what is in the log only is part of the store."""
    assert (killed / STORE).with_name("store.db-wal").stat().st_size > PAGE
    report = repair(killed)
    assert report.all_findings() == []
    assert nothing_is_missing(await compare(report, before))


class Case(NamedTuple):
    """A way to damage files that loses no message."""

    kind: FindingKind
    damage: Callable[[Path], None]


def _zero_head(store: Path) -> None:
    overwrite(store, 0, bytes(100))


def _first_page(store: Path) -> None:
    overwrite(store, 0, b"\x55" * PAGE)


def _foreign_mark(store: Path) -> None:
    store.with_name("store.db.mark").write_bytes(encode(MarkRecord(1, b"0123456789abcdef")))


def _application_id(store: Path) -> None:
    overwrite(store, 68, b"\x00\x00\x00\x07")


def _version(store: Path) -> None:
    overwrite(store, 60, b"\x00\x00\x01\x02")


def _execute(sql: str) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        connection = apsw.Connection(str(store))
        connection.execute(sql)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.close()

    return damage


def _first_leaf(table: str) -> Callable[[Path], None]:
    return lambda store: destroy_page(store, leaf_pages(store, table)[0])


def _page_type(table: str) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        overwrite(store, (leaf_pages(store, table)[0] - 1) * PAGE, b"\x00")

    return damage


def _index_page(store: Path) -> None:
    connection = apsw.Connection(str(store), apsw.SQLITE_OPEN_READONLY)
    root = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'session_chunk_by_name'"
    ).get
    connection.close()
    destroy_page(store, root)


HARMLESS: dict[str, Case] = {
    "the header is zeros": Case(FindingKind.HEADER_DAMAGED, _zero_head),
    "the first page is lost": Case(FindingKind.SCHEMA_DAMAGED, _first_page),
    "another program's number": Case(FindingKind.HEADER_DAMAGED, _application_id),
    "a version that never was": Case(FindingKind.HEADER_DAMAGED, _version),
    "the mark of another store": Case(FindingKind.MARK_FOREIGN, _foreign_mark),
    "an index is lost": Case(FindingKind.REFUSED_BY_BROKER, _index_page),
    "the counters are lost": Case(FindingKind.PAGE_DAMAGED, _first_leaf("counters")),
    "the ledger is lost": Case(FindingKind.LEDGER_DAMAGED, _first_leaf("ledger")),
    "the sessions are lost": Case(FindingKind.SESSION_MISSING, _first_leaf("session_chunk")),
    "the ids that were seen are lost": Case(FindingKind.PAGE_DAMAGED, _first_leaf("seen")),
    "a page of chunks has no kind": Case(FindingKind.PAGE_DAMAGED, _page_type("chunk")),
    "the page of entities has no kind": Case(FindingKind.PAGE_DAMAGED, _page_type("entity")),
    "a counter is too high": Case(
        FindingKind.ROW_DAMAGED, _execute("UPDATE counters SET message_count = 99")
    ),
    "an entity without its checksum": Case(
        FindingKind.ENTITY_UNREADABLE, _execute("UPDATE entity SET crc = 1 WHERE path = 'orders'")
    ),
    "an expiry of a chunk that is not there": Case(
        FindingKind.ROW_DAMAGED, _execute("INSERT INTO expiry VALUES ((1 << 40) + 77, 5, 5)")
    ),
    "a tombstone without its checksum": Case(
        FindingKind.ROW_DAMAGED, _execute("INSERT INTO tombstone VALUES (7, 9, 5)")
    ),
    "all selections are lost": Case(FindingKind.PAGE_DAMAGED, _first_leaf("share")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
async def test_damage_beside_the_messages_loses_none(
    name: str, closed: Path, before: Contents
) -> None:
    """M15: everything but the rows of damaged pages comes through."""
    case = HARMLESS[name]
    case.damage(closed / STORE)
    seen = examine_data(closed)
    assert case.kind in kinds(seen), seen.all_findings()
    assert not seen.is_healthy
    report = repair(closed)
    assert kinds(report) == kinds(seen)
    assert nothing_is_missing(await compare(report, before))
    assert report.totals.lost == 0


async def test_lost_entities_are_found_by_their_messages(closed: Path) -> None:
    """M15: with the whole page of entities lost, every message is in a queue of its own."""
    total = examine_data(closed).totals.found
    _first_leaf("entity")(closed / STORE)
    report = repair(closed)
    assert FindingKind.ENTITY_MISSING in kinds(report)
    assert (report.totals.found, report.totals.lost) == (total, 0)
    paths = set(report.namespaces[0].store.paths.values())
    assert {path for path in paths if "/" not in path} == {
        path for path in paths if path.startswith("recovered-") and "/" not in path
    }


async def test_sequence_numbers_go_on_far_above_when_the_counters_are_lost(closed: Path) -> None:
    """M15: a number that may have been given out is never given out again."""
    _first_leaf("counters")(closed / STORE)
    report = repair(closed)
    assert FindingKind.COUNTERS_MISSING in kinds(report)
    connection = apsw.Connection(str(closed.with_name("new") / STORE))
    lowest = connection.execute("SELECT MIN(next_seq) FROM counters").get
    connection.close()
    assert lowest > 1_000_000


@pytest.mark.parametrize("table", ["chunk", "sheet", "scheduled"])
async def test_only_the_rows_of_a_lost_page_are_lost(
    table: str, closed: Path, before: Contents
) -> None:
    """M15: and their sequence numbers are said."""
    store = closed / STORE
    connection = apsw.Connection(str(store), apsw.SQLITE_OPEN_READONLY)
    count = connection.execute(f"SELECT COUNT(*) FROM {table}").get
    connection.close()
    page = leaf_pages(store, table)[-1]
    with PageFile(store) as pages:
        on_page = len(TreeReader(pages).read_leaf(page, pages.page(page))[0])
    assert 0 < on_page <= count
    destroy_page(store, page)
    report = repair(closed)
    missing = await compare(report, before)
    lost = sum(map(len, missing.values()))
    assert 0 < lost == report.totals.lost
    said = list(report.namespaces[0].lost())
    for path, messages in missing.items():
        for seq, _count, _body in messages:
            assert any(
                entity == path and one.first_seq <= seq <= one.last_seq for entity, one in said
            ), (path, seq, said)


async def test_a_damaged_body_loses_its_chunk_alone(closed: Path, before: Contents) -> None:
    """M15: one flipped bit in a large body, found by the checksum of its row."""
    store = closed / STORE
    at = store.read_bytes().index(b"000035" + bytes([35]) * 2_000) + 1_000
    overwrite(store, at, b"\xff")
    report = repair(closed)
    assert FindingKind.ROW_DAMAGED in kinds(report)
    missing = await compare(report, before)
    lost = missing.pop("orders")
    assert nothing_is_missing(missing)
    assert [body[:6] for _seq, _count, body in lost] == [b"%06d" % n for n in range(30, 40)]
    assert report.totals.lost == 10


async def test_a_log_that_is_damaged_in_the_middle_is_read_behind_it(
    killed: Path, before: Contents
) -> None:
    """M15: SQLite forgets every commit behind a damaged frame; here only its rows are."""
    log = (killed / STORE).with_name("store.db-wal")
    frames = (log.stat().st_size - 32) // (24 + PAGE)
    overwrite(log, 32 + (frames // 2) * (24 + PAGE) + 24 + PAGE - 200, b"\xff" * 64)
    report = repair(killed)
    assert FindingKind.LOG_DAMAGED in kinds(report)
    assert FindingKind.COMMITS_MISSING not in kinds(report)
    missing = await compare(report, before)
    assert sum(map(len, missing.values())) <= 16, "no more than a chunk or a shared body"


async def test_a_lost_log_is_said_and_what_the_database_has_is_kept(killed: Path) -> None:
    """M15: the mark remembers what was acknowledged."""
    (killed / STORE).with_name("store.db-wal").unlink()
    report = repair(killed)
    assert FindingKind.COMMITS_MISSING in kinds(report)


async def test_a_database_that_was_cut_short_keeps_its_first_part(closed: Path) -> None:
    """M15: half of the pages are better than none."""
    store = closed / STORE
    total = examine_data(closed).totals.found
    with store.open("r+b") as file:
        file.truncate(store.stat().st_size // 2 // PAGE * PAGE)
    report = repair(closed)
    assert not report.is_healthy
    assert 0 < report.totals.found < total


@pytest.mark.parametrize("left", [b"", b"x", None])
async def test_a_database_that_is_gone_is_said(closed: Path, left: bytes | None) -> None:
    """M15: an empty or missing database is no empty store."""
    store = closed / STORE
    if left is None:
        store.unlink()
    else:
        store.write_bytes(left)
    report = repair(closed)
    expected = {
        b"": FindingKind.DATABASE_EMPTY,
        b"x": FindingKind.HEADER_DAMAGED,
        None: FindingKind.DATABASE_MISSING,
    }
    assert expected[left] in kinds(report)
    assert report.totals.found == 0


async def test_a_newer_format_is_left_to_who_wrote_it(closed: Path) -> None:
    """M15: rows of a format that is not known are not taken for damage."""
    _execute("CREATE TABLE future (id INTEGER PRIMARY KEY)")(closed / STORE)
    _execute("PRAGMA user_version = 3")(closed / STORE)
    was = fingerprint(closed)
    report = examine_data(closed, closed.with_name("new"))
    assert kinds(report) >= {FindingKind.VERSION_NEWER}
    assert report.repaired is None and not closed.with_name("new").exists()
    assert fingerprint(closed) == was


async def test_another_programs_database_is_left_alone(closed: Path) -> None:
    """M15: nothing of ours is in it."""
    store = closed / STORE
    for path in store.parent.iterdir():
        path.unlink()
    connection = apsw.Connection(str(store))
    connection.execute("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    connection.close()
    report = examine_data(closed, closed.with_name("new"))
    assert kinds(report) == {FindingKind.FOREIGN_DATABASE}
    assert report.repaired is None


async def test_keys_and_certificates_come_along(closed: Path) -> None:
    """M15: clients of the repaired broker notice nothing."""
    (closed / "tls").mkdir(exist_ok=True)
    (closed / "tls" / "authority.pem").write_bytes(b"the authority")
    _zero_head(closed / STORE)
    report = repair(closed)
    new = closed.with_name("new")
    assert (new / "keys.json").read_bytes() == (closed / "keys.json").read_bytes()
    assert (new / "tls" / "authority.pem").read_bytes() == b"the authority"
    assert (new / "keys.json").stat().st_mode & 0o777 == 0o600
    assert new.stat().st_mode & 0o777 == 0o700
    assert report.findings == []


async def test_a_key_file_that_cannot_be_read_is_left_out(closed: Path) -> None:
    """M15: the broker starts with new keys, and that is said."""
    (closed / "keys.json").write_bytes(b'{"namespaces": {"shop": [')
    report = repair(closed)
    assert kinds(report) == {FindingKind.KEYS_UNREADABLE}
    assert not (closed.with_name("new") / "keys.json").exists()
    assert report.repaired is not None
    assert await contents(report.repaired)


async def test_a_key_file_that_others_can_read_is_closed_in_the_copy(closed: Path) -> None:
    """M15: such a file stops the broker."""
    (closed / "keys.json").chmod(0o644)
    report = repair(closed)
    assert kinds(report) == {FindingKind.KEYS_EXPOSED}
    assert (closed.with_name("new") / "keys.json").stat().st_mode & 0o777 == 0o600


async def test_one_namespace_can_be_examined_alone(closed: Path, before: Contents) -> None:
    """M15: what is written is the directory of a namespace too."""
    _zero_head(closed / STORE)
    report = examine_data(closed / STORE.parent, closed / "of-one")
    assert [each.name for each in report.namespaces] == ["shop"]
    assert (closed / "of-one" / "store.db").exists()


async def test_a_directory_that_is_served_is_refused(closed: Path) -> None:
    """M15: nothing is said about files that change meanwhile."""
    from twinbus.broker.storage.data_directory import DataDirectory

    with DataDirectory(closed):
        for path in (closed, closed / STORE.parent):
            with pytest.raises(StoreLocked):
                examine_data(path)
    assert examine_data(closed).is_healthy


async def test_the_new_directory_must_be_new_and_elsewhere(closed: Path, tmp_path: Path) -> None:
    """M15: neither the original nor anything else is overwritten."""
    (tmp_path / "there").mkdir()
    for into in (tmp_path / "there", closed / "inside", closed):
        with pytest.raises(ConfigurationError):
            examine_data(closed, into)
    with pytest.raises(ConfigurationError):
        examine_data(tmp_path / "there")
    with pytest.raises(ConfigurationError):
        examine_data(tmp_path / "nowhere")
