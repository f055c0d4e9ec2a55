"""The payload of a transfer to messages for a queue, or to an error.

Everything is checked here, before a byte is stored: what cannot be delivered later must not be
accepted now. The bare message is sliced, never re-encoded; header and annotations, which the broker
rewrites on delivery, are decoded. The limits of properties are those of Azure Service Bus, so that
a message that is accepted here is accepted there.

    payload --batch?--> messages --ping?--> accepted and dropped (M7)
                            |
                            +--> record, expiry, due time

A batch is decoded in slices, and a large body is checked in steps (body_steps), so that others
have their turn between two of them; nothing of it is stored before all of it was checked.

Rule 1: all properties of a message count together: annotations, properties and application
        properties, as the sender encoded them.
Rule 2: the properties of short messages are not measured: only a long section can exceed a limit.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Symbol, Timestamp
from twinbus.amqp.errors import AmqpError, Condition, DecodeError
from twinbus.amqp.limits import AmqpLimits, Budget
from twinbus.amqp.message.properties import Span, decode_properties, property_field
from twinbus.amqp.message.repeated_layout import RepeatedLayout
from twinbus.amqp.message.sections import MessageSections, body_steps, iter_batch, scan_message
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.stored_message import (
    PLAIN,
    IncomingMessage,
    MessageKeys,
    PartitionAssigner,
    Record,
    digest_of,
    facts_of,
    keys_agree,
    pack_record,
)
from twinbus.common.clock import Instant
from twinbus.encoding.splicing import TTL_MS_UNSPECIFIED
from twinbus.message import PROPERTIES_BYTES_MAX

ID_CHARACTERS_MAX: Final = 128
PROPERTY_BYTES_MAX: Final = 32_768

_IDS: Final = ((0, "message id"), (10, "session id"))


def check_ids(payload: bytes, span: Span) -> None:
    """Refuse an id that is too long; ``span`` is a properties section long enough to hold one."""
    for index, name in _IDS:
        value = property_field(payload, span, index)
        if isinstance(value, str | bytes) and len(value) > ID_CHARACTERS_MAX:
            raise AmqpError(
                Condition.ARGUMENT_OUT_OF_RANGE,
                f"The {name} has {len(value)} characters. Use at most {ID_CHARACTERS_MAX}.",
            )


def check_property_sizes(payload: bytes, sections: MessageSections, limits: AmqpLimits) -> None:
    """Refuse properties that are too large; called for messages longer than that limit."""
    maps = (
        sections.delivery_annotations,
        sections.message_annotations,
        sections.application_properties,
    )
    spans = [span for span in (*maps, sections.properties) if span is not None]
    if sum(end - start for start, end in spans) > PROPERTIES_BYTES_MAX:
        raise AmqpError(
            Condition.ARGUMENT_OUT_OF_RANGE,
            f"The properties of the message have more than {PROPERTIES_BYTES_MAX} bytes. "
            "Put large values into the body.",
        )
    if sections.properties is not None and _is_long(sections.properties):
        properties = decode_properties(payload, sections.properties)
        for name in properties.__slots__:
            _check_property(name.replace("_", "-"), getattr(properties, name))
    for span in maps:
        if span is not None and _is_long(span):
            values, _end = decode_value(payload, span[0], span[1], Budget(limits))
            for key, value in values.items():
                _check_property(str(key), value)


def _is_long(span: Span) -> bool:
    return span[1] - span[0] > PROPERTY_BYTES_MAX


def _check_property(name: str, value: Any) -> None:
    if max(_size_bytes(name), _size_bytes(value)) > PROPERTY_BYTES_MAX:
        raise AmqpError(
            Condition.ARGUMENT_OUT_OF_RANGE,
            f"The property {name[:60]!a} has more than {PROPERTY_BYTES_MAX} bytes. "
            "Put large values into the body.",
        )


def _size_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return len(value) if isinstance(value, bytes) else 0


FORMAT_MESSAGE = 0
FORMAT_BATCH = 0x80013700

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
_PING_BYTES = PING_CONTENT_TYPE.encode()
PING_TTL_MS_MAX = 1_000

# The years 1 to 9999, which every SDK can represent as a date.
WALL_MS_MIN, WALL_MS_MAX = -62_135_596_800_000, 253_402_300_799_999

# Messages of a batch after which the clock is read: a tenth of a millisecond of work.
SLICE_COUNT = 128
# Bytes of messages with a full check after which the clock is read in a run: as short annotations
# they take a sixth of a millisecond.
COSTLY_BYTES = 512

SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
# Annotations that only the broker sets; a message that is sent again still has them.
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
    """The messages of a transfer."""

    messages: list[IncomingMessage]
    ping_count: int
    byte_count: int
    shares: Counter[int] | None = None
    """How many of the messages each partition gets, if they were assigned."""


class Ingestion:
    """A transfer that is being decoded: at once, or a slice of it in each turn."""

    __slots__ = (
        "_description",
        "_large",
        "_limits",
        "_may_be_plain",
        "_now",
        "_payload",
        "_plain",
        "_spans",
        "_spread",
        "taken",
    )

    def __init__(
        self,
        payload: bytes,
        message_format: int,
        description: QueueDescription,
        limits: AmqpLimits,
        now: Instant,
        plain: RepeatedLayout | None = None,
        spread: PartitionAssigner | None = None,
    ) -> None:
        """``plain`` remembers the layout of one sender's messages; ``spread`` assigns them to the
        partitions of a partitioned entity."""
        if message_format == FORMAT_MESSAGE:
            spans = [(0, len(payload))]
        elif message_format == FORMAT_BATCH:
            spans = iter_batch(payload, 0, len(payload))
        else:
            raise AmqpError(
                Condition.NOT_IMPLEMENTED,
                f"Unknown message format: 0x{message_format:08x}. Use 0 or 0x{FORMAT_BATCH:08x}.",
            )
        self._payload = payload
        self._spans = iter(spans)
        self._description = description
        self._limits = limits
        self._now = now
        self._may_be_plain = description.default_ttl_ms is None
        self._plain = plain or plain_messages()
        self._spread = spread if description.enable_partitioning else None
        self._large: tuple[MessageSections, Iterator[None]] | None = None
        """A message whose body is being checked, and the steps that are left of it."""
        self.taken = Ingested([], 0, len(payload))
        """All of it once go_on() has returned True."""

    def go_on(self, stop_s: float) -> bool:
        """Continue until all is done (True) or the monotonic clock reaches ``stop_s`` (False)."""
        while self._large is None or self._check_large(*self._large, stop_s):
            if self._take_slice(stop_s) < SLICE_COUNT:
                return True
            if time.monotonic() > stop_s:
                return False
        return False

    def _take_slice(self, stop_s: float) -> int:
        """Decode SLICE_COUNT messages, or fewer costly ones; returns SLICE_COUNT for both."""
        payload, description, plain = self._payload, self._description, self._plain
        may_be_plain, size_max = self._may_be_plain, description.max_message_size_bytes
        messages = self.taken.messages
        before, count = len(messages), 0
        if description.needs_facts:
            # Reading the keys afterwards takes as long as checking the messages.
            stop_s = (time.monotonic() + stop_s) / 2
        for start, end in islice(self._spans, SLICE_COUNT):
            count += 1
            if may_be_plain and end - start <= size_max and plain.accepts(payload, start, end):
                messages.append(IncomingMessage(PLAIN + payload[start:end]))
                continue
            self._take_costly(start, end)
            if self._large is not None or time.monotonic() > stop_s:
                count = SLICE_COUNT
                break
        self._finish(before)
        return count

    def _take_costly(self, start: int, end: int) -> None:
        """Check a message completely, or begin the check of a large one."""
        sections = _checked(self._payload, start, end, self._description, self._limits)
        if sections.unchecked:
            self._large = sections, body_steps(self._payload, sections)
        else:
            self._take_checked(sections)

    def _check_large(self, sections: MessageSections, steps: Iterator[None], stop_s: float) -> bool:
        """Continue the check of a large body; whether the message was checked and added."""
        for _ in steps:
            if time.monotonic() > stop_s:
                return False
        self._large = None
        before = len(self.taken.messages)
        self._take_checked(sections)
        self._finish(before)
        return True

    def _take_checked(self, sections: MessageSections) -> None:
        payload = self._payload
        if _may_be_ping(payload, sections) and is_ping(payload, sections):
            self.taken.ping_count += 1
        else:
            self.taken.messages.append(
                _incoming(payload, sections, self._description, self._limits, self._now)
            )

    def _finish(self, before: int) -> None:
        """Read the keys of the messages that were added, and assign their partitions."""
        messages, description = self.taken.messages, self._description
        if description.needs_facts:
            _read_facts(messages[before:], description, self._now)
        if self._spread is not None:
            shares = self._spread.assign(messages[before:], description)
            self.taken.shares = shares + (self.taken.shares or Counter())


def ingest(
    payload: bytes,
    message_format: int,
    description: QueueDescription,
    limits: AmqpLimits,
    now: Instant,
    plain: RepeatedLayout | None = None,
) -> Ingested:
    """Check and decode one transfer; raises AmqpError with the reason of a refusal."""
    ingestion = Ingestion(payload, message_format, description, limits, now, plain)
    ingestion.go_on(math.inf)
    return ingestion.taken


def plain_messages() -> RepeatedLayout:
    """The layout memory of one sender. Properties this short have no id that is too long."""
    return RepeatedLayout(ID_CHARACTERS_MAX, _PING_BYTES)


def ingest_run(
    payloads: list[bytes],
    description: QueueDescription,
    limits: AmqpLimits,
    now: Instant,
    plain: RepeatedLayout,
    stop_s: float = math.inf,
) -> list[IncomingMessage]:
    """The messages of several transfers, one in each: the first of them, up to ``stop_s`` or to one
    that may be a ping or whose body has to be checked in steps.

    Raises AmqpError when one of them is invalid, without its index.
    """
    messages: list[IncomingMessage] = []
    may_be_plain = description.default_ttl_ms is None
    size_max = description.max_message_size_bytes
    costly_bytes = 0
    if description.needs_facts:
        # Reading the keys afterwards takes as long as checking the messages.
        stop_s = (time.monotonic() + stop_s) / 2
    for payload in payloads:
        size = len(payload)
        if may_be_plain and size <= size_max and plain.accepts(payload, 0, size):
            messages.append(IncomingMessage(PLAIN + payload))
            continue
        if costly_bytes > COSTLY_BYTES:
            costly_bytes = 0
            if time.monotonic() > stop_s:
                break
        sections = _checked(payload, 0, size, description, limits)
        if sections.unchecked or _may_be_ping(payload, sections):
            break
        messages.append(_incoming(payload, sections, description, limits, now))
        costly_bytes += size
    if description.needs_facts:
        _read_facts(messages, description, now)
    return messages


def _read_facts(
    messages: list[IncomingMessage], description: QueueDescription, now: Instant
) -> None:
    for message in messages:
        facts = message.facts = facts_of(message.record, now.wall_ms)
        if description.requires_duplicate_detection:
            # Here, because a batch is checked in slices, but enqueued at once.
            digest = digest_of(facts, is_partitioned=description.enable_partitioning)
            message.facts = MessageKeys(*facts[:3], facts.arrived_ms, None, digest)
        if description.requires_session and facts.session_id is None:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                f"The queue {description.display_path!r} requires sessions, and the message has no "
                "session id. Set the property group-id.",
            )
        if description.enable_partitioning and not keys_agree(facts):
            raise AmqpError(
                Condition.NOT_ALLOWED,
                "The session id and the partition key of the message differ. Make them equal, or "
                "remove one of them.",
            )


def _checked(
    payload: bytes, start: int, end: int, description: QueueDescription, limits: AmqpLimits
) -> MessageSections:
    """The sections of one message that can be delivered later.

    A large body is not checked yet: ``unchecked`` is set then.
    """
    if end - start > description.max_message_size_bytes:
        raise _too_large(end - start, description.max_message_size_bytes)
    # The Azure SDK sends ServiceBusMessage(None) without a body section.
    sections = scan_message(payload, start, end, limits, body_required=False, check_body=False)
    if sections.properties_start == sections.bare_end:
        raise DecodeError("A message has neither properties nor a body. Add a data section.")
    if end - start > PROPERTY_BYTES_MAX:
        check_property_sizes(payload, sections, limits)
    return sections


def _may_be_ping(payload: bytes, sections: MessageSections) -> bool:
    """Whether the properties, where a content type can be, contain that of a ping.

    Only they are searched: a search in 1 KB of body would take as long as all other checks.
    """
    span = sections.properties
    return span is not None and payload.find(_PING_BYTES, *span) >= 0


def is_ping(payload: bytes, sections: MessageSections) -> bool:
    """Whether it is a ping; a message with its content type and a body is refused, not dropped."""
    if sections.properties is None:
        return False
    if property_field(payload, sections.properties, _CONTENT_TYPE) != PING_CONTENT_TYPE:
        return False
    ttl_ms = sections.header.ttl_ms if sections.header else None
    if sections.body_empty and ttl_ms is not None and ttl_ms <= PING_TTL_MS_MAX:
        return True
    raise AmqpError(
        Condition.ARGUMENT_ERROR,
        f"The content type {PING_CONTENT_TYPE} is reserved for pings, which have an empty body "
        "and a time to live of at most one second. Use another content type.",
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
    """Keep these as well: Service Bus delivers a sender's delivery annotations to the receiver."""
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
    """A time to live of more than 49 days is sent as two timestamps."""
    if sections.properties is None:
        return None
    expiry = property_field(payload, sections.properties, _EXPIRY_TIME)
    creation = property_field(payload, sections.properties, _CREATION_TIME)
    if expiry is None or creation is None:
        return None
    return max(0, int(expiry) - int(creation))


def _set_expiry(record: Record, ttl_ms: int | None, start_ms: int) -> None:
    # A message that would expire after the year 9999 does not expire.
    if ttl_ms is not None and start_ms + ttl_ms <= WALL_MS_MAX:
        record.expires_ms = start_ms + ttl_ms
        record.ttl_ms = ttl_ms


def _too_large(size: int, size_max: int) -> AmqpError:
    return AmqpError(
        Condition.LINK_MESSAGE_SIZE_EXCEEDED,
        f"The message has {size} bytes; the limit is {size_max}. Send a smaller body.",
    )
