"""Shelf and lane: which chunks are in memory, what is handed out, when one may be forgotten."""

from __future__ import annotations

import pytest

from tests.unit.broker.engine.test_chunk import plain
from twinbus.broker.engine import delivery_stream as lane_module
from twinbus.broker.engine.chunk import Chunk, ChunkCache
from twinbus.broker.engine.consumers import Consumer
from twinbus.broker.engine.delivery_stream import DeliveryStream
from twinbus.broker.storage.interface import ChunkRow, LoadedChunk


def chunk_at(first_seq: int, count: int = 2) -> Chunk:
    blob = plain(count).blob or b""
    return Chunk(first_seq, count, 0, None, blob)


def row_at(
    first_seq: int, count: int = 2, gone: list[tuple[int, int]] | None = None
) -> LoadedChunk:
    blob = plain(count).blob or b""
    return LoadedChunk(ChunkRow(1, first_seq, count, 0, None, blob), gone or [], {})


def make_lane(last_seq: int = 0) -> tuple[ChunkCache, DeliveryStream, Consumer]:
    """A lane that somebody receives from."""
    shelf = ChunkCache()
    lane = DeliveryStream(shelf, last_seq)
    receiver = Consumer(lambda _grant: None, 1)
    lane.turns.add(receiver)
    return shelf, lane, receiver


def committed(shelf: ChunkCache, lane: DeliveryStream, chunk: Chunk) -> Chunk:
    shelf.expect(chunk)
    chunk.unsaved = False
    lane.append_committed(chunk)
    return chunk


def test_a_new_chunk_enters_the_window_behind_everything_before_it() -> None:
    # Given a shelf that has handed out everything there was
    shelf, lane, receiver = make_lane()
    first = committed(shelf, lane, chunk_at(1))
    assert lane.head() is first

    # When one chunk is not kept because nobody receives, the next one is not kept either
    lane.turns.discard(receiver)
    committed(shelf, lane, chunk_at(3))
    lane.turns.add(receiver)
    committed(shelf, lane, chunk_at(5))

    # Then both are read later, in order
    assert lane.loaded_through == 2
    assert lane.needs_more()
    lane.append_loaded([row_at(3), row_at(5)], asked_through=6)
    lane.head()
    assert [chunk.first_seq for chunk in lane._window] == [1, 3, 5]


def test_the_window_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "READ_AHEAD_BYTES", 40)
    shelf, lane, _receiver = make_lane()

    for first_seq in range(1, 100, 2):
        committed(shelf, lane, chunk_at(first_seq))

    assert len(lane._window) == len(shelf._chunks) <= 4


def test_a_chunk_leaves_the_window_with_its_last_message() -> None:
    shelf, lane, _receiver = make_lane()
    chunk = committed(shelf, lane, chunk_at(1))
    chunk.mark_delivered(0, 2)
    chunk.locked = chunk.busy = 0b11

    assert lane.head() is None
    assert chunk.blob is None
    assert shelf.adopt(row_at(1)) is chunk


def test_what_is_in_memory_is_the_truth() -> None:
    """M2: a row that was read meanwhile only lends its bytes."""
    # Given a chunk with a message that is gone here and not yet on disk
    shelf, lane, _receiver = make_lane()
    chunk = committed(shelf, lane, chunk_at(1))
    chunk.mark_gone(0b01)
    chunk.unsaved = True
    lane.rest()
    assert chunk.blob is None

    # When the row is read
    adopted = shelf.adopt(row_at(1))

    # Then the message stays gone, and the bytes are there
    assert adopted is chunk
    assert adopted.gone == 0b01
    assert adopted.blob is not None


def test_a_chunk_is_forgotten_when_every_older_read_has_ended() -> None:
    shelf, lane, _receiver = make_lane()
    chunk = committed(shelf, lane, chunk_at(1))
    first = shelf.grace.begin_read()
    lane.rest()
    assert chunk.is_idle
    shelf.grace.begin_read()

    assert 1 in shelf._chunks
    shelf.grace.end_read(first)

    assert 1 not in shelf._chunks


def test_only_the_last_time_at_which_it_was_idle_counts() -> None:
    """M2 and M8: between two idle times a chunk may have changed."""
    # Given a chunk that became idle during one read and changed during the next
    shelf, lane, _receiver = make_lane()
    chunk = committed(shelf, lane, chunk_at(1))
    first = shelf.grace.begin_read()
    lane.rest()
    chunk.mark_gone(0b01)
    chunk.unsaved = True
    second = shelf.grace.begin_read()

    # When the change is stored, so that it is idle again
    chunk.unsaved = False
    shelf.release(chunk)

    # Then the end of the first read does not let it go: the second may be older than the change
    shelf.grace.end_read(first)
    assert shelf.adopt(row_at(1)).gone == 0b01
    shelf.put_back(chunk)
    shelf.grace.end_read(second)
    assert 1 not in shelf._chunks


def test_a_refused_chunk_is_forgotten_with_its_numbers() -> None:
    shelf, lane, _receiver = make_lane()
    refused = chunk_at(1)
    shelf.expect(refused)

    shelf.forget(refused)

    stored = committed(shelf, lane, chunk_at(1))
    assert lane.head() is stored


def test_a_chunk_that_a_read_saw_first_enters_the_window_once() -> None:
    """M2: the disk has it before its commit is told."""
    shelf, lane, _receiver = make_lane()
    chunk = chunk_at(1)
    shelf.expect(chunk)
    lane.append_loaded([row_at(1)], asked_through=0)

    lane.append_committed(chunk)

    assert list(lane._window) == [chunk]


def test_a_read_that_finds_nothing_moves_on() -> None:
    """What was there has been settled meanwhile."""
    lane = make_lane(40)[1]

    lane.append_loaded([], asked_through=40)

    assert not lane.needs_more()
