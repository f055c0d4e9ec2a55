"""How a receiver can settle a locked message (rule M2), and what dead-lettering adds to it.

The reason and the description of a dead letter become application properties, where receivers
expect them. Everything else of the bare message is kept byte for byte.

Rule 1: what is added counts against the quota of the entity. One frame of a receiver can add its
        texts to thousands of messages: if the quota has no room for them, they are shortened and
        the message is still moved, because a full queue must not keep poison messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Long, Symbol
from twinbus.amqp.limits import STORED_LIMITS, Budget
from twinbus.amqp.message.sections import scan_to_body
from twinbus.broker.engine.chunk import Chunk
from twinbus.broker.engine.stored_message import (
    IncomingMessage,
    MessageOrigin,
    Record,
    pack_record,
    unpack_record,
)


@dataclass(frozen=True, slots=True)
class Complete:
    """Processed: remove it."""

    forwarded_to: str = ""
    """The entity to which the broker has forwarded it, if any."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Not processed: deliver it again and count the delivery."""


@dataclass(frozen=True, slots=True)
class Release:
    """Not used: deliver it again without counting the delivery."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Deferred: received by its sequence number only."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Cannot be processed: move it to the dead-letter queue."""

    reason: str = ""
    description: str = ""


SettlementOutcome = Complete | Abandon | Release | Defer | DeadLetter

COMPLETE = Complete()
ABANDON = Abandon()
RELEASE = Release()
DEFER = Defer()

# The reasons of Azure Service Bus itself; receivers of dead-letter queues expect these words.
EXPIRED = DeadLetter("TTLExpiredException", "The message expired and was dead lettered.")
MAX_DELIVERIES = DeadLetter(
    "MaxDeliveryCountExceeded",
    "Message could not be consumed after the maximum number of delivery attempts.",
)
NO_SESSION_ID = DeadLetter(
    "Session id is null.",
    "Session enabled entity doesn't allow a message whose session identifier is null.",
)


REASON = "DeadLetterReason"
DESCRIPTION = "DeadLetterErrorDescription"
# A receiver chooses these texts; with them a message must not become too large to be received.
TEXT_CHARACTERS_MAX = 4_096
# The length of a reason in a full queue.
SHORT_CHARACTERS_MAX = 64

_KEYS = (REASON.encode(), DESCRIPTION.encode())
_MAP8, _MAP32 = 0xC1, 0xD1
_APPLICATION_PROPERTIES = b"\x00\x53\x74"
_SOURCE = encode_value(Symbol("x-opt-deadletter-source"))
_ORIGINAL_SEQ = encode_value(Symbol("x-opt-enqueue-sequence-number"))


def dead_lettered(
    chunk: Chunk, index: int, outcome: DeadLetter, source: str, blob: bytes
) -> IncomingMessage:
    """The message as the dead-letter queue stores it. It does not expire there."""
    record = unpack_record(blob, chunk.starts[index], chunk.starts[index + 1])
    return _moved(record, outcome, source, chunk.first_seq + index)


def dead_lettered_at_once(record: bytes, outcome: DeadLetter, source: str) -> IncomingMessage:
    """The same for a message that has no sequence number in its queue."""
    return _moved(unpack_record(record, 0, len(record)), outcome, source, None)


def _moved(record: Record, outcome: DeadLetter, source: str, seq: int | None) -> IncomingMessage:
    # A message may have been forwarded or dead-lettered before. It keeps its last source, and the
    # sequence number of its first entity.
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
    trail = None if seq is None else MessageOrigin(source, seq)
    return IncomingMessage(pack_record(moved), trail=trail)


def _pairs_of(record: Record) -> Iterator[bytes]:
    """The message annotations one by one, each an encoded name and value."""
    raw, position = record.annotation_pairs, 0
    for _ in range(record.annotation_count):
        start = position
        for _part in ("name", "value"):
            _value, position = decode_value(raw, position, len(raw), Budget(STORED_LIMITS))
        yield raw[start:position]


class _Texts(NamedTuple):
    """The texts of an outcome, encoded once for all messages that get them."""

    values: dict[str, str]
    pairs: bytes
    section: bytes
    """For a message without application properties."""


@lru_cache(maxsize=16)
def _texts(outcome: DeadLetter) -> _Texts:
    values = {}
    if outcome.reason:
        values[REASON] = outcome.reason[:TEXT_CHARACTERS_MAX]
    if outcome.description:
        values[DESCRIPTION] = outcome.description[:TEXT_CHARACTERS_MAX]
    pairs = b"".join(encode_value(name) + encode_value(text) for name, text in values.items())
    return _Texts(values, pairs, _APPLICATION_PROPERTIES + encode_value(values))


def text_bytes(outcome: DeadLetter) -> int:
    """How many bytes the texts add to a message."""
    return len(_texts(outcome).pairs)


def shorten(outcome: DeadLetter) -> DeadLetter:
    """The outcome with a short reason, for a full queue."""
    return DeadLetter(outcome.reason[:SHORT_CHARACTERS_MAX])


def _with_reason(bare: bytes, outcome: DeadLetter) -> bytes:
    texts = _texts(outcome)
    if not texts.values:
        return bare
    # The message was checked when it arrived.
    sections = scan_to_body(bare, 0, len(bare), STORED_LIMITS)
    span = sections.application_properties
    before = 0 if sections.properties is None else sections.properties[1]
    section = texts.section
    if span is not None:
        section = _APPLICATION_PROPERTIES + _with_pairs(bare[span[0] : span[1]], texts)
    # A message may have no body; then it ends with the section before, or with a footer.
    behind = sections.body_start if sections.body_start >= 0 else (span or (0, before))[1]
    return bare[:before] + section + bare[behind:]


def _with_pairs(properties: bytes, texts: _Texts) -> bytes:
    """Encoded application properties with the texts added, or replaced in their places."""
    if any(key in properties for key in _KEYS) or properties[0] not in (_MAP8, _MAP32):
        values: dict[str, Any]
        values, _end = decode_value(properties, 0, len(properties), Budget(STORED_LIMITS))
        return encode_value({**values, **texts.values})
    width = 1 if properties[0] == _MAP8 else 4
    count = int.from_bytes(properties[1 + width : 1 + 2 * width], "big") + 2 * len(texts.values)
    pairs = properties[1 + 2 * width :] + texts.pairs
    return b"\xd1" + (len(pairs) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + pairs
