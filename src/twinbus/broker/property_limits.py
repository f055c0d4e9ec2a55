"""How large the properties of a message may be: Azure Service Bus's limits.

What works here works there, and no sender can hide a body where nobody looks for one.

Rule 1: all properties of a message count together: annotations, properties and application
        properties, as the sender encoded them.
Rule 2: short messages are not looked at: only a long section can break a limit.
"""

from __future__ import annotations

from typing import Any, Final

from twinbus.amqp.decode import decode_value
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.limits import AmqpLimits, Budget
from twinbus.amqp.sections import MessageSections, Span, decode_properties, property_field
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
    """Refuse properties that are too large; for messages longer than one property may be."""
    maps = (
        sections.delivery_annotations,
        sections.message_annotations,
        sections.application_properties,
    )
    spans = [span for span in (*maps, sections.properties) if span is not None]
    if sum(end - start for start, end in spans) > PROPERTIES_BYTES_MAX:
        raise AmqpError(
            Condition.ARGUMENT_OUT_OF_RANGE,
            f"The properties of the message take more than {PROPERTIES_BYTES_MAX} bytes. "
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
