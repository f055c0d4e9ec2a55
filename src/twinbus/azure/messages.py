"""Adapts the messages and batches of the SDK for paired senders.

Rule 1: messages and batches are passed to the SDK unchanged; they are encoded only for a diversion,
        or if a size is near the limit (P0).
Rule 2: reserved names and sizes are checked in every state (P12, P13).
Rule 3: the caller's objects are unchanged, also after scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from twinbus.drivers.azure_sdk.sdk_messages import encode_native, split_batch
from twinbus.encoding.envelope import check_fits, check_reserved, check_reserved_names
from twinbus.encoding.transit import OutgoingMessage
from twinbus.message import PROPERTIES_BYTES_MAX
from twinbus.pairing.direct_sender import ONE_WRITE_BYTES_MAX
from twinbus.pairing.send_execution import MessageAdapter

SdkMessage: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage
# isinstance() is faster with a tuple than with a union, and runs for every message.
_SDK_MESSAGES: Final = (ServiceBusMessage, AmqpAnnotatedMessage)
_TEXTS: Final = (str, bytes)

# All of a message except its body, its texts and its application properties: section headers,
# numbers and times; and the aliases.
REST_BYTES_MAX: Final = 2_048
# Encoding of a property: its name, a constructor and a length; a value that is not a text has at
# most 16 bytes.
PROPERTY_BYTES: Final = 32


def as_sdk_message(message: Any) -> SdkMessage:
    """Accept a mapping as the arguments of a ServiceBusMessage, as the SDK does."""
    if isinstance(message, ServiceBusMessage | AmqpAnnotatedMessage):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message)
    raise TypeError(
        "Only AmqpAnnotatedMessage, ServiceBusMessage instances or Mappings representing "
        f"messages are supported. Received instead: {type(message)}"
    )


def to_outgoing_messages(message: Any) -> list[OutgoingMessage]:
    """The argument of send_messages(); empty for an empty list or batch."""
    if (
        type(message) is ServiceBusMessage
    ):  # Nearly always; the other cases cost a microsecond more.
        return [_to_outgoing_message(message)]
    if isinstance(message, ServiceBusMessageBatch):
        return [OutgoingMessage(native=message)] if len(message) else []
    return [_to_outgoing_message(each) for each in _to_list(message)]


def to_scheduled_messages(messages: Any, at: datetime) -> list[OutgoingMessage]:
    """The argument of schedule_messages(): copies, each with its schedule."""
    return [OutgoingMessage(_encoded_with_schedule(each, at)) for each in _to_list(messages)]


def _to_list(messages: Any) -> list[SdkMessage]:
    is_one = isinstance(messages, ServiceBusMessage | AmqpAnnotatedMessage | Mapping)
    if is_one or not isinstance(messages, Iterable):
        return [as_sdk_message(messages)]
    return [as_sdk_message(each) for each in messages]


def _to_outgoing_message(message: SdkMessage) -> OutgoingMessage:
    return OutgoingMessage(native=message, encode=partial(encode_native, message))


# -- for paired senders ---------------------------------------------------------------------------


def _unpack(outgoing_message: OutgoingMessage) -> list[bytes]:
    if isinstance(outgoing_message.native, ServiceBusMessageBatch):
        return split_batch(outgoing_message.native)
    return [outgoing_message.encoded]


def _check(
    outgoing_messages: Sequence[OutgoingMessage], path: str, limit_bytes: int, owner: str
) -> None:
    for outgoing_message in outgoing_messages:
        if isinstance(outgoing_message.native, _SDK_MESSAGES):
            _check_native(outgoing_message, outgoing_message.native, path, limit_bytes, owner)
        else:
            for encoded in _unpack(outgoing_message):
                check_reserved(encoded)
                check_fits(encoded, path, limit_bytes, owner)


def _check_native(
    outgoing_message: OutgoingMessage, message: SdkMessage, path: str, limit_bytes: int, owner: str
) -> None:
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    properties = raw.application_properties or {}
    if properties:
        check_reserved_names(properties)
    head_bytes = _head_bytes_max(raw, properties)
    if head_bytes > PROPERTIES_BYTES_MAX or head_bytes + _body_bytes(raw) > limit_bytes:
        check_fits(outgoing_message.encoded, path, limit_bytes, owner)


SDK_MESSAGES: Final = MessageAdapter(_check, _unpack)


def fits_one_write(message: ServiceBusMessage, limit_bytes: int) -> bool:
    """Check a message (P12) and return whether the SDK's blocking sender can write it at once: it
    ends a write after 0.2 s, which means nothing for the entity."""
    raw = message.raw_amqp_message
    properties = raw.application_properties or {}
    if properties:
        check_reserved_names(properties)
    head_bytes = _head_bytes_max(raw, properties)
    return head_bytes + _body_bytes(raw) <= min(limit_bytes, ONE_WRITE_BYTES_MAX)


def _head_bytes_max(raw: AmqpAnnotatedMessage, properties: Mapping[Any, Any]) -> float:
    """Upper bound of the size without the body; infinite if it would take long to compute."""
    if raw.body_type is not AmqpMessageBodyType.DATA:
        return float("inf")
    if raw.annotations or raw.delivery_annotations or raw.footer:
        return float("inf")
    size = REST_BYTES_MAX
    if raw.properties is not None:
        for value in vars(raw.properties).values():
            if isinstance(value, _TEXTS):
                size += 4 * len(value)
    for name, value in properties.items():
        size += PROPERTY_BYTES + 4 * len(name)
        if isinstance(value, str):
            size += 4 * len(value)
        elif isinstance(value, bytes | bytearray):
            size += len(value)
        elif not isinstance(value, int | float | None):
            return float("inf")
    return size


def _body_bytes(raw: AmqpAnnotatedMessage) -> int:
    return sum(len(section) + 8 for section in raw.body)


def _encoded_with_schedule(message: SdkMessage, at: datetime) -> bytes:
    """The encoded copy with its schedule."""
    if isinstance(message, AmqpAnnotatedMessage):
        message = ServiceBusMessage(None, raw_amqp_message=message)
    annotations = message.raw_amqp_message.annotations
    before = None if annotations is None else dict(annotations)
    message.scheduled_enqueue_time_utc = at
    try:
        return encode_native(message)
    finally:
        message.raw_amqp_message.annotations = before
