"""Several messages as one delivery: Service Bus' batch envelope.

The envelope is a message whose data sections are the encoded messages. The service routes it by
the properties of the envelope itself, so it repeats the first message's id, session and partition
key.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import GROUP_ID, MESSAGE_ID, Properties, property_field
from twinbus.amqp.message.sections import MessageSections, scan_message
from twinbus.drivers.interface import LinkProperties
from twinbus.encoding.envelope.fast_path import simple_properties
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import MessageRefused, MessageTooLarge

FORMAT_MESSAGE: Final = 0
FORMAT_BATCH: Final = 0x80013700

PARTITION_KEY: Final = Symbol("x-opt-partition-key")

_SMALL_HEADS: Final = tuple(b"\x00\x53\x75\xa0" + bytes((size,)) for size in range(256))
_LARGE_HEAD: Final = struct.Struct(">4sI").pack
_LARGE_DATA: Final = b"\x00\x53\x75\xb0"
_EMPTY_BODY_BYTES: Final = 5
"""The empty data section at the end of a message without content."""


class EncodedDelivery(NamedTuple):
    """The encoded form of one message or several."""

    payload: bytes
    message_format: int
    largest_bytes: int
    """The size of the largest message in it."""


def encode_delivery(outgoing_messages: Sequence[OutgoingMessage]) -> EncodedDelivery:
    """One delivery for all of them."""
    if len(outgoing_messages) == 1:
        encoded = outgoing_messages[0].encoded
        return EncodedDelivery(encoded, FORMAT_MESSAGE, len(encoded))
    parts = [encode_envelope(outgoing_messages[0].encoded)]
    largest = 0
    for outgoing_message in outgoing_messages:
        encoded = outgoing_message.encoded
        size = len(encoded)
        parts.append(_SMALL_HEADS[size] if size <= 255 else _LARGE_HEAD(_LARGE_DATA, size))
        parts.append(encoded)
        largest = size if size > largest else largest
    return EncodedDelivery(b"".join(parts), FORMAT_BATCH, largest)


def check_size(load: EncodedDelivery, facts: LinkProperties, path: str) -> None:
    """Raise MessageTooLarge for what a link refuses. If too much is sent, the service detaches the
    link for all callers that send on it."""
    if load.largest_bytes > facts.message_bytes_max:
        raise _too_large("message", load.largest_bytes, facts.message_bytes_max, path)
    if load.message_format == FORMAT_BATCH and len(load.payload) > facts.batch_limit_bytes:
        raise _too_large("batch", len(load.payload), facts.batch_limit_bytes, path)


def _too_large(what: str, size: int, size_max: int, path: str) -> MessageTooLarge:
    hint = "Send fewer messages in one batch" if what == "batch" else "Reduce the message size"
    sentence = f"The {what} has {size} bytes; {path!r} accepts at most {size_max} bytes"
    return MessageTooLarge(sentence, path=path, hint=hint)


def encode_envelope(encoded: bytes) -> bytes:
    """The sections of a batch before its messages."""
    if head := simple_properties(encoded):
        return head
    routing = BatchKeys(encoded)
    annotations = {} if routing.partition_key is None else {PARTITION_KEY: routing.partition_key}
    message = Message(
        message_annotations=annotations or None,
        properties=Properties(message_id=routing.message_id, group_id=routing.session_id),
    )
    return message.encode()[:-_EMPTY_BODY_BYTES]


class BatchKeys:
    """The properties of an encoded message that the service needs separately."""

    def __init__(self, encoded: bytes) -> None:
        try:
            found = scan_message(encoded, 0, len(encoded), body_required=False)
        except DecodeError as error:
            raise MessageRefused(f"The message is not valid AMQP: {error.description}") from error
        span = found.properties
        self.message_id: Any = None if span is None else property_field(encoded, span, MESSAGE_ID)
        self.session_id: Any = None if span is None else property_field(encoded, span, GROUP_ID)
        self.partition_key: Any = _annotations(encoded, found).get(PARTITION_KEY)


def _annotations(encoded: bytes, found: MessageSections) -> dict[Any, Any]:
    if found.message_annotations is None:
        return {}
    start, stop = found.message_annotations
    decoded: dict[Any, Any] = decode_value(encoded, start, stop, Budget())[0]
    return decoded
