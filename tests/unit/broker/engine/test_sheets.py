"""Copies that lie on one sheet, and those that do not."""

from __future__ import annotations

from twinbus.broker.engine.stored_message import IncomingMessage, pack_chunk
from twinbus.broker.engine.write_batch import (
    CHUNK_BYTES_MAX,
    CHUNK_COUNT_MAX,
    SharedBodyWriter,
    group_by_shared_body,
    packed,
)


def messages(*records: bytes) -> list[IncomingMessage]:
    return [IncomingMessage(record) for record in records]


def placed(*records: bytes) -> list[IncomingMessage]:
    writer = SharedBodyWriter()
    return [writer.place(message) for message in messages(*records)]


def test_plain_messages_share_nothing() -> None:
    plain = messages(b"a", b"b")
    assert list(group_by_shared_body(plain)) == [plain]
    assert packed(plain) == (pack_chunk([b"a", b"b"]), None)


def test_everything_on_a_sheet_is_its_blob_and_not_a_copy_of_it() -> None:
    """M1: ten subscriptions that get everything hold one object."""
    together = placed(b"a", b"b", b"c")
    (first, share), (second, _) = packed(together), packed(together)
    assert first is second
    assert share is not None
    assert (share.selection, share.sheet.count) == (0b111, 3)


def test_a_part_of_a_sheet_is_a_selection() -> None:
    a, _b, c = placed(b"a", b"b", b"c")
    blob, share = packed([a, c])
    assert blob == pack_chunk([b"a", b"c"])
    assert share is not None
    assert share.selection == 0b101


def test_messages_out_of_order_hold_their_own_bytes() -> None:
    """M1: a selection has no order of its own, so it is not used where order differs."""
    a, b, c = placed(b"a", b"b", b"c")
    for run in ([c, a], [a, a], [b, a, c]):
        assert packed(run) == (pack_chunk([message.record for message in run]), None)


def test_a_sheet_is_as_large_as_a_chunk_at_most() -> None:
    half = bytes(CHUNK_BYTES_MAX // 2)
    runs = list(group_by_shared_body(placed(half, half, half, bytes(2 * CHUNK_BYTES_MAX), b"x")))
    assert [len(run) for run in runs] == [2, 1, 1, 1]
    many = list(group_by_shared_body(placed(*[b"x"] * (CHUNK_COUNT_MAX + 1))))
    assert [len(run) for run in many] == [CHUNK_COUNT_MAX, 1]


def test_nothing_is_added_to_a_sheet_that_was_packed() -> None:
    """M8: a sheet belongs to one transaction."""
    writer = SharedBodyWriter()
    first = writer.place(IncomingMessage(b"a"))
    _blob, share = packed([first])
    second = writer.place(IncomingMessage(b"b"))
    assert second.draft is not first.draft
    assert share is not None
    assert share.sheet.count == 1
