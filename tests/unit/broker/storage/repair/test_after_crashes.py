"""M15: what ``make crash`` leaves is healthy or can be repaired;
``python -m verification.crash_consistency --only doctor`` looks at many more."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from tests.unit.broker.storage.repair.test_catalogue_repair import data_with
from twinbus.amqp.message.message import Message
from twinbus.broker.data_repair import examine_data
from twinbus.broker.engine.stored_message import Record, pack_chunk, pack_record
from twinbus.broker.storage import schema
from twinbus.broker.storage.interface import ChunkRow, PutChunk, PutCounters, PutMeta, QueueCounters
from twinbus.broker.storage.repair import inspection, message_references, new_store_file, salvage
from twinbus.broker.storage.repair.page_file import PageFile
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency import disk_errors, recovery, rot, stories
from verification.crash_consistency.scratch import let_go

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("TWINBUS_CRASH_SEED", "1"))
FLIPS = 300
# A million messages in a minute. With one message to a row it is about 20 µs on a calm machine,
# with a hundred about 2 µs.
CPU_US_PER_MESSAGE_MAX = 60.0


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_a_store_after_a_crash_is_healthy_and_its_repair_is_a_copy(seed: int) -> None:
    """M15: a power cut damages nothing, and the doctor does not say so."""
    assert recovery.look_after_crashes(seed, 100).complaints == []


@pytest.mark.parametrize("name", stories.NAMES)
def test_a_store_after_errors_of_the_disk_is_healthy_and_its_repair_is_a_copy(name: str) -> None:
    """M15: EIO, ENOSPC and short writes, once or for ever, and again during the recovery."""
    faults = Random(f"{SEED} {name}").sample(disk_errors.faults_of(name), 8)
    tally = recovery.look_after_errors(name, faults, SEED)
    assert tally.complaints == []
    assert tally.points >= 8


def test_the_checker_sees_a_repair_that_lacks_something_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M15: a healthy store whose copy is not whole is a complaint."""
    put = new_store_file.Draft.put

    def put_less(self: new_store_file.Draft, table: str, rows: list[tuple[Any, ...]]) -> None:
        put(self, table, rows if table != "seen" else rows[1:])

    monkeypatch.setattr(new_store_file.Draft, "put", put_less)
    faults = disk_errors.faults_of("duplicates")[-8:]
    assert recovery.look_after_errors("duplicates", faults, SEED).complaints


@pytest.mark.parametrize("part", range(2))
def test_one_flipped_bit_costs_at_most_its_row(part: int) -> None:
    """M15: the doctor finds what the broker would find, and loses no more than what is damaged."""
    places = rot.image(SEED).places()
    chosen = Random(f"{SEED} {part}").sample(places, FLIPS // 2)
    tally = recovery.look_after_flips(chosen, SEED)
    assert tally.complaints == []
    assert tally.outcomes["damaged"] > FLIPS // 10


FLIPS_OF_A_KIND = {
    "a settled run": (7, "store.db", 24457),
    "a page whose checksum a shorter database would have, too": (7, "store.db-wal", 98799),
    "the number of a chunk, which becomes its neighbour's": (9, "store.db", 133132),
    "the ledger of the last commit in the log": (9, "store.db-wal", 70059),
    "how many rows a page has": (23, "store.db", 176132),
    "the counters of the last commit in the log": (12, "store.db-wal", 78303),
}


@pytest.mark.parametrize("what", FLIPS_OF_A_KIND)
def test_one_flipped_bit_of_a_rare_kind_costs_at_most_its_row(what: str) -> None:
    """M15: and what comes back is counted."""
    seed, name, at = FLIPS_OF_A_KIND[what]
    tally = recovery.look_after_flips([(name, at)], seed)
    assert tally.complaints == []
    assert tally.outcomes == {"damaged": 1}


def test_a_row_that_its_page_has_forgotten_is_found(tmp_path: Path) -> None:
    """M15: something stands in the page that is neither one of its rows nor free."""
    files = dict(rot.image(23).files)
    store = bytearray(files["store.db"])
    store[176132] ^= 1
    report = recovery.Examination(tmp_path).examine({**files, "store.db": bytes(store)})
    assert "scheduled" in {finding.table for finding in report.findings}
    assert (report.totals.lost, report.lost) == (0, [])


def test_rows_that_left_no_trace_are_said_to_be_lost(tmp_path: Path) -> None:
    """M15: the counters know that they were there."""
    data = data_with(tmp_path, None)
    path = data / "namespace-shop" / "store.db"
    fill(path, 40, 10)
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM chunk WHERE id = ?", ((7 << 40) + 11,))
    connection.close()
    report = examine_data(data)
    assert report.totals.lost == 10
    ((_entity, lost),) = report.namespaces[0].lost()
    assert (lost.queue_id, lost.is_exact) == (7, False)
    assert lost.first_seq <= 11 and lost.last_seq >= 20


def test_after_older_counters_sequence_numbers_go_on_with_a_gap(tmp_path: Path) -> None:
    """M15: those of the last commit in the log are damaged, and nobody knows what it gave out."""
    files = dict(rot.image(12).files)
    log = bytearray(files["store.db-wal"])
    log[78303] ^= 1 << 3
    report = recovery.Examination(tmp_path).examine({**files, "store.db-wal": bytes(log)})
    assert "counters" in {finding.table for finding in report.findings}
    store = SqliteStore(tmp_path / "new" / "store.db")
    numbers = [each.next_seq for each in store.open().counters.values()]
    store.close()
    assert numbers and min(numbers) > 1 << 20


def test_the_checker_sees_a_doctor_that_does_not_say_what_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M15: what is lost without a word is a complaint."""
    monkeypatch.setattr(inspection.Inspection, "lose", lambda *_row: None)
    monkeypatch.setattr(message_references.MessageCheck, "_note_gap", lambda *_gap: None)
    places = rot.image(SEED).places()
    chosen = Random(f"{SEED} 0").sample(places, FLIPS // 2)
    assert recovery.look_after_flips(chosen, SEED).complaints


def test_the_checker_sees_a_doctor_that_believes_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """M15: a row whose checksum is wrong is not a row."""
    believing = {
        name: shape._replace(has_valid_checksum=lambda _row: True)
        for name, shape in salvage.TABLES.items()
    }
    monkeypatch.setattr(salvage, "TABLES", believing)
    chosen = Random(f"{SEED} 0").sample(rot.image(SEED).places(), FLIPS // 2)
    assert recovery.look_after_flips(chosen, SEED).complaints


def test_a_log_whose_every_frame_is_damaged_takes_no_longer(tmp_path: Path) -> None:
    """M15: what a damaged frame may have been is computed, not tried bit by bit."""
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    store.open()
    for number in range(60):
        store.commit([PutMeta(f"key {number}", number)])
    let_go(store)
    log_path = path.with_name("store.db-wal")
    log = bytearray(log_path.read_bytes())
    frames = range(32 + 24 + 500, len(log), 24 + schema.PAGE_BYTES)
    used_s = []
    for is_damaged in (False, True):
        for at in frames if is_damaged else ():
            log[at] ^= 0x11
        log_path.write_bytes(log)
        began_s = time.process_time()
        with PageFile(path, is_lenient=True) as pages:
            assert bool(pages.log.unsound) == is_damaged
        used_s.append(time.process_time() - began_s)
    assert len(frames) > 100
    assert used_s[1] < 10 * used_s[0]


@pytest.mark.parametrize("per_chunk", [1, 100])
def test_a_million_messages_take_less_than_a_minute(per_chunk: int, tmp_path: Path) -> None:
    """M15: by CPU time for a message, check and repair together, on a fiftieth of them."""
    data = data_with(tmp_path, None)
    count = 20_000
    fill(data / "namespace-shop" / "store.db", count, per_chunk)
    began_s = time.process_time()
    report = examine_data(data, tmp_path / "new")
    used_us = (time.process_time() - began_s) * 1e6 / count
    assert report.is_healthy and report.totals.found == count + 3
    assert used_us < CPU_US_PER_MESSAGE_MAX


def fill(path: Path, count: int, per_chunk: int) -> None:
    """Messages of 200 bytes for the queue ``billing``."""
    record = pack_record(Record(Message(body=b"x" * 200).encode()))
    blob = pack_chunk([record] * per_chunk)
    store = SqliteStore(path)
    store.open()
    rows = [
        ChunkRow(7, first, per_chunk, 1_700_000_000_000, None, blob)
        for first in range(1, count + 1, per_chunk)
    ]
    counters = QueueCounters(7, count + 1, count, count * len(record), 0, 0)
    store.commit([*map(PutChunk, rows), PutCounters(counters)])
    store.close()


@pytest.mark.parametrize(
    ("at", "bit"),
    [
        pytest.param(62_139, 4, id="in unused bytes, as if the number was damaged"),
        pytest.param(61_835, 4, id="in the number of a new page"),
    ],
)
def test_a_bit_in_a_frame_of_the_log_costs_no_row_of_another_page(
    tmp_path: Path, at: int, bit: int
) -> None:
    """M15: the checksum of a frame does not say whether its page or its page's number is wrong."""
    image = rot.image(12)
    flipped = bytearray(image.files["store.db-wal"])
    flipped[at] ^= 1 << bit
    files = {**image.files, "store.db-wal": bytes(flipped)}
    (tmp_path / "copy").mkdir()
    examination = recovery.Examination(tmp_path)
    outcome = recovery._wrong_after_flip(examination, tmp_path / "copy", files, image.answers)
    assert outcome == ("damaged", None)
