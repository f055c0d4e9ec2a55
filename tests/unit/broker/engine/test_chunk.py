"""Chunks: the masks over their messages."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from twinbus.broker.engine.chunk import Chunk, span_mask, spans_of
from twinbus.broker.engine.stored_message import Record, pack_chunk, pack_record
from twinbus.broker.storage.interface import ChunkRow, LoadedChunk

MASKS = st.integers(0, 2**70)


def chunk_of(*expiries_ms: int | None) -> Chunk:
    """A chunk from sequence number 10 on, one message for each expiry."""
    records = [pack_record(Record(b"body", expires_ms=at)) for at in expiries_ms]
    known = [at for at in expiries_ms if at is not None]
    return Chunk(10, len(records), 0, min(known, default=None), pack_chunk(records))


def plain(count: int) -> Chunk:
    return chunk_of(*[None] * count)


@given(MASKS)
def test_a_mask_is_the_sum_of_its_spans(mask: int) -> None:
    spans = list(spans_of(mask))

    assert sum(span_mask(start, count) for start, count in spans) == mask
    assert all(start + count < later for (start, count), (later, _) in pairwise(spans))


@given(MASKS, st.integers(0, 71))
def test_the_next_free_run_is_the_first_one_behind_the_cursor(busy: int, cursor: int) -> None:
    # Given a chunk in which some messages are busy
    chunk = plain(71)
    chunk.busy, chunk.cursor = busy, cursor

    # When the next free run is looked up
    start, count = chunk.next_free()

    # Then it is what counting one by one finds
    free = [i for i in range(cursor, 71) if not busy >> i & 1]
    run = [i for n, i in enumerate(free) if i == free[0] + n]
    assert (count, start if count else None) == (len(run), run[0] if run else None)


def test_a_message_taken_from_the_middle_leaves_the_others_their_turn() -> None:
    # Given a chunk in the window, whose third message was deferred before it was loaded
    chunk = plain(4)
    chunk.in_window, chunk.deferred, chunk.busy = True, 0b0100, 0b0100

    # When the deferred one is handed out
    chunk.mark_delivered(2, 1)

    # Then the first two are still the next
    assert chunk.next_free() == (0, 2)


def test_messages_that_came_back_are_handed_out_in_runs() -> None:
    chunk = plain(8)
    chunk.busy, chunk.returned = 0b1111_1111, 0b0110_0110

    assert chunk.next_returned() == (1, 2)
    chunk.mark_delivered(1, 2)
    assert chunk.next_returned() == (5, 2)
    chunk.mark_delivered(5, 2)
    assert chunk.next_returned()[1] == 0


def test_a_message_that_is_gone_is_nothing_else() -> None:
    chunk = plain(2)
    chunk.locked = chunk.returned = chunk.deferred = chunk.moving = 0b01

    chunk.mark_gone(0b01)

    assert chunk.locked | chunk.returned | chunk.deferred | chunk.moving == 0
    assert chunk.busy == chunk.gone == 0b01
    assert not chunk.is_empty
    chunk.mark_gone(0b10)
    assert chunk.is_empty


def test_only_a_free_deferred_message_can_be_taken() -> None:
    chunk = plain(5)
    chunk.deferred, chunk.locked, chunk.gone, chunk.moving = 0b01111, 0b00010, 0b00100, 0b01000

    assert chunk.mark_deferred(0b11111) == 0b00001


def test_what_was_left_on_disk_is_known_again() -> None:
    """M2: states and holes are kept; locks are not."""
    # Given a row with a hole, a delivery count and a deferred message
    row = ChunkRow(1, 10, 6, 777, None, plain(6).blob or b"")
    loaded = LoadedChunk(row, gone=[(11, 12)], states={13: (2, False), 14: (1, True)})

    # When it is loaded
    chunk = Chunk.from_store(loaded)

    # Then it is as it was
    assert (chunk.gone, chunk.deferred, chunk.locked) == (0b000110, 0b010000, 0)
    assert chunk.delivery_counts == {3: 2, 4: 1}
    assert chunk.next_free() == (0, 1)
    assert chunk.enqueued_ms == 777


def test_the_earliest_expiry_is_that_of_a_message_that_is_there() -> None:
    chunk = chunk_of(500, 900, None, 700)
    chunk.mark_gone(0b0001)
    chunk.refresh_expiry()

    assert chunk.expires_ms == 700
    chunk.mark_gone(0b1010)
    chunk.refresh_expiry()
    assert chunk.expires_ms is None


def test_the_sweeper_comes_back_later_for_what_is_held() -> None:
    # Given three messages with a time to live, of which the first is locked
    chunk = chunk_of(500, 900, 2_000)
    chunk.locked = 0b001

    # Then it is looked for when it expires, and once it has expired, when its lock has ended
    assert chunk.sweep_ms(now_ms=400, later_ms=10_400) == 500
    assert chunk.sweep_ms(now_ms=600, later_ms=10_600) == 900
    chunk.mark_gone(0b010)
    assert chunk.sweep_ms(now_ms=600, later_ms=1_600) == 1_600


def test_the_size_of_some_messages() -> None:
    chunk = plain(4)

    assert chunk.size_of(0b1111) == 4 * len(pack_record(Record(b"body")))
    assert chunk.size_of(0b0101) == 2 * len(pack_record(Record(b"body")))
    assert chunk.size_of(0) == 0
