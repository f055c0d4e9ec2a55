"""From a transfer's payload to messages a queue can take, or to a clear refusal.

Everything is checked here, before a byte is stored: what cannot be delivered again later must
not be accepted now. The bare message is sliced, never re-encoded; header and annotations, which
the broker rewrites on delivery, are taken apart.

    payload --batch?--> messages --ping?--> accepted and dropped (M7)
                            |
                            +--> record, expiry, due time
"""

from __future__ import annotations

from dataclasses import dataclass

from twinbus.amqp.decode import decode_value
from twinbus.amqp.encode import encode_value
from twinbus.amqp.errors import AmqpError, Condition, DecodeError
from twinbus.amqp.limits import AmqpLimits, Budget
from twinbus.amqp.plain_messages import PlainMessages
from twinbus.amqp.sections import (
    MessageSections,
    iter_batch,
    property_field,
    scan_message,
)
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.facts import facts_of
from twinbus.broker.entities.partitions import keys_agree
from twinbus.broker.entities.record import PLAIN, IncomingMessage, Record, pack_record
from twinbus.broker.property_limits import (
    ID_CHARACTERS_MAX,
    PROPERTY_BYTES_MAX,
    check_ids,
    check_property_sizes,
)
from twinbus.clock import Instant

FORMAT_MESSAGE = 0
FORMAT_BATCH = 0x80013700

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
_PING_BYTES = PING_CONTENT_TYPE.encode()
PING_TTL_MS_MAX = 1_000

TTL_MS_UNSPECIFIED = 0xFFFFFFFF
# The years 1 to 9999, which is what every SDK can show as a date.
WALL_MS_MIN, WALL_MS_MAX = -62_135_596_800_000, 253_402_300_799_999

SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
# What only the broker may say about a message; a sender that resends one still carries them.
BROKER_ANNOTATIONS = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-deadletter-source",
    }
)

_CONTENT_TYPE, _EXPIRY_TIME, _CREATION_TIME = 6, 8, 9


@dataclass(slots=True)
class Ingested:
    """What a transfer contained."""

    messages: list[IncomingMessage]
    ping_count: int
    byte_count: int


def ingest(
    payload: bytes,
    message_format: int,
    description: QueueDescription,
    limits: AmqpLimits,
    now: Instant,
    plain: PlainMessages | None = None,
) -> Ingested:
    """Check and take apart one transfer; raises AmqpError with what is wrong with it.

    ``plain`` remembers what the messages of one sender look like.
    """
    if message_format == FORMAT_MESSAGE:
        spans = [(0, len(payload))]
    elif message_format == FORMAT_BATCH:
        spans = iter_batch(payload, 0, len(payload))
    else:
        raise AmqpError(
            Condition.NOT_IMPLEMENTED,
            f"Message format 0x{message_format:08x} is unknown. Use 0 or 0x{FORMAT_BATCH:08x}.",
        )
    may_ping = _PING_BYTES in payload
    may_be_plain = not may_ping and description.default_ttl_ms is None
    plain = plain or plain_messages()
    size_max = description.max_message_size_bytes
    messages: list[IncomingMessage] = []
    ping_count = 0
    for start, end in spans:
        if may_be_plain and end - start <= size_max and plain.accepts(payload, start, end):
            messages.append(IncomingMessage(PLAIN + payload[start:end]))
            continue
        sections = _checked(payload, start, end, description, limits)
        if may_ping and is_ping(payload, sections):
            ping_count += 1
        else:
            messages.append(_incoming(payload, sections, description, limits, now))
    if description.needs_facts:
        _read_facts(messages, description, now)
    return Ingested(messages, ping_count, len(payload))


def plain_messages() -> PlainMessages:
    """For one sender. Properties short enough for this hold no id that is too long."""
    return PlainMessages(ID_CHARACTERS_MAX)


def ingest_run(
    payloads: list[bytes],
    description: QueueDescription,
    limits: AmqpLimits,
    now: Instant,
    plain: PlainMessages,
) -> list[IncomingMessage] | None:
    """The messages of several transfers, one in each; None if one of them may be a ping.

    Raises AmqpError when one of them is wrong, without saying which.
    """
    messages = []
    may_be_plain = description.default_ttl_ms is None
    size_max = description.max_message_size_bytes
    for payload in payloads:
        if _PING_BYTES in payload:
            return None
        size = len(payload)
        if may_be_plain and size <= size_max and plain.accepts(payload, 0, size):
            messages.append(IncomingMessage(PLAIN + payload))
            continue
        sections = _checked(payload, 0, len(payload), description, limits)
        messages.append(_incoming(payload, sections, description, limits, now))
    if description.needs_facts:
        _read_facts(messages, description, now)
    return messages


def _read_facts(
    messages: list[IncomingMessage], description: QueueDescription, now: Instant
) -> None:
    for message in messages:
        message.facts = facts_of(message.record, now.wall_ms)
        if description.requires_session and message.facts.session_id is None:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                f"The queue {description.display_path!r} has sessions, and the message names none. "
                "Set its session id (the property group-id).",
            )
        if description.enable_partitioning and not keys_agree(message.facts):
            raise AmqpError(
                Condition.NOT_ALLOWED,
                "The session id and the partition key of the message differ. Make them equal, or "
                "leave one of them out.",
            )


def _checked(
    payload: bytes, start: int, end: int, description: QueueDescription, limits: AmqpLimits
) -> MessageSections:
    """The sections of one message that can be delivered again later."""
    if end - start > description.max_message_size_bytes:
        raise _too_large(end - start, description.max_message_size_bytes)
    # The Azure SDK sends ServiceBusMessage(None) without a body section.
    sections = scan_message(payload, start, end, limits, body_required=False)
    if sections.properties_start == sections.bare_end:
        raise DecodeError("a message has neither properties nor a body. Add a data section.")
    if end - start > PROPERTY_BYTES_MAX:
        check_property_sizes(payload, sections, limits)
    return sections


def is_ping(payload: bytes, sections: MessageSections) -> bool:
    """Whether it is a ping; a message that pretends to be one is refused, not swallowed."""
    if sections.properties is None:
        return False
    if property_field(payload, sections.properties, _CONTENT_TYPE) != PING_CONTENT_TYPE:
        return False
    ttl_ms = sections.header.ttl_ms if sections.header else None
    if sections.body_empty and ttl_ms is not None and ttl_ms <= PING_TTL_MS_MAX:
        return True
    raise AmqpError(
        Condition.ARGUMENT_ERROR,
        f"The content type {PING_CONTENT_TYPE} is kept for pings, which have an empty body and "
        "live for one second. Choose another content type.",
    )


def _incoming(
    payload: bytes,
    sections: MessageSections,
    description: QueueDescription,
    limits: AmqpLimits,
    now: Instant,
) -> IncomingMessage:
    span = sections.properties
    # Only a long properties section can hold a long id.
    if span is not None and span[1] - span[0] > ID_CHARACTERS_MAX:
        check_ids(payload, span)
    bare = payload[sections.properties_start : sections.bare_end]
    if (
        sections.header is None
        and sections.message_annotations is None
        and sections.delivery_annotations is None
        and description.default_ttl_ms is None
    ):
        return IncomingMessage(PLAIN + bare)
    record = Record(bare)
    due_ms = None
    if sections.delivery_annotations is not None:
        _take_delivery_annotations(payload, sections.delivery_annotations, record, limits)
    if sections.message_annotations is not None:
        due_ms = _take_annotations(payload, sections.message_annotations, record, limits)
        if due_ms is not None and due_ms <= now.wall_ms:
            due_ms = None
    if sections.header is not None:
        record.priority = sections.header.priority
    start_ms = now.wall_ms if due_ms is None else due_ms
    _set_expiry(record, _ttl_ms(payload, sections, description), start_ms)
    return IncomingMessage(pack_record(record), record.expires_ms, due_ms)


def _take_annotations(
    payload: bytes, span: tuple[int, int], record: Record, limits: AmqpLimits
) -> int | None:
    """Keep the sender's annotations, without the broker's; the due time if there is one."""
    annotations, _ = decode_value(payload, span[0], span[1], Budget(limits))
    pairs = []
    due_ms = None
    for key, value in annotations.items():
        if key in BROKER_ANNOTATIONS:
            continue
        if key == SCHEDULED:
            due_ms = _due_ms(value)
        pairs.append(encode_value(key) + encode_value(value))
    record.annotation_count = len(pairs)
    record.annotation_pairs = b"".join(pairs)
    return due_ms


def _take_delivery_annotations(
    payload: bytes, span: tuple[int, int], record: Record, limits: AmqpLimits
) -> None:
    """Keep these as well: Service Bus hands a sender's delivery annotations on to the receiver."""
    annotations, _ = decode_value(payload, span[0], span[1], Budget(limits))
    pairs = [
        encode_value(key) + encode_value(value)
        for key, value in annotations.items()
        if key not in BROKER_ANNOTATIONS
    ]
    record.delivery_annotation_count = len(pairs)
    record.delivery_annotation_pairs = b"".join(pairs)


def _due_ms(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, Timestamp) or not WALL_MS_MIN <= value <= WALL_MS_MAX:
        raise AmqpError(
            Condition.ARGUMENT_OUT_OF_RANGE,
            "The scheduled enqueue time must be a timestamp between the years 1 and 9999.",
        )
    return int(value)


def _ttl_ms(payload: bytes, sections: MessageSections, description: QueueDescription) -> int | None:
    """The shorter of the message's own and the queue's time to live."""
    ttl_ms = sections.header.ttl_ms if sections.header else None
    if ttl_ms == TTL_MS_UNSPECIFIED:
        ttl_ms = _long_ttl_ms(payload, sections)
    default_ms = description.default_ttl_ms
    if ttl_ms is None or default_ms is None:
        return default_ms if ttl_ms is None else ttl_ms
    return min(ttl_ms, default_ms)


def _long_ttl_ms(payload: bytes, sections: MessageSections) -> int | None:
    """A time to live of more than 49 days travels as two timestamps."""
    if sections.properties is None:
        return None
    expiry = property_field(payload, sections.properties, _EXPIRY_TIME)
    creation = property_field(payload, sections.properties, _CREATION_TIME)
    if expiry is None or creation is None:
        return None
    return max(0, int(expiry) - int(creation))


def _set_expiry(record: Record, ttl_ms: int | None, start_ms: int) -> None:
    # An expiry beyond the calendar is no expiry.
    if ttl_ms is not None and start_ms + ttl_ms <= WALL_MS_MAX:
        record.expires_ms = start_ms + ttl_ms
        record.ttl_ms = ttl_ms


def _too_large(size: int, size_max: int) -> AmqpError:
    return AmqpError(
        Condition.LINK_MESSAGE_SIZE_EXCEEDED,
        f"The message has {size} bytes; this queue takes {size_max}. Send a smaller body.",
    )
