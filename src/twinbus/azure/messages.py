"""The SDK's messages as parcels, looked at as little as the rules allow.

Rule 1: a single message goes to the SDK as it is; its bytes are made only for a detour, or when
        its size comes near the limit.
Rule 2: a list is encoded once here and sent as a batch, as the SDK does with lists; a batch is
        encoded already.
Rule 3: reserved names and sizes are checked in every state (P12, P13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from twinbus.core.envelope import check_fits, check_reserved, check_reserved_names
from twinbus.core.parcel import Parcel
from twinbus.drivers.servicebus.sealed import encode_native, split_batch

Message: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]

# Everything of a message but its body and its application properties: ids, addresses, content
# type and the like have 128 to 260 characters each at most, of up to four bytes.
REST_BYTES_MAX: Final = 8_192
# Encoding a property: its name, a constructor and a length; a value that is no text has 16 bytes
# at most.
PROPERTY_BYTES: Final = 32


def as_sdk_message(message: Message) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """A mapping stands for the arguments of a ServiceBusMessage, as in the SDK."""
    if isinstance(message, ServiceBusMessage | AmqpAnnotatedMessage):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message)
    raise TypeError(
        "Only AmqpAnnotatedMessage, ServiceBusMessage instances or Mappings representing "
        f"messages are supported. Received instead: {type(message)}"
    )


def parcels_of(message: Any, path: str, limit_bytes: int) -> list[Parcel]:
    """What send_messages() was given, checked; empty for an empty list or batch."""
    if isinstance(message, ServiceBusMessageBatch):
        return [_checked(each, path, limit_bytes) for each in split_batch(message)]
    if _is_one(message):
        return [_single(as_sdk_message(message), path, limit_bytes)]
    if not isinstance(message, Iterable):
        as_sdk_message(message)  # Raises what the SDK would.
    return [_checked(encode_native(as_sdk_message(each)), path, limit_bytes) for each in message]


def scheduled_parcels(messages: Any, at: datetime, path: str, limit_bytes: int) -> list[Parcel]:
    """What schedule_messages() was given, each copy with its time."""
    listed = [messages] if _is_one(messages) else list(messages)
    return [
        _checked(_encoded_with_schedule(as_sdk_message(each), at), path, limit_bytes)
        for each in listed
    ]


def _is_one(message: Any) -> bool:
    return isinstance(message, ServiceBusMessage | AmqpAnnotatedMessage | Mapping)


def _single(
    message: ServiceBusMessage | AmqpAnnotatedMessage, path: str, limit_bytes: int
) -> Parcel:
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    properties = raw.application_properties or {}
    check_reserved_names(properties)
    if _size_bytes_max(raw, properties) > limit_bytes:
        check_fits(encode_native(message), path, limit_bytes)
    return Parcel(native=message, encode=lambda: encode_native(message))


def _checked(encoded: bytes, path: str, limit_bytes: int) -> Parcel:
    check_reserved(encoded)
    check_fits(encoded, path, limit_bytes)
    return Parcel(encoded)


def _size_bytes_max(raw: AmqpAnnotatedMessage, properties: Mapping[Any, Any]) -> float:
    """No message of this kind is larger; infinite where that would be work to tell."""
    if raw.body_type is not AmqpMessageBodyType.DATA or raw.annotations:
        return float("inf")
    size = REST_BYTES_MAX
    for section in raw.body:
        size += len(section) + 8
    for name, value in properties.items():
        size += PROPERTY_BYTES + 4 * len(name)
        if isinstance(value, str):
            size += 4 * len(value)
        elif isinstance(value, bytes | bytearray):
            size += len(value)
        elif not isinstance(value, int | float | None):
            return float("inf")
    return size


def _encoded_with_schedule(
    message: ServiceBusMessage | AmqpAnnotatedMessage, at: datetime
) -> bytes:
    """The bytes of a copy that carries its time; the caller's object is as it was (P12)."""
    if isinstance(message, AmqpAnnotatedMessage):
        message = ServiceBusMessage(None, raw_amqp_message=message)
    annotations = message.raw_amqp_message.annotations
    before = None if annotations is None else dict(annotations)
    message.scheduled_enqueue_time_utc = at
    try:
        return encode_native(message)
    finally:
        message.raw_amqp_message.annotations = before
