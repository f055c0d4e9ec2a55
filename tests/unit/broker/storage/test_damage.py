"""A damaged store is reported and refused, never skipped and never shortened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import apsw
import pytest

from tests.unit.broker.storage.files import as_killed, fingerprint, flip_bit
from twinbus.broker.storage import schema, sqlite_writer
from twinbus.broker.storage.interface import (
    DeleteEntity,
    PutMeta,
    PutScheduled,
    PutSeen,
    PutSessionState,
    PutState,
    SeenRow,
    Tombstone,
)
from twinbus.broker.storage.sqlite_connection import require_sqlite_version
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import (
    ConfigurationError,
    StoreCorrupt,
    StoreVersionMismatch,
)
from verification.crash_consistency.builders import (
    all_chunks,
    chunk,
    counters,
    entity,
    in_session,
    share_of,
    sheet_of,
)
from verification.crash_consistency.rot import flip, image
from verification.crash_consistency.stories import make_it_of_the_first_format
from verification.crash_consistency.workload import content

BODY = b"a body that can be found in the file"


@pytest.fixture
def closed_store(store_path: Path) -> Path:
    """A store with some of everything, closed, in one file."""
    store = SqliteStore(store_path)
    store.open()
    store.commit([entity(), chunk(1, expires_ms=77), chunk(11, blob=BODY * 2000), chunk(21)])
    store.commit([Tombstone(1, 2, 4), PutState(1, 5, 3, True), PutScheduled(1, 31, 9, b"later")])
    store.commit([counters(32, 27, deferred=1, scheduled=1)])
    store.close()
    return store_path


def execute(path: Path, sql: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()


def test_a_flipped_bit_in_a_message_is_reported_with_its_place(closed_store: Path) -> None:
    """M8: a damaged message is never served and never left out."""
    # Given a store with one bit flipped in the middle of a body
    flip_bit(closed_store, closed_store.read_bytes().index(BODY, 40_000))
    store = SqliteStore(closed_store)
    store.open()

    # When the queue is loaded, again and again
    for _ in range(2):
        with pytest.raises(StoreCorrupt) as caught:
            all_chunks(store)

        # Then the error names the queue and the sequence numbers
        error = caught.value
        assert (error.queue_id, error.first_seq, error.last_seq) == (1, 11, 20)
    with pytest.raises(StoreCorrupt):
        store.verify_all()
    store.close()


def test_a_row_that_claims_to_be_huge_is_damage_and_no_failure_of_the_disk(
    store_path: Path,
) -> None:
    """M8: whoever reads "check the disk, then start again" would start again for ever."""
    store = SqliteStore(store_path)
    store.open()
    body = BODY * 6
    store.commit([entity(), PutScheduled(1, 1, 9, body), counters(2, 0, scheduled=1)])
    store.close()
    content = bytearray(store_path.read_bytes())
    body_at = content.index(body)
    page_at = body_at // schema.PAGE_BYTES * schema.PAGE_BYTES
    pointer = slice(page_at + 8, page_at + 10)  # A leaf's head has eight bytes.
    cell_at = page_at + int.from_bytes(content[pointer])

    # Given that its page looks for it where a row of 4 GB stands, with a due time of 2 GB
    length, id_, head = 2, 6, 6  # Bytes: those of the row's id follow its length.
    kept = content[cell_at + length : cell_at + length + id_]
    others = content[cell_at + length + id_ + 3 : cell_at + length + id_ + head]
    row = b"\x8f\xd9\xcb\xe0\x23" + kept + b"\x0a\x00\x90\x80\x80\x80\x00" + others
    content[body_at : body_at + len(row)] = row
    content[pointer] = (body_at - page_at).to_bytes(2)
    store_path.write_bytes(content)

    # Then it is refused as damaged
    with pytest.raises(StoreCorrupt):
        SqliteStore(store_path).open()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE scheduled SET due_ms = due_ms + 1",
        "UPDATE chunk SET enqueued_ms = enqueued_ms + 1 WHERE id & 0xff = 1",
        "UPDATE expiry SET expires_ms = expires_ms - 1",
        "UPDATE state SET delivery_count = delivery_count + 1",
        "UPDATE chunk SET id = id + 5 WHERE id & 0xff = 21",
    ],
)
def test_a_changed_number_is_found_when_it_is_read(closed_store: Path, sql: str) -> None:
    execute(closed_store, sql)
    store = SqliteStore(closed_store)

    with pytest.raises(StoreCorrupt):  # noqa: PT012 - some are found on opening already
        store.open()
        all_chunks(store)
        store.load_scheduled(1, 0, 10)
    store.close()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM chunk WHERE id & 0xff = 21", "27 messages"),
        ("DELETE FROM tombstone", "27 messages"),
        ("DELETE FROM scheduled", "1 scheduled"),
        ("DELETE FROM state", "1 deferred"),
        ("DELETE FROM counters", "0 messages"),
        ("DELETE FROM entity", "entities and counters"),
        ("DELETE FROM entity; DELETE FROM counters", "queue id"),
        ("DELETE FROM ledger", "'ledger' has 0 rows"),
        ("UPDATE counters SET next_seq = 1", "checksum"),
        ("UPDATE entity SET path = 'other'", "checksum"),
        ("UPDATE tombstone SET last_id = last_id + 1", "checksum"),
        ("UPDATE chunk SET count = 11 WHERE id & 0xff = 1", "overlap"),
        ("DROP INDEX scheduled_by_time", "tables"),
        ("CREATE TABLE another (x)", "tables"),
    ],
)
def test_books_that_do_not_balance_are_refused(closed_store: Path, sql: str, said: str) -> None:
    """M8: rows that vanish or change are noticed when the store is opened."""
    # Given a store that somebody has changed
    execute(closed_store, sql)
    before = fingerprint(closed_store.parent)

    # When it is opened, it is refused and stays as it was
    store = SqliteStore(closed_store)
    with pytest.raises(StoreCorrupt, match=said):
        store.open()
    after = fingerprint(closed_store.parent)
    assert after[closed_store.name] == before[closed_store.name]


def test_a_sequence_number_in_use_is_never_given_again(store_path: Path) -> None:
    """M8: a store whose next sequence number is taken is refused."""
    # Given counters that would hand out number 11 again
    store = SqliteStore(store_path)
    store.open()
    store.commit([entity(), chunk(1), chunk(11), counters(11, 20)])
    store.close()

    with pytest.raises(StoreCorrupt, match="next sequence number"):
        SqliteStore(store_path).open()


def damage_last_frame(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    flip_bit(log, log.stat().st_size - 100)


def cut_log(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    log.write_bytes(log.read_bytes()[:-5_000])


def remove_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


@pytest.mark.parametrize("damage", [damage_last_frame, cut_log, remove_log])
def test_a_log_that_lost_acknowledged_commits_is_refused(
    sqlite_store: SqliteStore, store_path: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """M8: SQLite drops a damaged tail of its log in silence; the mark remembers it."""
    # Given a killed broker whose log was damaged afterwards
    sqlite_store.commit([chunk(1), counters(11, 10)])
    sqlite_store.commit([chunk(11), counters(21, 20)])
    killed = as_killed(store_path, tmp_path / "killed")
    damage(killed)
    before = fingerprint(killed.parent)

    # When it is opened, then it is refused with the commits that are missing
    with pytest.raises(StoreCorrupt, match=r"commits \d+ to 3 "):
        SqliteStore(killed).open()

    # And what is left of the log stays for those who want to repair it
    after = fingerprint(killed.parent)
    assert all(after[name] == digest for name, digest in before.items())


def test_a_killed_store_opens_with_everything(
    sqlite_store: SqliteStore, store_path: Path, tmp_path: Path
) -> None:
    """M8: what was acknowledged survives the process."""
    # Given a killed broker
    sqlite_store.commit([chunk(1), counters(11, 10)])
    killed = as_killed(store_path, tmp_path / "killed")

    # When it starts again
    store = SqliteStore(killed)
    recovered = store.open()

    # Then the message and the sequence numbers are there, and work goes on
    assert recovered.counters[1].next_seq == 11
    store.commit([chunk(11), counters(21, 20)])
    assert len(all_chunks(store)) == 2
    store.close()


def test_a_missing_database_is_not_replaced_by_an_empty_one(closed_store: Path) -> None:
    """M8: losing the whole file is losing messages."""
    closed_store.unlink()

    with pytest.raises(StoreCorrupt, match=r"store\.db\.mark"):
        SqliteStore(closed_store).open()
    assert not closed_store.exists()


def test_an_unreadable_mark_says_nothing(closed_store: Path) -> None:
    mark = closed_store.with_name("store.db.mark")
    for damaged in (b"", b"x", bytes(128), mark.read_bytes()[:64] + b"x" * 64):
        mark.write_bytes(damaged)
        store = SqliteStore(closed_store)
        store.open()
        store.close()


def test_the_mark_of_another_store_is_refused(closed_store: Path, tmp_path: Path) -> None:
    other = SqliteStore(tmp_path / "other.db")
    other.open()
    other.close()
    (tmp_path / "other.db.mark").replace(closed_store.with_name("store.db.mark"))

    with pytest.raises(StoreCorrupt, match="another store"):
        SqliteStore(closed_store).open()


def test_a_store_of_the_first_format_is_taken_over_as_it_is(closed_store: Path) -> None:
    """M8: opened, made ours in one transaction, and opened again."""
    # Given a store as the first version wrote it
    before = recovered_content(closed_store)
    make_it_of_the_first_format(closed_store)

    # When it is opened, then everything in it is there, and it remembers ids from now on
    assert recovered_content(closed_store) == before
    store = SqliteStore(closed_store)
    store.open()
    store.commit([PutSeen(SeenRow(1, 1, 5, bytes(16)))])
    store.close()
    assert SqliteStore(closed_store).open().seen == {1: [SeenRow(1, 1, 5, bytes(16))]}


def test_a_damaged_store_of_the_first_format_is_refused_and_stays_one(closed_store: Path) -> None:
    """M8: nothing is written into a store that is refused."""
    make_it_of_the_first_format(closed_store)
    execute(closed_store, "DELETE FROM chunk")
    before = fingerprint(closed_store.parent)

    with pytest.raises(StoreCorrupt):
        SqliteStore(closed_store).open()
    assert before.items() <= fingerprint(closed_store.parent).items()


def test_damaged_ids_are_reported(closed_store: Path) -> None:
    """M8: an id that reads as another would let a duplicate in."""
    store = SqliteStore(closed_store)
    store.open()
    store.commit([PutSeen(SeenRow(1, 1, 5, bytes(16)))])
    store.close()
    execute(closed_store, "UPDATE seen SET at_ms = 6")

    with pytest.raises(StoreCorrupt, match="ids"):
        SqliteStore(closed_store).open()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("UPDATE session_chunk SET session = 'b' WHERE id & 0xff = 1", "session"),
        ("DELETE FROM session_chunk WHERE id & 0xff = 11", "has no session"),
        ("INSERT INTO session_chunk VALUES ((1 << 40) | 99, 'a', 0)", "does not exist"),
    ],
)
def test_damaged_sessions_are_reported(store_path: Path, sql: str, said: str) -> None:
    """M3, M8: a chunk that changes its session would be handed to somebody else."""
    store = SqliteStore(store_path)
    store.open()
    store.commit([entity(), *in_session("a", 1), *in_session("b", 11), counters(21, 20)])
    store.close()
    execute(store_path, sql)

    with pytest.raises(StoreCorrupt, match=said):
        SqliteStore(store_path).open()


def test_a_damaged_session_state_is_reported(store_path: Path) -> None:
    """M3, M8."""
    store = SqliteStore(store_path)
    store.open()
    store.commit([entity(), PutSessionState(1, "a", b"good", 5)])
    store.close()
    execute(store_path, "UPDATE session_state SET blob = x'626164'")

    store = SqliteStore(store_path)
    store.open()
    with pytest.raises(StoreCorrupt, match="state of a session"):
        store.load_session_state(1, "a")
    with pytest.raises(StoreCorrupt, match="state of a session"):
        store.verify_all()
    store.close()


def recovered_content(path: Path) -> object:
    store = SqliteStore(path)
    found = content(store, store.open())
    store.close()
    return found


def some_of_everything(path: Path) -> None:
    """A closed store in which every table and every index has rows on one page."""
    records = [b"x" * 300, b"y" * 300]
    sheet = sheet_of(*records)
    shared = [share_of(sheet, records, (0, 1), queue_id=queue_id) for queue_id in (1, 2)]
    ops = [entity(), entity(2, "other"), *shared, entity(3, "sessions")]
    ops += [replace(put, row=replace(put.row, queue_id=3)) for put in in_session("a", 1)]
    ops += [chunk(21, expires_ms=77), Tombstone(1, 22, 23), PutState(1, 24, 3, False)]
    ops += [PutState(1, 25, 1, True), PutScheduled(1, 31, 9, b"later")]
    ops += [PutSeen(SeenRow(1, 1, 5, bytes(16))), PutSessionState(3, "a", b"note", 5)]
    ops += [PutMeta("key", 1), counters(32, 8 + 2, deferred=1, scheduled=1)]
    ops += [counters(3, 2, queue_id=2), counters(11, 10, queue_id=3)]
    store = SqliteStore(path)
    store.open()
    store.commit([*ops, entity(4, "gone")])
    store.commit([DeleteEntity(4)])
    store.close()


TREES = [
    *(
        sql.split()[2]
        for sql in schema.STATEMENTS
        if " TRIGGER " not in sql and "UNIQUE" not in sql
    ),
    "session_state_by_name",
    "sqlite_autoindex_meta_1",
]


@pytest.mark.parametrize("tree", TREES)
def test_a_row_that_vanished_from_a_table_or_an_index_is_missed(
    store_path: Path, tree: str
) -> None:
    """M8: an index that lacks an entry would hide a message, an expiry or a session for ever."""
    # Given a store in which one table or index forgot its last cell, as one flipped bit can do
    some_of_everything(store_path)
    connection = apsw.Connection(str(store_path))
    page = connection.execute("SELECT pageno FROM dbstat WHERE name = ?", (tree,)).get
    connection.close()
    image = bytearray(store_path.read_bytes())
    at = (page - 1) * schema.PAGE_BYTES + 3
    cells = int.from_bytes(image[at : at + 2], "big")
    assert cells > 0
    image[at : at + 2] = (cells - 1).to_bytes(2, "big")
    store_path.write_bytes(image)

    # When it is opened, then it is refused
    with pytest.raises(StoreCorrupt):
        SqliteStore(store_path).open()


def test_a_delivery_count_that_moved_to_another_message_is_refused(store_path: Path) -> None:
    """M8: nobody would ask for it there, and the message would have none."""
    some_of_everything(store_path)
    execute(store_path, "UPDATE state SET id = id + 1000 WHERE deferred = 0")

    with pytest.raises(StoreCorrupt, match="state"):
        SqliteStore(store_path).open()


def test_a_time_of_a_session_state_that_changed_is_reported(store_path: Path) -> None:
    """M3, M8: a session would be missing among those that were updated."""
    some_of_everything(store_path)
    execute(store_path, "UPDATE session_state SET updated_ms = 4")
    store = SqliteStore(store_path)
    store.open()

    with pytest.raises(StoreCorrupt, match="state of a session"):
        store.load_sessions_updated(3, 5, None, 10)
    store.close()


def test_a_deleted_queue_that_is_half_collected_is_not_damage(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M8: its selections go before its chunks, and a look at everything may come between."""
    # Given a deleted queue of which one slice was collected
    monkeypatch.setattr(sqlite_writer, "SLICE_S", 0.0)
    monkeypatch.setattr(sqlite_writer, "SLICE_ROWS", 1)
    some_of_everything(store_path)
    store = SqliteStore(store_path)
    store.open()
    while store.maintain():
        pass
    store.commit([DeleteEntity(2)])
    store.maintain()

    # When everything is looked at, then nothing is said
    store.verify_all()
    store.close()


def test_another_format_version_is_refused_and_not_touched(closed_store: Path) -> None:
    # Given a store of a later format
    execute(closed_store, "PRAGMA user_version = 99")
    before = fingerprint(closed_store.parent)

    # When it is opened, it is refused by a clear sentence and no byte changes
    with pytest.raises(StoreVersionMismatch, match="format 99"):
        SqliteStore(closed_store).open()
    assert fingerprint(closed_store.parent) == before


@pytest.mark.parametrize(
    "foreign", [b"", b"SQLite format 3\x00" + bytes(84), b"x" * 5_000], ids=["empty", "zero", "x"]
)
def test_a_file_that_is_no_store_is_refused_and_not_touched(
    store_path: Path, foreign: bytes
) -> None:
    store_path.write_bytes(foreign)

    with pytest.raises(StoreCorrupt):
        SqliteStore(store_path).open()
    assert store_path.read_bytes() == foreign


def test_a_database_of_another_program_is_refused(store_path: Path) -> None:
    execute(store_path, "PRAGMA application_id = 7; PRAGMA user_version = 1; CREATE TABLE t (x)")

    with pytest.raises(StoreCorrupt, match="another program"):
        SqliteStore(store_path).open()


def test_a_draft_that_a_crash_left_behind_is_thrown_away(store_path: Path) -> None:
    # Given the remains of a creation that never ended
    for suffix in (".new", ".new-wal", ".new-journal"):
        store_path.with_name(store_path.name + suffix).write_bytes(b"half a store")

    # When the store is opened, it is created as if they had not been there
    store = SqliteStore(store_path)
    assert store.open().entities == []
    store.close()
    assert {file.name for file in store_path.parent.iterdir()} == {"store.db", "store.db.mark"}


def test_an_sqlite_with_the_wal_reset_bug_is_refused() -> None:
    require_sqlite_version("3.51.3")
    with pytest.raises(ConfigurationError, match=r"3\.51\.2"):
        require_sqlite_version("3.51.2")


@pytest.mark.slow
def test_any_flipped_bit_is_detected_or_harmless() -> None:
    """M8: no flipped bit makes the store say something else than what was stored."""
    seed = 20_240_229
    print(f"SEED={seed}")
    random = Random(seed)
    # Given a small killed store with some of everything, and places in it: most of them filled
    files = image(seed).files
    everywhere = image(seed).places()
    filled = [(name, at) for name, at in everywhere if files[name][at]]
    places = random.sample(filled, 800) + random.sample(everywhere, 200)

    # When one bit is flipped there, then the store refuses, or says the same as before
    found = flip(places, seed)
    assert found.complaints == []
    assert found.outcomes["harmless"] > 100
    assert found.outcomes["refused when opened"] > 100
    assert found.outcomes["refused when read"] > 100
