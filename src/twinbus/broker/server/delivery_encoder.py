"""Stored messages to the transfer frames of a receiver.

The bare message is sent as it was received. In front of it are the header, the lock token and the
broker's annotations, all of fixed width, so that one Struct.pack per message writes frame head,
transfer and sections together: half a microsecond instead of five.

    frame head | transfer | header | delivery annotations | message annotations | bare message
"""

from __future__ import annotations

from struct import Struct
from uuid import UUID

from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Symbol
from twinbus.broker.engine.chunk import Chunk
from twinbus.broker.engine.consumers import DeliveryBatch
from twinbus.broker.engine.stored_message import Record, unpack_record

DEFAULT_PRIORITY = 4

_SEQUENCE = encode_value(Symbol("x-opt-sequence-number")) + b"\x81"
_ENQUEUED = encode_value(Symbol("x-opt-enqueued-time")) + b"\x83"
_LOCKED_UNTIL = encode_value(Symbol("x-opt-locked-until")) + b"\x83"
_STATE = encode_value(Symbol("x-opt-message-state")) + b"\x54"
_LOCK_TOKEN_KEY = encode_value(Symbol("x-opt-lock-token")) + b"\x98"
_LOCK_TOKEN = b"\x00\x53\x71\xc1\x24\x02" + _LOCK_TOKEN_KEY

_I64 = Struct(">q")
_RUN = Struct(">Q")

STATE_ACTIVE, STATE_DEFERRED, STATE_SCHEDULED = 0, 1, 2


def token_uuid(token: bytes) -> UUID:
    """A lock token as in the SDK: the delivery tag read as a .NET GUID."""
    return UUID(bytes_le=token)


def header_section(priority: int, ttl_ms: int | None, delivery_count: int) -> bytes:
    """The header of a delivered message."""
    first = b"\x42" if delivery_count else b"\x41"
    ttl = b"\x40" if ttl_ms is None else b"\x70" + ttl_ms.to_bytes(4, "big")
    fields = (
        b"\x41\x50" + bytes((priority,)) + ttl + first + b"\x70" + delivery_count.to_bytes(4, "big")
    )
    return b"\x00\x53\x70\xc0" + bytes((len(fields) + 1, 5)) + fields


def delivery_annotations_section(token: bytes | None, record: Record) -> bytes:
    """The lock token if the message is locked, then the sender's delivery annotations."""
    count, pairs = record.delivery_annotation_count, record.delivery_annotation_pairs
    if not count:
        return b"" if token is None else _LOCK_TOKEN + token_uuid(token).bytes
    if token is not None:
        count, pairs = count + 1, _LOCK_TOKEN_KEY + token_uuid(token).bytes + pairs
    return b"\x00\x53\x71" + _map32(count, pairs)


def _map32(pair_count: int, pairs: bytes) -> bytes:
    size, count = len(pairs) + 4, 2 * pair_count
    return b"\xd1" + size.to_bytes(4, "big") + count.to_bytes(4, "big") + pairs


def annotations_section(
    seq: int,
    enqueued_ms: int,
    locked_until_ms: int | None,
    state: int,
    record: Record,
) -> bytes:
    """The broker's message annotations, then the sender's."""
    pairs = [_SEQUENCE + _I64.pack(seq), _ENQUEUED + _I64.pack(enqueued_ms)]
    if locked_until_ms is not None:
        pairs.append(_LOCKED_UNTIL + _I64.pack(locked_until_ms))
    if state:
        pairs.append(_STATE + bytes((state,)))
    body = b"".join(pairs) + record.annotation_pairs
    return b"\x00\x53\x72" + _map32(len(pairs) + record.annotation_count, body)


def delivered_message(
    chunk: Chunk,
    blob: bytes,
    index: int,
    *,
    token: bytes | None = None,
    locked_until_ms: int | None = None,
) -> bytes:
    """One message of a chunk for a receiver or a peek: the general, slower way."""
    record = unpack_record(blob, chunk.starts[index], chunk.starts[index + 1])
    state = STATE_DEFERRED if chunk.deferred >> index & 1 else STATE_ACTIVE
    return encode_record(
        record,
        chunk.first_seq + index,
        chunk.enqueued_ms,
        delivery_count=chunk.delivery_counts.get(index, 0),
        state=state,
        token=token,
        locked_until_ms=locked_until_ms,
    )


def encode_record(
    record: Record,
    seq: int,
    enqueued_ms: int,
    *,
    delivery_count: int = 0,
    state: int = STATE_ACTIVE,
    token: bytes | None = None,
    locked_until_ms: int | None = None,
) -> bytes:
    """A stored message with header and annotations in front of it."""
    priority = DEFAULT_PRIORITY if record.priority is None else record.priority
    return b"".join(
        (
            header_section(priority, record.ttl_ms, delivery_count),
            delivery_annotations_section(token, record),
            annotations_section(seq, enqueued_ms, locked_until_ms, state, record),
            record.bare,
        )
    )


# -- the fast way: plain messages, first delivery, one frame each -------------------------------

_FIRST_HEADER = header_section(DEFAULT_PRIORITY, None, 0)


def _pieces(
    channel: int, handle: int, run_id: int | None, enqueued_ms: int, locked_until_ms: int
) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """The parts of a frame around frame size, delivery id and the places of the sequence number.

    size | start | id | tag | seq | middle | seq (locked only) | annotations | seq | end | bare
    """
    start = b"\x02\x00" + channel.to_bytes(2, "big") + b"\x00\x53\x14\xc0\x20\x06"
    start += b"\x70" + handle.to_bytes(4, "big") + b"\x70"
    end = _ENQUEUED + _I64.pack(enqueued_ms)
    if run_id is None:
        tag_start, settled, lock_token = bytes(8), b"\x41", b""
    else:
        tag_start, settled = _RUN.pack(run_id), b"\x42"
        lock_token = _LOCK_TOKEN + UUID(bytes_le=tag_start + bytes(8)).bytes[:8]
        end += _LOCKED_UNTIL + _I64.pack(locked_until_ms)
    middle = b"\x43" + settled + b"\x42" + _FIRST_HEADER + lock_token
    size = 4 + len(_SEQUENCE) + 8 + len(end)
    count = 4 if run_id is None else 6
    annotations = b"\x00\x53\x72\xd1" + size.to_bytes(4, "big") + count.to_bytes(4, "big")
    return start, b"\xa0\x10" + tag_start, middle, annotations + _SEQUENCE, end


def _layout(run_id: int | None) -> Struct:
    start, tag, middle, annotations, end = map(len, _pieces(0, 0, run_id, 0, 0))
    second_seq = "" if run_id is None else "Q"
    return Struct(f">I{start}sI{tag}sQ{middle}s{second_seq}{annotations}sq{end}s")


_LOCKED_FRAME = _layout(0)
_SETTLED_FRAME = _layout(None)


def plain_frames(
    grant: DeliveryBatch, channel: int, handle: int, first_delivery_id: int
) -> list[bytes] | None:
    """One transfer frame for each message of a delivery batch.

    None when a message needs the general way: it has a header, annotations or a delivery count
    of its own.
    """
    chunk, blob, starts = grant.chunk, grant.blob, grant.chunk.starts
    first, last = grant.start, grant.start + grant.count
    if chunk.delivery_counts or chunk.deferred:
        return None
    run = grant.run
    until_ms = 0 if run is None else run.locked_until_ms
    run_id = None if run is None else run.run_id
    start, tag, middle, annotations, end = _pieces(
        channel, handle, run_id, chunk.enqueued_ms, until_ms
    )
    layout = _SETTLED_FRAME if run is None else _LOCKED_FRAME
    pack, overhead = layout.pack, layout.size - 1
    delivery_id = first_delivery_id
    seq = chunk.first_seq + first
    frames = []
    here = starts[first]
    for index in range(first, last):
        there = starts[index + 1]
        if blob[here]:
            return None
        size = overhead + there - here
        if run is None:
            head = pack(size, start, delivery_id, tag, seq, middle, annotations, seq, end)
        else:
            head = pack(size, start, delivery_id, tag, seq, middle, seq, annotations, seq, end)
        frames.append(head + blob[here + 1 : there])
        delivery_id = (delivery_id + 1) & 0xFFFFFFFF
        seq += 1
        here = there
    return frames


PLAIN_FRAME_OVERHEAD_BYTES = _LOCKED_FRAME.size
