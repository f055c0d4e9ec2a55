"""Sessions in a store: both drivers keep the same promises."""

from __future__ import annotations

import pytest

from twinbus.broker.storage.interface import (
    DeleteChunks,
    DeleteEntity,
    PutSessionState,
    PutState,
    SessionCounts,
    Store,
    Tombstone,
    session_state_bytes,
)
from verification.crash_consistency.builders import (
    MEBIBYTE,
    chunk,
    counters,
    entity,
    first_seqs,
    in_session,
)


def test_a_session_is_read_without_the_others(store: Store) -> None:
    """M3: chunks of one session, in order."""
    store.commit(
        [*in_session("a", 1), *in_session("b", 11), *in_session("a", 21), *in_session("", 31)]
    )
    store.commit([Tombstone(1, 23, 24), PutState(1, 21, 3, True), counters(41, 38, deferred=1)])

    first, second = store.load_chunks(1, 0, MEBIBYTE, 10, "a")

    assert (first.row.first_seq, first.row.session) == (1, "a")
    assert (second.gone, second.states) == ([(23, 24)], {21: (3, True)})
    assert first_seqs(store.load_chunks(1, 1, MEBIBYTE, 10, "a")) == [21]
    assert first_seqs(store.load_chunks(1, 0, 1, 10, "a")) == [1]
    assert first_seqs(store.load_chunks(1, 0, MEBIBYTE, 10, "")) == [31]
    assert store.load_chunks(1, 0, MEBIBYTE, 10, "A") == []
    # Without a session all of them, as ever, each with its session
    everything = store.load_chunks(1, 0, MEBIBYTE, 10)
    assert [loaded.row.session for loaded in everything] == ["a", "b", "a", ""]
    holding = store.load_chunk_holding(1, 15)
    assert holding is not None and holding.row.session == "b"


def test_the_books_of_sessions_are_found_when_a_store_is_opened(store: Store) -> None:
    """M3: what is gone or deferred does not count, and the oldest session comes first."""
    store.commit([*in_session("b", 1), *in_session("a", 11), *in_session("b", 21)])
    store.commit([*in_session("gone", 31), *in_session("aside", 41, 1), counters(42, 41)])
    store.commit([Tombstone(1, 1, 4), Tombstone(1, 23, 23), PutState(1, 41, 1, True)])
    store.commit([PutState(1, 12, 2, False), DeleteChunks(1, 31, 31)])
    store.commit([counters(42, 26, deferred=1)])

    store.close()
    recovered = store.open()

    assert recovered.sessions == {1: [SessionCounts("b", 15, 30), SessionCounts("a", 10, 20)]}


def test_a_queue_without_sessions_has_no_books(store: Store) -> None:
    store.commit([chunk(1), counters(11, 10), PutSessionState(1, "a", b"state only", 5)])
    store.close()
    assert store.open().sessions == {}


def test_a_queue_whose_sessions_hold_only_deferred_messages_has_no_books(store: Store) -> None:
    """M3: nothing to hand out is the same for both drivers."""
    store.commit([*in_session("aside", 1, 1), PutState(1, 1, 1, True), counters(2, 1, deferred=1)])
    store.close()
    assert store.open().sessions == {}


def test_a_state_is_kept_replaced_and_forgotten(store: Store) -> None:
    """M3: the state of a session is its own and outlives its messages."""
    binary = bytes(range(256)) * 1_024
    store.commit([PutSessionState(1, "a", b"one", 5), PutSessionState(1, "b", b"", 6)])
    assert store.load_session_state(1, "a") == b"one"
    assert store.load_session_state(1, "b") == b""
    assert store.load_session_state(1, "c") is None

    store.commit([PutSessionState(1, "a", binary, 7)])
    store.close()
    store.open()
    assert store.load_session_state(1, "a") == binary
    assert store.load_sessions_updated(1, 0, None, 10) == (["a", "b"], None)
    assert store.load_sessions_updated(1, 7, None, 10) == (["a"], None)
    assert store.load_sessions_updated(1, 0, "a", 10) == (["b"], None)
    assert store.load_sessions_updated(1, 0, None, 1) == (["a"], "a")
    assert store.load_sessions_updated(1, 7, "a", 1) == ([], "b")
    assert store.load_sessions_updated(1, 7, "b", 1) == ([], None)

    store.commit([PutSessionState(1, "a", None, 8), PutSessionState(1, "never", None, 8)])
    assert store.load_session_state(1, "a") is None
    assert store.load_sessions_updated(1, 0, None, 10) == (["b"], None)


def test_what_states_take_is_counted_when_the_store_is_opened(store: Store) -> None:
    """M3, M13: from the rows, so that no store is too old for it."""
    store.commit([PutSessionState(1, "a", bytes(1_000), 5), PutSessionState(1, "é", b"", 6)])
    store.commit([PutSessionState(1, "b", b"gone", 5), PutSessionState(1, "b", None, 6)])
    store.close()
    expected = session_state_bytes("a", bytes(1_000)) + session_state_bytes("é", b"")
    assert expected == 1 + 1_000 + 64 + 2 + 64
    assert store.open().state_bytes == {1: expected}
    store.commit([DeleteEntity(1)])
    store.close()
    assert store.open().state_bytes == {}


def test_sessions_are_looked_at_in_pages_from_the_one_without_a_name_on(store: Store) -> None:
    """M3: every one once, in the order of their UTF-8, whatever the size of a page."""
    names = ["", "a", "aa", "b", "é", "\U0001f600", "\uffff"]
    store.commit([PutSessionState(1, name, b"x", 5) for name in names])
    for count_max in (1, 2, 3, 100):
        found: list[str] = []
        after: str | None = None
        while True:
            page, after = store.load_sessions_updated(1, 0, after, count_max)
            found += page
            if after is None:
                break
        assert found == sorted(names, key=str.encode)


def test_sessions_go_with_their_queue(store: Store) -> None:
    """M3, M5: another queue keeps the session of the same name."""
    store.commit([entity(2, "other"), PutSessionState(2, "a", b"other", 5)])
    store.commit([*in_session("a", 1), counters(11, 10), PutSessionState(1, "a", b"one", 5)])

    store.commit([DeleteEntity(1)])
    # What comes too late for it is dropped like every other change
    store.commit([PutSessionState(1, "a", b"late", 6)])
    while store.maintain():
        pass

    assert store.load_session_state(1, "a") is None
    assert store.load_chunks(1, 0, MEBIBYTE, 10, "a") == []
    assert store.load_session_state(2, "a") == b"other"
    store.verify_all()


@pytest.mark.parametrize(
    "op",
    [
        PutSessionState(1, "half \ud800 a character", b"", 5),
        PutSessionState(1, 5, b"", 5),  # type: ignore[arg-type]
        PutSessionState(1, "a", "text", 5),  # type: ignore[arg-type]
        PutSessionState(1, "a", b"", 1 << 63),
        PutSessionState(9, "a", b"", 5),
        *in_session("half \ud800 a character", 1),
    ],
)
def test_what_breaks_the_port_is_refused(store: Store, op: PutSessionState) -> None:
    with pytest.raises(ValueError, match=r"."):
        store.commit([op])
    store.commit([PutSessionState(1, "a", b"the store goes on", 5)])
