"""Messages of every kind, and the way through a backlog queue, for tests of the envelope."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.amqp.strategies import (
    integers_of,
    long_texts,
    scalars,
    symbols,
    texts,
    typed,
    values,
)
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Symbol, Timestamp, ULong
from twinbus.amqp.limits import DEFAULT_LIMITS
from twinbus.amqp.message.message import AmqpSequence, AmqpValue, DataSections, Message
from twinbus.amqp.message.properties import Header, Properties
from twinbus.amqp.message.sections import scan_message
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.stored_message import unpack_record
from twinbus.broker.server.delivery_encoder import encode_record
from twinbus.broker.server.ingest import BROKER_ANNOTATIONS, ingest
from twinbus.common.clock import Instant
from twinbus.encoding.envelope import RESERVED_NAMES, restore

BACKLOG = QueueDescription(path="contoso/x-servicebus-transfer/0")
NO_BODY = b"\x00\x53\x77" + encode_value("no body")
NOW_MS = 1_763_000_000_000


def as_delivered(payload: bytes, *, delivery_count: int = 0, enqueued_ms: int = NOW_MS) -> bytes:
    """What a receiver of our broker gets for a message that was sent as ``payload``."""
    now = Instant(monotonic_s=0.0, wall_ms=enqueued_ms)
    [message] = ingest(payload, 0, BACKLOG, DEFAULT_LIMITS, now).messages
    return encode_record(
        unpack_record(message.record, 0, len(message.record)),
        seq=41,
        enqueued_ms=enqueued_ms,
        delivery_count=delivery_count,
        token=bytes(range(16)),
        locked_until_ms=enqueued_ms + 60_000,
    )


def home_again(aliased: bytes) -> bytes:
    """The message after its stay in the backlog."""
    return restore(as_delivered(aliased), now_ms=NOW_MS + 5_000).encoded


def essence(encoded: bytes) -> dict[str, Any]:
    """Every value of a message that a broker hands on, with its AMQP type.

    A broker says durable, first-acquirer and the counts itself; an absent priority is 4; and
    an empty section says nothing.
    """
    # A message may have no body section at all; then NO_BODY stands in for it.
    has_body = scan_message(encoded, 0, len(encoded), body_required=False).body
    message = Message.decode(encoded if has_body else encoded + NO_BODY)
    header = message.header or Header()
    return {
        "priority": 4 if header.priority is None else header.priority,
        "ttl_ms": header.ttl_ms,
        "delivery annotations": sorted_pairs(message.delivery_annotations),
        "annotations": sorted_pairs(message.message_annotations),
        "properties": message.properties or Properties(),
        "types of ids": _types_of_ids(message.properties),
        "application properties": sorted_pairs(message.application_properties),
        "body": _typed_body(message.body),
        "footer": typed(message.footer),
    }


def sorted_pairs(values_by_name: dict[Any, Any] | None) -> list[Any]:
    return sorted(((typed(k), typed(v)) for k, v in (values_by_name or {}).items()), key=repr)


def _types_of_ids(properties: Properties | None) -> list[str]:
    found = properties or Properties()
    return [type(found.message_id).__name__, type(found.correlation_id).__name__]


def _typed_body(body: Any) -> Any:
    match body:
        case AmqpValue(value):
            return "value", typed(value)
        case AmqpSequence(items):
            return "sequence", [typed(item) for item in items]
        case DataSections(items):
            return "data", items
        case _:
            return "data", (body,)


# --- strategies --------------------------------------------------------------------------------

ids = texts | integers_of(ULong) | st.uuids() | st.binary(max_size=16)
session_ids = texts | st.just("é" * 128) | st.just("") | st.just("@@@")
annotation_names = symbols.filter(lambda name: name and name not in BROKER_ANNOTATIONS)
property_names = (texts | long_texts).filter(lambda name: name.lower() not in RESERVED_NAMES)
wall_times = st.integers(-62_135_596_800_000, 253_402_300_799_999).map(Timestamp)
ttls_ms = st.sampled_from([0, 1, 127, 128, 255, 256, 60_000, 2**32 - 2, 2**32 - 1])

bodies = st.one_of(
    st.binary(max_size=300),
    st.lists(st.binary(max_size=20), min_size=2, max_size=20).map(lambda i: DataSections(tuple(i))),
    values.map(AmqpValue),
    st.lists(st.lists(values, max_size=3), min_size=1, max_size=3).map(
        lambda lists: AmqpSequence(tuple(lists))
    ),
)


@st.composite
def properties(draw: st.DrawFn, ttl_ms: int | None) -> Properties:
    def perhaps(strategy: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | strategy)

    made = Properties(
        message_id=perhaps(ids),
        user_id=perhaps(st.binary(max_size=8)),
        to=perhaps(texts),
        subject=perhaps(texts),
        reply_to=perhaps(texts),
        correlation_id=perhaps(ids),
        content_type=perhaps(symbols),
        content_encoding=perhaps(symbols),
        absolute_expiry_time=perhaps(wall_times),
        creation_time=perhaps(wall_times),
        group_id=perhaps(session_ids),
        group_sequence=perhaps(st.sampled_from([0, 1, 2**32 - 1])),
        reply_to_group_id=perhaps(texts),
    )
    if ttl_ms is not None and made.creation_time is not None and draw(st.booleans()):
        longer_ms = draw(st.sampled_from([0, 1, 10**6, 10**12])) if ttl_ms == 2**32 - 1 else 0
        made.absolute_expiry_time = made.creation_time + ttl_ms + longer_ms
    return made


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A whole message, encoded, as any AMQP client could send it."""
    ttl_ms = draw(st.none() | ttls_ms)
    priority = draw(st.none() | st.integers(0, 9))
    annotations = draw(st.dictionaries(annotation_names, values, max_size=3))
    if draw(st.booleans()):
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = draw(wall_times)
    if draw(st.booleans()):
        annotations[Symbol("x-opt-partition-key")] = draw(texts)
    has_header = ttl_ms is not None or priority is not None or draw(st.booleans())
    header = Header(durable=draw(st.booleans()), priority=priority, ttl_ms=ttl_ms)
    return Message(
        header=header if has_header else None,
        delivery_annotations=draw(
            st.none() | st.dictionaries(annotation_names, scalars, max_size=2)
        ),
        message_annotations=annotations or None,
        properties=draw(st.none() | properties(ttl_ms)),
        application_properties=draw(
            st.none() | st.dictionaries(property_names, scalars, max_size=5)
        ),
        body=draw(bodies),
        footer=draw(st.none() | st.dictionaries(annotation_names, scalars, max_size=2)),
    ).encode()
