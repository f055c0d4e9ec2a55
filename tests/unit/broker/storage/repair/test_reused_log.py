"""M15: behind the newest commits a log holds older ones, which never come back.

A checkpoint makes SQLite begin the log anew in the same file. The frames that were there stay
behind the new ones until they are overwritten, with the salts of their own time.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.unit.broker.storage.repair.test_doubtful_rows import messages_in
from twinbus.broker.storage import schema
from twinbus.broker.storage.repair.findings import FindingKind
from twinbus.broker.storage.repair.page_file import PageFile
from twinbus.broker.storage.repair.store_repair import Doctor, StoreReport
from twinbus.broker.storage.sqlite_store import SqliteStore
from verification.crash_consistency.builders import chunk, counters, entity
from verification.crash_consistency.scratch import let_go

pytestmark = pytest.mark.slow

COMMITS = 100
FRAME = 24 + schema.PAGE_BYTES


def body(seq: int) -> bytes:
    return b"%06d" % seq


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a kill leaves of a store whose log was begun anew after 64 commits."""
    path = tmp_path_factory.mktemp("reused") / "store.db"
    store = SqliteStore(path)
    store.open()
    store.commit([entity()])
    for seq in range(1, COMMITS + 1):
        blob = len(body(seq)).to_bytes(4, "big") + body(seq)
        store.commit([chunk(seq, 1, blob=blob), counters(seq + 1, seq)])
    let_go(store)
    return {name: path.with_name(name).read_bytes() for name in names()}


def names() -> list[str]:
    return ["store.db", "store.db-wal", "store.db.mark"]


def commits_of(log: bytes) -> list[tuple[int, int]]:
    """Where the commits of the newest time begin and end in the log."""
    salts = log[16:24]
    found = []
    first = 32
    for at in range(32, len(log) - FRAME + 1, FRAME):
        if log[at + 8 : at + 16] != salts:
            break
        if struct.unpack_from(">I", log, at + 4)[0]:
            found.append((first, at + FRAME))
            first = at + FRAME
    return found


def repaired(tmp_path: Path, files: dict[str, bytes], log: bytes) -> StoreReport:
    for name, data in {**files, "store.db-wal": log}.items():
        (tmp_path / name).write_bytes(data)
    doctor = Doctor(tmp_path)
    report = doctor.examine(tmp_path / "store.db", tmp_path / "new.db")
    assert doctor.examine(tmp_path / "new.db").findings == []
    assert report.totals.found == len(messages_in(tmp_path / "new.db", 1))
    return report


def test_the_log_has_older_commits_behind_the_newest(original: dict[str, bytes]) -> None:
    """What the other tests here are about is there."""
    log = original["store.db-wal"]
    commits = commits_of(log)
    assert 20 < len(commits) < 64
    assert commits[-1][1] < len(log) - 20 * FRAME


@pytest.mark.parametrize("at", [24 + 9_000, 3, 9, 13, 18], ids=str)
@pytest.mark.parametrize("which", [0, 10, -2, -1])
def test_a_flipped_bit_in_the_log_brings_no_older_page_back(
    which: int, at: int, original: dict[str, bytes], tmp_path: Path
) -> None:
    """M15: in a page, in its number, in either salt and in the checksum of a frame."""
    log = bytearray(original["store.db-wal"])
    log[commits_of(log)[which][0] + at] ^= 4
    report = repaired(tmp_path, original, bytes(log))
    assert (report.totals.found, report.totals.lost) == (COMMITS, 0)
    assert messages_in(tmp_path / "new.db", 1) == [body(seq) for seq in range(1, COMMITS + 1)]


@pytest.mark.parametrize("count", [1, 2])
def test_commits_that_became_zeros_are_missing_and_nothing_else_is(
    count: int, original: dict[str, bytes], tmp_path: Path
) -> None:
    """M15: what they held is said to be missing, and what was there before stays."""
    log = bytearray(original["store.db-wal"])
    commits = commits_of(log)
    first, last = commits[-count][0], commits[-1][1]
    log[first:last] = bytes(last - first)
    report = repaired(tmp_path, original, bytes(log))
    assert report.totals.found == COMMITS - count
    assert FindingKind.COMMITS_MISSING in {finding.kind for finding in report.findings}


def test_a_commit_in_the_middle_that_became_zeros_costs_its_own_rows_alone(
    original: dict[str, bytes], tmp_path: Path
) -> None:
    """M15: the pages of later commits have its rows, too."""
    log = bytearray(original["store.db-wal"])
    first, last = commits_of(log)[10]
    log[first:last] = bytes(last - first)
    assert repaired(tmp_path, original, bytes(log)).totals.found == COMMITS


@pytest.mark.parametrize("at", range(32))
def test_a_damaged_head_of_the_log_brings_no_older_page_back(
    at: int, original: dict[str, bytes], tmp_path: Path
) -> None:
    """M15: any bit of it, those of the salts among them."""
    log = bytearray(original["store.db-wal"])
    log[at] ^= 0x10
    report = repaired(tmp_path, original, bytes(log))
    assert (report.totals.found, report.totals.lost) == (COMMITS, 0)


@pytest.mark.parametrize(("first", "last"), [(0, 32), (16, 24), (16, 20), (8, 24)])
def test_a_lost_head_of_the_log_is_found_by_the_frames(
    first: int, last: int, original: dict[str, bytes], tmp_path: Path
) -> None:
    """M15: the first frames tell which salts are the newest."""
    log = bytearray(original["store.db-wal"])
    log[first:last] = bytes(last - first)
    report = repaired(tmp_path, original, bytes(log))
    assert (report.totals.found, report.totals.lost) == (COMMITS, 0)


def test_one_newest_frame_tells_the_salts_of_a_damaged_head(
    original: dict[str, bytes], tmp_path: Path
) -> None:
    """M15: the second frame may be of an older time already."""
    log = bytearray(original["store.db-wal"])
    older = commits_of(log)[-1][1]
    # A commit of one page in front, and what is older behind it; no salt is a bit from another.
    log = log[: 32 + FRAME] + log[older:]
    struct.pack_into(">I", log, 32 + 4, 40)
    log[16:24] = bytes(8)
    for name, data in {**original, "store.db-wal": bytes(log)}.items():
        (tmp_path / name).write_bytes(data)
    with PageFile(tmp_path / "store.db", is_lenient=True) as pages:
        assert (len(pages.log.frames), pages.log.commit_count) == (1, 1)


def test_a_reading_with_an_older_ledger_is_not_preferred(
    original: dict[str, bytes], tmp_path: Path
) -> None:
    """M15: however many commits a log has, what SQLite reads is better than what went back."""
    log = bytearray(original["store.db-wal"])
    commits = commits_of(log)
    # Behind a damaged commit those of the beginning come once more, and they look current.
    log = log[: commits[-1][1]] + log[32 : commits[5][1]]
    log[commits[-1][0] + 24 + 9_000 : commits[-1][1]] = bytes(
        commits[-1][1] - commits[-1][0] - 24 - 9_000
    )
    assert repaired(tmp_path, original, bytes(log)).totals.found == COMMITS - 1
