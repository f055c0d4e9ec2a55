"""The stored form of one message, and of the run of messages that a chunk holds.

Rule 1: the bare message (properties, application properties, body, footer) is kept byte for
        byte; only what the broker must read back is pulled out in front of it.
Rule 2: a plain message costs one byte of overhead, because most messages are plain.

    chunk blob = u32 length x count | record | record | ...
    record     = flags u8
                 [priority u8]                     if PRIORITY
                 [expires_ms i64, ttl_ms u32]      if EXPIRY
                 [pair count u16, length u32, raw] if ANNOTATIONS
                 [pair count u16, length u32, raw] if DELIVERY_ANNOTATIONS
                 bare message
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from struct import pack as pack_struct
from struct import unpack_from as unpack_struct_from
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from twinbus.broker.entities.facts import MessageKeys

PRIORITY = 0x01
EXPIRY = 0x02
ANNOTATIONS = 0x04
DELIVERY_ANNOTATIONS = 0x08

TTL_MS_HEADER_MAX = 0xFFFFFFFF
"""The AMQP header holds a TTL as an unsigned 32-bit number; longer ones are shown as this."""

PLAIN = b"\x00"
_EXPIRY = Struct(">qI")
_PAIRS = Struct(">HI")


@dataclass(slots=True)
class Record:
    """A stored message, taken apart."""

    bare: bytes
    priority: int | None = None
    expires_ms: int | None = None
    ttl_ms: int | None = None
    annotation_count: int = 0
    annotation_pairs: bytes = b""
    """User annotations as encoded key/value pairs, to be copied behind the broker's own."""
    delivery_annotation_count: int = 0
    delivery_annotation_pairs: bytes = b""
    """The same for delivery annotations, which few senders write."""


class MessageOrigin(NamedTuple):
    """How a message came to where it is now, for the witness. It is stored nowhere."""

    entity: str = ""
    """Where it was before; nothing if it was sent here."""
    number: int = 0
    """Its number there."""
    publication: int | None = None
    """What all copies of a topic's message have in common."""


@dataclass(slots=True)
class IncomingMessage:
    """A message on its way into a queue: its stored form and what decides its fate."""

    record: bytes
    expires_ms: int | None = None
    due_ms: int | None = None
    """Scheduled: becomes visible at this wall time."""
    facts: MessageKeys | None = None
    """Read for queues that need them (facts.py)."""
    trail: MessageOrigin | None = None


def pack_record(record: Record) -> bytes:
    """The stored form of ``record``."""
    flags = 0
    parts = [b""]
    if record.priority is not None:
        flags |= PRIORITY
        parts.append(bytes((record.priority,)))
    if record.expires_ms is not None:
        flags |= EXPIRY
        ttl_ms = TTL_MS_HEADER_MAX if record.ttl_ms is None else record.ttl_ms
        parts.append(_EXPIRY.pack(record.expires_ms, min(ttl_ms, TTL_MS_HEADER_MAX)))
    if record.annotation_count:
        flags |= ANNOTATIONS
        parts.append(_PAIRS.pack(record.annotation_count, len(record.annotation_pairs)))
        parts.append(record.annotation_pairs)
    if record.delivery_annotation_count:
        flags |= DELIVERY_ANNOTATIONS
        pairs = record.delivery_annotation_pairs
        parts += (_PAIRS.pack(record.delivery_annotation_count, len(pairs)), pairs)
    parts[0] = bytes((flags,))
    parts.append(record.bare)
    return b"".join(parts)


def unpack_record(blob: bytes, start: int, end: int) -> Record:
    """Take the record at ``blob[start:end]`` apart again."""
    flags = blob[start]
    position = start + 1
    if not flags:
        return Record(blob[position:end])
    record = Record(b"")
    if flags & PRIORITY:
        record.priority = blob[position]
        position += 1
    if flags & EXPIRY:
        record.expires_ms, record.ttl_ms = _EXPIRY.unpack_from(blob, position)
        position += _EXPIRY.size
    if flags & ANNOTATIONS:
        record.annotation_count, length = _PAIRS.unpack_from(blob, position)
        position += _PAIRS.size
        record.annotation_pairs = blob[position : position + length]
        position += length
    if flags & DELIVERY_ANNOTATIONS:
        record.delivery_annotation_count, length = _PAIRS.unpack_from(blob, position)
        position += _PAIRS.size
        record.delivery_annotation_pairs = blob[position : position + length]
        position += length
    record.bare = blob[position:end]
    return record


def expiry_of(blob: bytes, start: int) -> int | None:
    """When the record at ``start`` expires, without taking it apart."""
    flags = blob[start]
    if not flags & EXPIRY:
        return None
    position = start + (2 if flags & PRIORITY else 1)
    expires_ms: int = unpack_struct_from(">q", blob, position)[0]
    return expires_ms


def pack_chunk(records: Sequence[bytes]) -> bytes:
    """One blob for a run of records."""
    return pack_struct(f">{len(records)}I", *map(len, records)) + b"".join(records)


def chunk_starts(blob: bytes, count: int) -> array[int]:
    """Where each of ``count`` records begins, and, last, where the final one ends."""
    lengths = unpack_struct_from(f">{count}I", blob, 0)
    return array("I", accumulate(lengths, initial=4 * count))
