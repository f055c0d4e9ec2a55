"""A message as it is stored: its record, its ids and its partition.

    chunk blob = u32 length x count | record | record | ...
    record     = flags u8
                 [priority u8]                     if PRIORITY
                 [expires_ms i64, ttl_ms u32]      if EXPIRY
                 [pair count u16, length u32, raw] if ANNOTATIONS
                 [pair count u16, length u32, raw] if DELIVERY_ANNOTATIONS
                 bare message

The ids of a message are only read for queues that need them (``QueueDescription.needs_facts``).

A partitioned entity has sixteen partitions (rules M3, F2). All of them are in one store and are
received from in one order. Each has its own share of the rate limit: a busy one is throttled and
the others are not. A message's partition follows from the first of these that it has:

    session id --> partition key --> message id, if duplicates are detected --> each in turn

Rule 1: the bare message (properties, application properties, body, footer) is kept byte for
        byte; only what the broker must read back is stored in front of it.
Rule 2: a plain message costs one byte of overhead, because most messages are plain.
Rule 3: equal keys have the same partition, in every process and for ever.
Rule 4: a session id and a partition key that differ contradict each other, and are refused.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from struct import Struct
from struct import pack as pack_struct
from struct import unpack_from as unpack_struct_from
from typing import Final, NamedTuple
from zlib import crc32

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.limits import STORED_LIMITS, UINT_MAX, Budget
from twinbus.amqp.message.properties import property_field
from twinbus.amqp.message.sections import scan_to_body
from twinbus.broker.engine.descriptions import QueueDescription

__all__ = [
    "ANNOTATIONS",
    "DELIVERY_ANNOTATIONS",
    "DIGEST_BYTES",
    "EXPIRY",
    "PARTITION_COUNT",
    "PLAIN",
    "PRIORITY",
    "TTL_MS_HEADER_MAX",
    "IncomingMessage",
    "MessageKeys",
    "MessageOrigin",
    "PartitionAssigner",
    "Record",
    "annotation_of",
    "chunk_starts",
    "digest_of",
    "expiry_of",
    "facts_of",
    "keys_agree",
    "pack_chunk",
    "pack_record",
    "partition_of",
    "session_of",
    "unpack_record",
]

PRIORITY = 0x01
EXPIRY = 0x02
ANNOTATIONS = 0x04
DELIVERY_ANNOTATIONS = 0x08

TTL_MS_HEADER_MAX = UINT_MAX
"""The AMQP header has a TTL of 32 bits; a longer one becomes this value."""

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
    """User annotations as encoded key/value pairs, to be copied after the broker's own."""
    delivery_annotation_count: int = 0
    delivery_annotation_pairs: bytes = b""
    """The same for delivery annotations, which few senders use."""


class MessageOrigin(NamedTuple):
    """Where a message was before, for the audit log. It is not stored."""

    entity: str = ""
    """Its previous entity; "" if it was sent here."""
    number: int = 0
    """Its number there."""
    publication: int | None = None
    """The number that all copies of a topic's message have in common."""


@dataclass(slots=True)
class IncomingMessage:
    """A message that enters a queue: its stored form, and what decides what happens to it."""

    record: bytes
    expires_ms: int | None = None
    due_ms: int | None = None
    """Scheduled: becomes visible at this wall time."""
    facts: MessageKeys | None = None
    """Read for queues that need them (stored_message.py)."""
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


# With 16 bytes, 10 million ids collide with a probability of 1 in 10 ** 24.
DIGEST_BYTES: Final = 16

_MESSAGE_ID, _GROUP_ID = 0, 10
_PARTITION_KEY = "x-opt-partition-key"


class MessageKeys(NamedTuple):
    """The ids of one message."""

    message_id: str | None
    """With its type in front when it is not text: the number 1 is not the text "1"."""
    session_id: str | None
    partition_key: str | None
    arrived_ms: int = 0
    """When it arrived, on the wall clock."""
    partition: int | None = None
    """Its partition, if it has been assigned."""
    digest: bytes | None = None
    """Its digest for duplicate detection, if it has been computed."""


def facts_of(record: bytes, arrived_ms: int = 0) -> MessageKeys:
    """The ids of a stored message."""
    taken_apart = unpack_record(record, 0, len(record))
    bare = taken_apart.bare
    # The message was checked when it arrived.
    span = scan_to_body(bare, 0, len(bare), STORED_LIMITS).properties
    message_id = session_id = None
    if span is not None:
        message_id = property_field(bare, span, _MESSAGE_ID)
        session_id = property_field(bare, span, _GROUP_ID)
    return MessageKeys(
        _as_text(message_id),
        session_id if isinstance(session_id, str) else None,
        _partition_key(taken_apart),
        arrived_ms,
    )


def digest_of(facts: MessageKeys, *, is_partitioned: bool) -> bytes | None:
    """The digest of a message's id; None if it has no id.

    ``is_partitioned``: equal ids in different partitions are different (as in Azure).
    """
    text = facts.message_id
    if not text:
        return None
    if is_partitioned:
        text = f"{facts.session_id or facts.partition_key or ''}\0{text}"
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def session_of(message: IncomingMessage) -> str | None:
    """The session that a message belongs to."""
    return (message.facts or facts_of(message.record)).session_id


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return f"{type(value).__name__}:{value!r}"


def _partition_key(record: Record) -> str | None:
    key = annotation_of(record, _PARTITION_KEY)
    return key if isinstance(key, str) else None


def annotation_of(record: Record, name: str) -> object:
    """The value of one annotation of a message, or None."""
    raw, position = record.annotation_pairs, 0
    for _ in range(record.annotation_count):
        key, position = decode_value(raw, position, len(raw), Budget(STORED_LIMITS))
        value, position = decode_value(raw, position, len(raw), Budget(STORED_LIMITS))
        if str(key) == name:
            found: object = value
            return found
    return None


# As in Azure Service Bus.
PARTITION_COUNT: Final = 16


def partition_of(facts: MessageKeys | None, *, by_message_id: bool = False) -> int | None:
    """The partition of a message that has been assigned one or has a key; None: any partition."""
    if facts is None:
        return None
    if facts.partition is not None:
        return facts.partition
    key = facts.session_id or facts.partition_key
    if not key and by_message_id:
        key = facts.message_id
    return crc32(key.encode()) % PARTITION_COUNT if key else None


def keys_agree(facts: MessageKeys) -> bool:
    """Whether session id and partition key are equal, or one of them is missing."""
    both = facts.session_id is not None and facts.partition_key is not None
    return not both or facts.session_id == facts.partition_key


class PartitionAssigner:
    """Assigns partitions to the messages of one sender; without a key each takes the next."""

    def __init__(self) -> None:
        self._next = 0

    def assign(
        self, messages: list[IncomingMessage], description: QueueDescription, ping_count: int = 0
    ) -> Counter[int]:
        """Assign a partition to every message; returns the count of each, pings included."""
        shares: Counter[int] = Counter()
        for message in messages:
            facts = message.facts or MessageKeys(None, None, None)
            partition = partition_of(facts, by_message_id=description.requires_duplicate_detection)
            if partition is None:
                partition = self._take()
            message.facts = facts._replace(partition=partition)
            shares[partition] += 1
        if ping_count:
            shares[self._take()] += ping_count
        return shares

    def _take(self) -> int:
        taken, self._next = self._next, (self._next + 1) % PARTITION_COUNT
        return taken
