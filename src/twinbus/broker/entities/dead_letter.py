"""A message on its way to the dead-letter queue: what is added to it, and what stays.

The reason and its description become application properties, which is where receivers look
for them. Everything else of the bare message is kept byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twinbus.amqp.decode import decode_value
from twinbus.amqp.encode import encode_value
from twinbus.amqp.limits import Budget
from twinbus.amqp.sections import scan_message
from twinbus.amqp.types import Long, Symbol
from twinbus.broker.entities.chunk import Chunk
from twinbus.broker.entities.outcome import DeadLetter
from twinbus.broker.entities.record import (
    IncomingMessage,
    Record,
    Trail,
    pack_record,
    unpack_record,
)

REASON = "DeadLetterReason"
DESCRIPTION = "DeadLetterErrorDescription"
# A receiver chooses these texts; a message must not outgrow what a receiver can take for them.
TEXT_CHARACTERS_MAX = 4_096

_APPLICATION_PROPERTIES = b"\x00\x53\x74"
_SOURCE = encode_value(Symbol("x-opt-deadletter-source"))
_ORIGINAL_SEQ = encode_value(Symbol("x-opt-enqueue-sequence-number"))


def dead_lettered(chunk: Chunk, index: int, outcome: DeadLetter, source: str) -> IncomingMessage:
    """The message as the dead-letter queue holds it. It does not expire there."""
    record = unpack_record(chunk.blob or b"", chunk.starts[index], chunk.starts[index + 1])
    return _moved(record, outcome, source, chunk.first_seq + index)


def dead_lettered_at_once(record: bytes, outcome: DeadLetter, source: str) -> IncomingMessage:
    """The same for a message that never got a number in the queue it was meant for."""
    return _moved(unpack_record(record, 0, len(record)), outcome, source, None)


def _moved(record: Record, outcome: DeadLetter, source: str, seq: int | None) -> IncomingMessage:
    # A message may have been forwarded or dead-lettered before. Of its sources the last one
    # counts, of its numbers the one that it got where it was sent to.
    pairs = [pair for pair in _pairs_of(record) if not pair.startswith(_SOURCE)]
    pairs.append(_SOURCE + encode_value(source))
    if seq is not None and not any(pair.startswith(_ORIGINAL_SEQ) for pair in pairs):
        pairs.append(_ORIGINAL_SEQ + encode_value(Long(seq)))
    moved = Record(
        _with_reason(record.bare, outcome),
        priority=record.priority,
        annotation_count=len(pairs),
        annotation_pairs=b"".join(pairs),
        delivery_annotation_count=record.delivery_annotation_count,
        delivery_annotation_pairs=record.delivery_annotation_pairs,
    )
    trail = None if seq is None else Trail(source, seq)
    return IncomingMessage(pack_record(moved), trail=trail)


def _pairs_of(record: Record) -> Iterator[bytes]:
    """The message annotations one by one, each a name and its value as they are encoded."""
    raw, position = record.annotation_pairs, 0
    for _ in range(record.annotation_count):
        start = position
        for _part in ("name", "value"):
            _value, position = decode_value(raw, position, len(raw), Budget())
        yield raw[start:position]


def _with_reason(bare: bytes, outcome: DeadLetter) -> bytes:
    added = {}
    if outcome.reason:
        added[REASON] = outcome.reason[:TEXT_CHARACTERS_MAX]
    if outcome.description:
        added[DESCRIPTION] = outcome.description[:TEXT_CHARACTERS_MAX]
    if not added:
        return bare
    sections = scan_message(bare, 0, len(bare), body_required=False)
    properties: dict[str, Any] = {}
    span = sections.application_properties
    if span is not None:
        properties, _end = decode_value(bare, span[0], span[1], Budget())
    before = 0 if sections.properties is None else sections.properties[1]
    section = _APPLICATION_PROPERTIES + encode_value({**properties, **added})
    # A message may have no body; then the section before it, or a footer, is the end.
    behind = sections.body_start if sections.body_start >= 0 else (span or (0, before))[1]
    return bare[:before] + section + bare[behind:]
