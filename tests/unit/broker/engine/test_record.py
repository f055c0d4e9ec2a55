"""The stored form of messages comes back as it went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.broker.engine.stored_message import (
    PLAIN,
    TTL_MS_HEADER_MAX,
    Record,
    chunk_starts,
    expiry_of,
    pack_chunk,
    pack_record,
    unpack_record,
)

RECORDS = st.builds(
    Record,
    bare=st.binary(max_size=60),
    priority=st.none() | st.integers(0, 255),
    expires_ms=st.none() | st.integers(-(2**62), 2**62),
    ttl_ms=st.integers(0, TTL_MS_HEADER_MAX),
    annotation_count=st.just(0),
    annotation_pairs=st.just(b""),
) | st.builds(
    Record,
    bare=st.binary(max_size=60),
    annotation_count=st.integers(1, 65_535),
    annotation_pairs=st.binary(min_size=1, max_size=60),
    delivery_annotation_count=st.integers(1, 65_535),
    delivery_annotation_pairs=st.binary(min_size=1, max_size=60),
)


@given(st.lists(RECORDS, min_size=1, max_size=8))
def test_records_come_back_from_a_chunk(records: list[Record]) -> None:
    # Given a chunk of records
    packed = [pack_record(record) for record in records]
    blob = pack_chunk(packed)

    # When it is taken apart
    starts = chunk_starts(blob, len(records))
    again = [unpack_record(blob, starts[i], starts[i + 1]) for i in range(len(records))]

    # Then they are the same; a TTL is only kept with an expiry
    for record, unpacked in zip(records, again, strict=True):
        expected_ttl = record.ttl_ms if record.expires_ms is not None else None
        assert (unpacked.bare, unpacked.priority) == (record.bare, record.priority)
        assert (unpacked.expires_ms, unpacked.ttl_ms) == (record.expires_ms, expected_ttl)
        assert unpacked.annotation_count == record.annotation_count
        assert unpacked.annotation_pairs == record.annotation_pairs
        assert unpacked.delivery_annotation_count == record.delivery_annotation_count
        assert unpacked.delivery_annotation_pairs == record.delivery_annotation_pairs


@given(st.lists(RECORDS, min_size=1, max_size=8))
def test_an_expiry_is_read_without_taking_the_record_apart(records: list[Record]) -> None:
    blob = pack_chunk([pack_record(record) for record in records])
    starts = chunk_starts(blob, len(records))

    assert [expiry_of(blob, starts[i]) for i in range(len(records))] == [
        record.expires_ms for record in records
    ]


def test_a_plain_message_costs_one_byte() -> None:
    assert pack_record(Record(b"hello")) == PLAIN + b"hello"


@pytest.mark.parametrize("ttl_ms", [None, TTL_MS_HEADER_MAX + 1, 2**60])
def test_a_time_to_live_too_long_for_the_header_is_shown_as_the_longest(ttl_ms: int | None) -> None:
    packed = pack_record(Record(b"", expires_ms=2**60, ttl_ms=ttl_ms))

    assert unpack_record(packed, 0, len(packed)).ttl_ms == TTL_MS_HEADER_MAX
    assert expiry_of(packed, 0) == 2**60
