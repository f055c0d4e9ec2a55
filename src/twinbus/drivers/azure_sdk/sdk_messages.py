"""Messages as bytes, in and out of the SDK's own classes.

The SDK has no public function to send a message that is already encoded, nor to encode one without
sending it. This module uses private names of the SDK for that;
tests/integration/drivers/azure_sdk/test_sealed.py fails when a new version changes what they mean.

    encode_native()      the bytes that the SDK would send for a message of its own class
    split_batch()        the messages of its batch, each as bytes
    encoded_batch()      bytes -> a batch of the SDK: its data sections are our messages, unchanged
    schedule_request()   bytes -> the body of a request to schedule them

Rule 1: no byte of a message is changed, so every AMQP type stays the same.
Rule 2: an envelope repeats what the SDK's own repeats of the first message: message id, session
        id and partition key, by which the service chooses a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._common import constants, mgmt_handlers
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.amqp import AmqpAnnotatedMessage

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.limits import Budget
from twinbus.amqp.message.properties import GROUP_ID, MESSAGE_ID, property_field
from twinbus.amqp.message.sections import scan_message

NativeMessage = ServiceBusMessage | AmqpAnnotatedMessage

# A tuple: isinstance() takes twice as long with a union, and runs for each message (P0).
_NATIVE: Final = (ServiceBusMessage, AmqpAnnotatedMessage, ServiceBusMessageBatch)

PARTITION_KEY: Final = "x-opt-partition-key"

# Where a batch of the SDK, a list in the order of a message's sections, keeps its data sections.
_DATA: Final = 5


class _Label(NamedTuple):
    """The properties of a message that its envelope repeats."""

    message_id: Any
    session_id: str | None
    partition_key: str | None


def is_native(message: object) -> bool:
    """Whether it is a message or a batch of the SDK."""
    return isinstance(message, _NATIVE)


def encode_native(message: NativeMessage) -> bytes:
    """The whole message in message format 0, as the SDK would send it now."""
    annotated = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    outgoing = PyamqpTransportAsync.to_outgoing_amqp_message(annotated)
    return bytes(encode_payload(bytearray(), outgoing))


def split_batch(batch: ServiceBusMessageBatch) -> list[bytes]:
    """The messages of a batch in their order, each in message format 0."""
    return [bytes(each) for each in batch._message[_DATA]]


def encoded_batch(messages: Sequence[bytes]) -> ServiceBusMessageBatch:
    """A batch that the SDK sends unchanged, whatever its size: the service checks that."""
    batch = ServiceBusMessageBatch(amqp_transport=PyamqpTransportAsync)
    batch._message[_DATA].extend(messages)
    batch._count = len(messages)
    PyamqpTransportAsync.set_batch_envelope_properties(batch._message, *_label(messages[0]))
    return batch


def schedule_request(messages: Sequence[bytes]) -> dict[str, Any]:
    """The request to ``$management`` for messages that carry their own time."""
    return {constants.MGMT_REQUEST_MESSAGES: [_scheduled(each) for each in messages]}


async def schedule(sender: Any, messages: Sequence[bytes], *, timeout_s: float) -> list[int]:
    """Schedule encoded messages through a sender of the SDK; their sequence numbers."""
    numbers: list[int] = await sender._mgmt_request_response_with_retry(
        constants.REQUEST_RESPONSE_SCHEDULE_MESSAGE_OPERATION,
        schedule_request(messages),
        mgmt_handlers.schedule_op,
        timeout=timeout_s,
    )
    return list(numbers)


def _scheduled(message: bytes) -> dict[str, Any]:
    label = _label(message)
    entry = {
        constants.MGMT_REQUEST_MESSAGE_ID: label.message_id,
        constants.MGMT_REQUEST_SESSION_ID: label.session_id,
        constants.MGMT_REQUEST_PARTITION_KEY: label.partition_key,
        constants.MGMT_REQUEST_MESSAGE: message,
    }
    return {name: value for name, value in entry.items() if value is not None}


def _label(message: bytes) -> _Label:
    found = scan_message(message, 0, len(message), body_required=False)
    message_id = session_id = partition_key = None
    if found.properties is not None:
        message_id = property_field(message, found.properties, MESSAGE_ID)
        session_id = property_field(message, found.properties, GROUP_ID)
    if found.message_annotations is not None:
        start, stop = found.message_annotations
        partition_key = decode_value(message, start, stop, Budget())[0].get(PARTITION_KEY)
    return _Label(message_id, session_id, partition_key)
