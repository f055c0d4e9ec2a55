"""The SDK's messages as parcels, looked at as little as the rules allow.

Rule 1: messages and batches go to the SDK as they are; their bytes are made only for a detour, or
        when a size comes near the limit (P0).
Rule 2: reserved names and sizes are checked in every state (P12, P13).
Rule 3: the caller's objects are as they were, also after scheduling.
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
# A tuple is asked about faster than a union, and this is asked of every message.
_SDK_MESSAGES: Final = (ServiceBusMessage, AmqpAnnotatedMessage)
_TEXTS: Final = (str, bytes)

# Everything of a message but its body, its texts and its application properties: section heads,
# numbers and times; and the aliases.
REST_BYTES_MAX: Final = 2_048
# Encoding a property: its name, a constructor and a length; a value that is no text has 16 bytes
# at most.
PROPERTY_BYTES: Final = 32


def as_sdk_message(message: Any) -> SdkMessage:
    """A mapping stands for the arguments of a ServiceBusMessage, as in the SDK."""
    if isinstance(message, ServiceBusMessage | AmqpAnnotatedMessage):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message)
    raise TypeError(
        "Only AmqpAnnotatedMessage, ServiceBusMessage instances or Mappings representing "
        f"messages are supported. Received instead: {type(message)}"
    )


def to_outgoing_messages(message: Any) -> list[OutgoingMessage]:
    """What send_messages() was given; empty for an empty list or batch."""
    if type(message) is ServiceBusMessage:  # Nearly always; the rest costs a microsecond more.
        return [_outgoing_message(message)]
    if isinstance(message, ServiceBusMessageBatch):
        return [OutgoingMessage(native=message)] if len(message) else []
    return [_outgoing_message(each) for each in _listed(message)]


def to_scheduled_messages(messages: Any, at: datetime) -> list[OutgoingMessage]:
    """What schedule_messages() was given: copies, each with its time."""
    return [OutgoingMessage(_encoded_with_schedule(each, at)) for each in _listed(messages)]


def _listed(messages: Any) -> list[SdkMessage]:
    is_one = isinstance(messages, ServiceBusMessage | AmqpAnnotatedMessage | Mapping)
    if is_one or not isinstance(messages, Iterable):
        return [as_sdk_message(messages)]
    return [as_sdk_message(each) for each in messages]


def _outgoing_message(message: SdkMessage) -> OutgoingMessage:
    return OutgoingMessage(native=message, encode=partial(encode_native, message))


# -- what a paired sender asks --------------------------------------------------------------------


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
    """Check a message (P12) and tell whether the SDK's blocking sender can hand it to the system
    at once: it gives up on a write after 0.2 s, which says nothing about the entity."""
    raw = message.raw_amqp_message
    properties = raw.application_properties or {}
    if properties:
        check_reserved_names(properties)
    head_bytes = _head_bytes_max(raw, properties)
    return head_bytes + _body_bytes(raw) <= min(limit_bytes, ONE_WRITE_BYTES_MAX)


def _head_bytes_max(raw: AmqpAnnotatedMessage, properties: Mapping[Any, Any]) -> float:
    """No message of this kind has more before its body; infinite where that would be work to
    tell."""
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
    """The bytes of a copy that carries its time."""
    if isinstance(message, AmqpAnnotatedMessage):
        message = ServiceBusMessage(None, raw_amqp_message=message)
    annotations = message.raw_amqp_message.annotations
    before = None if annotations is None else dict(annotations)
    message.scheduled_enqueue_time_utc = at
    try:
        return encode_native(message)
    finally:
        message.raw_amqp_message.annotations = before
