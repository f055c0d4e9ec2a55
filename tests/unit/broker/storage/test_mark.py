"""The high-water mark: what it remembers, and what it does when it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twinbus.broker.storage.store_files import (
    SLOT_BYTES,
    CommitMarker,
    MarkRecord,
    decode,
    encode,
    read_mark,
)

STORE_ID = bytes(range(16))


def test_the_mark_is_the_highest_number_recorded(tmp_path: Path) -> None:
    mark = CommitMarker(tmp_path / "mark", STORE_ID)
    for number in (7, 8, 9):
        mark.record(number)
    mark.close()

    assert read_mark(tmp_path / "mark") == MarkRecord(9, STORE_ID)
    assert (tmp_path / "mark").stat().st_size == 2 * SLOT_BYTES


@pytest.mark.parametrize("cut_bytes", [1, 32, 63])
def test_a_torn_record_leaves_the_one_before(tmp_path: Path, cut_bytes: int) -> None:
    """M8: the slots are written in turn, so the power may fail at any byte."""
    # Given a mark at 8 whose next record arrives in part
    path = tmp_path / "mark"
    mark = CommitMarker(path, STORE_ID)
    mark.record(7)
    mark.record(8)
    mark.close()
    content = bytearray(path.read_bytes())
    content[SLOT_BYTES : SLOT_BYTES + cut_bytes] = encode(MarkRecord(9, STORE_ID))[:cut_bytes]
    path.write_bytes(content)

    # Then the mark is at 8, or already at 9, never lost
    assert read_mark(path) in (MarkRecord(8, STORE_ID), MarkRecord(9, STORE_ID))


def test_every_flipped_bit_of_a_slot_is_noticed() -> None:
    slot = encode(MarkRecord(1_000_000, STORE_ID))
    assert decode(slot) == MarkRecord(1_000_000, STORE_ID)

    for bit in range(8 * SLOT_BYTES):
        damaged = bytearray(slot)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode(bytes(damaged)) is None


def test_a_mark_that_cannot_be_written_is_behind_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a disk that refuses the mark
    mark = CommitMarker(tmp_path / "mark", STORE_ID)
    mark.record(1)

    def refuse(*arguments: object) -> int:
        raise OSError("full")

    # When a durable commit is recorded, then it is not refused after the fact
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        mark.record(2)
    assert mark.failed_writes == 1
    assert read_mark(tmp_path / "mark") == MarkRecord(1, STORE_ID)
    mark.close()
