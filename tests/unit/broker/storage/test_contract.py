"""What every store driver promises, told once and run over all of them."""

from __future__ import annotations

import pytest

from twinbus.broker.storage.interface import (
    QUEUE_ID_MAX,
    SEQ_MAX,
    ChunkRow,
    ClearState,
    DeleteChunks,
    DeleteEntity,
    DeleteScheduled,
    ForgetSeen,
    Op,
    PutChunk,
    PutMeta,
    PutScheduled,
    PutSeen,
    PutState,
    ScheduledRow,
    SeenRow,
    SetChunkExpiry,
    Store,
    Tombstone,
)
from twinbus.errors import StoreFailed
from verification.crash_consistency.builders import (
    MEBIBYTE,
    all_chunks,
    chunk,
    counters,
    entity,
    first_seqs,
)


def test_a_stored_chunk_comes_back_as_it_was(store: Store) -> None:
    """M8: what was committed is what is loaded."""
    # Given a chunk with every field set
    put = chunk(7, 3, expires_ms=5_000, blob=bytes(range(256)) * 300)

    # When it is committed and loaded
    store.commit([put, counters(10, 3)])
    (loaded,) = all_chunks(store)

    # Then nothing about it has changed
    assert loaded.row == put.row
    assert loaded.gone == [] and loaded.states == {}


def test_chunks_come_back_in_order_of_their_sequence_numbers(store: Store) -> None:
    store.commit([chunk(21), chunk(1), chunk(11)])

    assert first_seqs(all_chunks(store)) == [1, 11, 21]


def test_loading_continues_behind_a_sequence_number(store: Store) -> None:
    # Given three chunks
    store.commit([chunk(1), chunk(11), chunk(21)])

    # Then loading after a chunk's first number leaves that chunk out
    assert first_seqs(store.load_chunks(1, 1, MEBIBYTE, 10)) == [11, 21]
    assert first_seqs(store.load_chunks(1, 10, MEBIBYTE, 10)) == [11, 21]
    assert first_seqs(store.load_chunks(1, 11, MEBIBYTE, 10)) == [21]
    assert store.load_chunks(1, 21, MEBIBYTE, 10) == []


def test_a_load_stops_at_its_limits_and_always_gives_something(store: Store) -> None:
    # Given three chunks of 100 bytes
    store.commit([chunk(first, blob=bytes(100)) for first in (1, 11, 21)])

    # Then the limits on chunks and on bytes hold, with at least one chunk each time
    assert len(store.load_chunks(1, 0, MEBIBYTE, 2)) == 2
    assert len(store.load_chunks(1, 0, 101, 10)) == 2
    assert len(store.load_chunks(1, 0, 100, 10)) == 1
    assert len(store.load_chunks(1, 0, 1, 10)) == 1


def test_queues_do_not_see_each_other(store: Store) -> None:
    # Given two neighbouring queues with the extreme sequence numbers between them
    store.commit([entity(2, "invoices"), chunk(SEQ_MAX, 1), chunk(1, 1, queue_id=2)])

    # Then each has its own chunk only
    assert first_seqs(all_chunks(store, 1)) == [SEQ_MAX]
    assert first_seqs(all_chunks(store, 2)) == [1]
    assert store.load_chunk_holding(2, SEQ_MAX) is None


def test_the_chunk_that_holds_a_message_is_found(store: Store) -> None:
    # Given chunks 1 to 10 and 21 to 30
    store.commit([chunk(1), chunk(21)])

    # Then every number inside finds its chunk, and no other number finds any
    found = {seq: store.load_chunk_holding(1, seq) for seq in (1, 10, 11, 20, 21, 30, 31)}
    assert {seq: loaded and loaded.row.first_seq for seq, loaded in found.items()} == {
        1: 1, 10: 1, 11: None, 20: None, 21: 21, 30: 21, 31: None,
    }  # fmt: skip


def test_settled_messages_are_reported_as_merged_runs(store: Store) -> None:
    # Given a chunk whose messages are settled one by one, out of order
    store.commit([chunk(1), chunk(11)])
    store.commit([Tombstone(1, 5, 5), Tombstone(1, 3, 3)])
    store.commit([Tombstone(1, 4, 4), Tombstone(1, 10, 10)])
    store.commit([Tombstone(1, 11, 12)])

    # Then touching runs are one, and no run crosses into the next chunk
    assert [loaded.gone for loaded in all_chunks(store)] == [[(3, 5), (10, 10)], [(11, 12)]]


def test_states_are_kept_replaced_and_cleared(store: Store) -> None:
    # Given delivery counts of messages in two chunks
    store.commit([chunk(1), chunk(11)])
    store.commit([PutState(1, 2, 1, False), PutState(1, 9, 4, True), PutState(1, 11, 2, False)])

    # When one is raised and a range is cleared
    store.commit([PutState(1, 2, 2, False), ClearState(1, 9, 10)])

    # Then each chunk shows what is left
    assert [loaded.states for loaded in all_chunks(store)] == [{2: (2, False)}, {11: (2, False)}]


def test_the_state_of_a_settled_message_goes_with_it(store: Store) -> None:
    # Given a deferred message
    store.commit([chunk(1), PutState(1, 4, 1, True), PutState(1, 5, 3, False)])

    # When it is settled
    store.commit([Tombstone(1, 4, 4)])

    # Then it is no longer among the deferred
    assert store.load_deferred_seqs(1, 0, 10) == []
    assert all_chunks(store)[0].states == {5: (3, False)}


def test_deferred_messages_are_listed_in_order(store: Store) -> None:
    store.commit([chunk(1, 100)])
    store.commit([PutState(1, seq, 1, seq % 2 == 0) for seq in (8, 3, 2, 6, 5)])

    assert store.load_deferred_seqs(1, 0, 10) == [2, 6, 8]
    assert store.load_deferred_seqs(1, 2, 1) == [6]


def test_deleting_chunks_takes_their_tombstones_and_states_along(store: Store) -> None:
    # Given three chunks with tombstones and states everywhere
    store.commit([chunk(1), chunk(11), chunk(21, expires_ms=9)])
    store.commit([Tombstone(1, seq, seq) for seq in (9, 12, 25)])
    store.commit([PutState(1, seq, 1, True) for seq in (10, 13, 26)])

    # When a range that begins inside the first and ends inside the third is deleted
    store.commit([DeleteChunks(1, 5, 21)])

    # Then only chunks that begin in the range are gone, with all that belonged to them
    (left,) = all_chunks(store)
    assert (left.row.first_seq, left.gone, left.states) == (1, [(9, 9)], {10: (1, True)})
    assert store.load_deferred_seqs(1, 0, 10) == [10]
    assert store.next_expiry(1) is None


def test_a_sequence_number_range_can_be_stored_again_without_old_details(store: Store) -> None:
    # Given a deleted chunk that had a tombstone, a state and an expiry
    store.commit([chunk(1, expires_ms=5), Tombstone(1, 2, 2), PutState(1, 3, 1, True)])
    store.commit([DeleteChunks(1, 1, 1)])

    # When the same numbers are stored again
    store.commit([chunk(1)])

    # Then nothing of the old chunk clings to the new one
    (loaded,) = all_chunks(store)
    assert (loaded.gone, loaded.states, loaded.row.expires_ms) == ([], {}, None)


def test_expired_chunks_are_loaded_earliest_first(store: Store) -> None:
    # Given chunks with and without expiry
    store.commit([chunk(1, expires_ms=300), chunk(11, expires_ms=100), chunk(21)])
    store.commit([chunk(31, expires_ms=200), chunk(41, expires_ms=100)])

    # Then those at or past their time come back, and the next time is known
    assert first_seqs(store.load_expired(1, 200, 10)) == [11, 41, 31]
    assert first_seqs(store.load_expired(1, 200, 1)) == [11]
    assert store.load_expired(1, 99, 10) == []
    assert store.next_expiry(1) == 100


def test_the_expiry_of_a_chunk_can_be_moved_and_removed(store: Store) -> None:
    # Given two chunks that expire
    store.commit([chunk(1, expires_ms=100), chunk(11, expires_ms=200), Tombstone(1, 12, 12)])

    # When one is postponed and the other is to live for ever
    store.commit([SetChunkExpiry(1, 1, 400), SetChunkExpiry(1, 11, None)])

    # Then loads see the new times, and the content is untouched
    assert [loaded.row.expires_ms for loaded in all_chunks(store)] == [400, None]
    assert all_chunks(store)[1].gone == [(12, 12)]
    assert store.next_expiry(1) == 400


def test_the_expiry_of_a_missing_chunk_is_ignored(store: Store) -> None:
    store.commit([SetChunkExpiry(1, 99, 100), SetChunkExpiry(1, 98, None)])

    assert store.next_expiry(1) is None


def test_scheduled_messages_are_due_in_order_of_time_then_number(store: Store) -> None:
    # Given scheduled messages
    for seq, due_ms in ((1, 300), (2, 100), (3, 200), (4, 100)):
        store.commit([PutScheduled(1, seq, due_ms, b"message %d" % seq)])

    # Then the due ones come by time, and all of them by number
    assert [row.seq for row in store.load_due(1, 200, 10)] == [2, 4, 3]
    assert [row.seq for row in store.load_due(1, 200, 2)] == [2, 4]
    assert [row.seq for row in store.load_scheduled(1, 1, 2)] == [2, 3]
    assert store.load_due(1, 100, 1) == [ScheduledRow(1, 2, 100, b"message 2")]
    assert store.next_due(1) == 100


def test_a_load_ends_with_the_row_that_reaches_its_bytes(store: Store) -> None:
    """M13: however much there is, and there is always at least one row."""
    store.commit([PutScheduled(1, seq, 100, b"x" * 10) for seq in range(1, 9)])
    store.commit([chunk(1 + 10 * at, expires_ms=100, blob=b"x" * 10) for at in range(1, 5)])
    for bytes_max, count in ((0, 1), (1, 1), (10, 1), (11, 2), (20, 2), (1_000, 8)):
        assert len(store.load_due(1, 100, 50, bytes_max)) == count
        assert len(store.load_scheduled(1, 0, 50, bytes_max)) == count
        assert len(store.load_expired(1, 100, 50, bytes_max)) == min(count, 4)


def test_a_load_ends_with_the_chunk_that_reaches_its_messages(store: Store) -> None:
    """M13: a message of a few bytes may have a row of its own for its delivery count."""
    rows = [ChunkRow(1, 1 + at * 10_000, 10_000, 0, None, b"x", "a") for at in range(3)]
    store.commit([PutChunk(row) for row in rows])
    assert len(store.load_chunks(1, 0, 1 << 20, 256)) == 2
    assert len(store.load_chunks(1, 0, 1 << 20, 256, "a")) == 2
    assert len(store.load_chunks(1, 20_000, 1 << 20, 256)) == 1


def test_a_scheduled_message_moves_into_a_chunk_in_one_commit(store: Store) -> None:
    """M8: between schedule and queue there is no moment in which a message is in neither."""
    # Given a scheduled message
    store.commit([PutScheduled(1, 1, 100, b"later"), counters(2, 0, scheduled=1)])

    # When it becomes due
    store.commit([DeleteScheduled(1, 1), chunk(2, 1, blob=b"later"), counters(3, 1)])

    # Then it is in the queue only
    assert store.load_scheduled(1, 0, 10) == [] and store.next_due(1) is None
    assert [loaded.row.blob for loaded in all_chunks(store)] == [b"later"]


def test_ops_are_applied_in_their_order(store: Store) -> None:
    store.commit([chunk(1), DeleteChunks(1, 1, 1), chunk(1, 5), PutState(1, 2, 1, True)])
    store.commit([ClearState(1, 2, 2), PutState(1, 2, 9, False), PutMeta("a", 1), PutMeta("a", 2)])

    (loaded,) = all_chunks(store)
    assert loaded.row.count == 5 and loaded.states == {2: (9, False)}


def test_reopening_finds_entities_counters_and_meta(store: Store) -> None:
    # Given two queues with counters, and values of the namespace
    ops: list[Op] = [entity(5, "invoices"), chunk(1, queue_id=5), counters(11, 10, queue_id=5)]
    store.commit([*ops, PutMeta("name", "ns"), PutMeta("n", -1), PutMeta("key", b"\x00\xff")])

    # When the store is opened again
    store.close()
    recovered = store.open()

    # Then everything is told, and the next queue id is a fresh one
    assert [found.path for found in recovered.entities] == ["orders", "invoices"]
    assert recovered.counters == {5: counters(11, 10, queue_id=5).counters}
    assert recovered.meta == {"name": "ns", "n": -1, "key": b"\x00\xff"}
    assert recovered.next_queue_id == 6


def test_the_description_of_an_entity_can_be_replaced(store: Store) -> None:
    store.commit([chunk(1), counters(11, 10)])
    store.commit([entity(1, "renamed")])
    store.close()

    assert [found.path for found in store.open().entities] == ["renamed"]
    assert len(all_chunks(store)) == 1


def test_a_deleted_entity_is_gone_at_once_and_its_id_is_never_given_again(store: Store) -> None:
    # Given two queues with messages, one of them deleted
    store.commit([entity(2, "kept"), chunk(1), chunk(1, queue_id=2)])
    store.commit([counters(11, 10), counters(11, 10, queue_id=2)])
    store.commit([DeleteEntity(1)])

    # When the store is reopened before anything was collected
    store.close()
    recovered = store.open()

    # Then only the other is known, and the id is taken for ever
    assert [found.queue_id for found in recovered.entities] == [2]
    assert set(recovered.counters) == {2}
    with pytest.raises(ValueError, match="never reused"):
        store.commit([entity(1)])
    assert recovered.next_queue_id == 3


def test_housekeeping_ends_and_leaves_the_other_queues_alone(store: Store) -> None:
    # Given a deleted queue with rows of every kind beside a living one
    store.commit([entity(2, "kept"), chunk(1, queue_id=2), counters(11, 10, queue_id=2)])
    store.commit([chunk(n * 10 + 1, expires_ms=n) for n in range(100)])
    store.commit([Tombstone(1, 1, 1), PutState(1, 2, 1, True), PutScheduled(1, 9_999, 1, b"x")])
    store.commit([DeleteEntity(1)])

    # When housekeeping runs to its end
    slices = 0
    while store.maintain():
        slices += 1
        assert slices < 1_000

    # Then the living queue is whole
    store.verify_all()
    assert first_seqs(all_chunks(store, 2)) == [1]


def test_what_never_was_can_be_deleted(store: Store) -> None:
    """M8: a full disk refuses a creation, and not the deletion that came meanwhile."""
    store.commit([DeleteEntity(7), chunk(1)])

    store.commit([entity(2, "invoices"), chunk(1, queue_id=2)])
    assert first_seqs(all_chunks(store, 2)) == [1]


def test_settlements_for_a_deleted_queue_are_ignored_but_messages_refused(store: Store) -> None:
    """M8: a message for a queue that is gone must not be acknowledged."""
    # Given a queue that is deleted while settlements are on their way
    store.commit([chunk(1), DeleteEntity(1)])

    # Then settlements do no harm
    store.commit([Tombstone(1, 1, 2), counters(11, 8), DeleteChunks(1, 1, 1), DeleteEntity(1)])
    store.commit([PutState(1, 3, 1, True), ClearState(1, 1, 9), SetChunkExpiry(1, 1, 5)])

    # And a message is refused, scheduled or not
    for message in (chunk(11), PutScheduled(1, 11, 1, b"")):
        with pytest.raises(ValueError, match="does not exist"):
            store.commit([message])


REFUSED: dict[str, Op] = {
    "a chunk of nothing": chunk(50, 0),
    "a chunk that overlaps the end of another": chunk(10, 2),
    "a chunk that overlaps the beginning of another": chunk(40, 2),
    "a chunk inside of another": chunk(3, 2),
    "a chunk around another": chunk(35, 20),
    "a chunk that is stored": chunk(1),
    "sequence number zero": chunk(0, 1),
    "a sequence number beyond the last": chunk(SEQ_MAX, 2),
    "a negative queue id": chunk(60, queue_id=-1),
    "a queue id beyond the last": entity(QUEUE_ID_MAX + 1),
    "a queue that never was": Tombstone(7, 1, 1),
    "a blob that is text": chunk(60, blob="text"),  # type: ignore[arg-type]
    "a time beyond 64 bits": chunk(60, expires_ms=1 << 63),
    "a tombstone backwards": Tombstone(1, 5, 4),
    "a tombstone on a tombstone": Tombstone(1, 6, 8),
    "a tombstone around a tombstone": Tombstone(1, 1, 9),
    "a tombstone beyond its chunk": Tombstone(1, 9, 11),
    "a tombstone without a chunk": Tombstone(1, 20, 20),
    "a negative delivery count": PutState(1, 1, -1, False),
    "a delivery count beyond 64 bits": PutState(1, 1, 1 << 63, False),
    "a scheduled number twice": PutScheduled(1, 70, 1, b""),
    "a negative count": counters(11, -1),
    "a next sequence number of zero": counters(0, 0),
    "a meta value of another kind": PutMeta("a", 1.5),  # type: ignore[arg-type]
    "a meta number beyond 64 bits": PutMeta("a", 1 << 63),
    "a count that is text": PutChunk(ChunkRow(1, 101, "3", 1, None, b"")),  # type: ignore[arg-type]
    "a time with a fraction": PutChunk(ChunkRow(1, 101, 1, 1.5, None, b"")),  # type: ignore[arg-type]
    "a state without a count": PutState(1, 1, None, False),  # type: ignore[arg-type]
    "what is not an op": "PutChunk",  # type: ignore[dict-item]
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_op_against_the_rules_is_refused_and_nothing_is_stored(store: Store, what: str) -> None:
    """M8: a refused commit stores nothing, and the store goes on."""
    # Given chunks, a tombstone and a scheduled message
    store.commit([chunk(1), chunk(41), chunk(90)])
    store.commit([Tombstone(1, 5, 6), PutScheduled(1, 70, 1, b"")])
    before = (all_chunks(store), store.load_scheduled(1, 0, 10))

    # When a commit does several good things and one that is not allowed
    good: list[Op] = [chunk(80), PutState(1, 1, 1, True), DeleteChunks(1, 90, 90)]
    with pytest.raises(ValueError):
        store.commit([*good, PutScheduled(1, 71, 1, b""), REFUSED[what]])

    # Then none of it happened, and the next commit succeeds
    assert (all_chunks(store), store.load_scheduled(1, 0, 10)) == before
    store.commit([chunk(80)])
    assert first_seqs(all_chunks(store)) == [1, 41, 80, 90]


def test_an_empty_queue_has_nothing_to_load(store: Store) -> None:
    assert store.load_chunks(1, 0, MEBIBYTE, 10) == []
    assert store.load_chunk_holding(1, 1) is None
    assert store.load_expired(1, 1 << 60, 10) == [] and store.next_expiry(1) is None
    assert store.load_due(1, 1 << 60, 10) == [] and store.next_due(1) is None
    assert store.load_scheduled(1, 0, 10) == [] and store.load_deferred_seqs(1, 0, 10) == []


def test_every_commit_has_a_number(store: Store) -> None:
    before = store.statistics().commit_number
    store.commit([chunk(1)])
    store.commit([chunk(11)])

    assert store.statistics().commit_number == before + 2


def test_a_store_that_is_not_open_says_so(store: Store) -> None:
    store.close()

    with pytest.raises(StoreFailed, match="not open"):
        store.commit([chunk(1)])
    with pytest.raises(StoreFailed, match="not open"):
        store.load_chunks(1, 0, 1, 1)
    store.open()
    with pytest.raises(StoreFailed, match="already open"):
        store.open()


def test_ids_are_remembered_page_by_page_and_forgotten_from_the_oldest(store: Store) -> None:
    """M3: what duplicate detection knows survives a restart."""
    # Given three pages of one queue and one of another
    pages = [SeenRow(1, page, 1_000 + page, bytes([page]) * 16) for page in (1, 2, 3)]
    other = SeenRow(2, 1, 5, bytes(32))
    store.commit([entity(2, "invoices"), *map(PutSeen, [*pages, other])])

    # When the oldest two are forgotten
    store.commit([ForgetSeen(1, 2)])
    store.close()

    # Then the last is there, and the other queue has lost nothing
    assert store.open().seen == {1: pages[2:], 2: [other]}
    with pytest.raises(ValueError):
        store.commit([PutSeen(pages[2])])


def test_the_ids_of_a_deleted_queue_are_forgotten(store: Store) -> None:
    """M3: a new queue begins without a memory."""
    store.commit([PutSeen(SeenRow(1, 1, 5, bytes(16)))])
    store.commit([DeleteEntity(1)])
    store.commit([PutSeen(SeenRow(1, 2, 5, bytes(16))), ForgetSeen(1, 2)])
    while store.maintain():
        pass
    store.close()

    assert store.open().seen == {}
