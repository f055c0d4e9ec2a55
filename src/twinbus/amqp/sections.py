"""Messages, as far as most of the project needs to know them: one door to four modules.

scan.py            where the sections of an encoded message are; batches; all validation
section_checks.py  the rules of each section
properties.py      header and properties, whole or one field at a time
message.py         a whole message as a Python value
"""

from __future__ import annotations

from twinbus.amqp.message import AmqpSequence, AmqpValue, Body, DataSections, Message
from twinbus.amqp.properties import (
    Header,
    MessageId,
    Properties,
    Span,
    content_type_of,
    decode_properties,
    property_field,
)
from twinbus.amqp.scan import (
    BodyKind,
    MessageSections,
    is_plain,
    iter_batch,
    scan_front,
    scan_message,
    scan_to_body,
)

__all__ = [
    "AmqpSequence",
    "AmqpValue",
    "Body",
    "BodyKind",
    "DataSections",
    "Header",
    "Message",
    "MessageId",
    "MessageSections",
    "Properties",
    "Span",
    "content_type_of",
    "decode_properties",
    "is_plain",
    "iter_batch",
    "property_field",
    "scan_front",
    "scan_message",
    "scan_to_body",
]
