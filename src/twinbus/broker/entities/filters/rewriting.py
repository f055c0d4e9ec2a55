"""What an action changes on a message, and the message with those changes.

Rule 1: the body, the footer and a section without changes are copied byte for byte.
Rule 2: values that are not changed keep their AMQP types.
Rule 3: the result is as valid as the original: ids stay within their limits, and so do the
        properties together; otherwise FilterError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from twinbus.amqp.composites import encode_composite
from twinbus.amqp.encode import encode_value
from twinbus.amqp.errors import EncodeError
from twinbus.amqp.sections import Properties
from twinbus.broker.entities.filters.message_view import MessageView
from twinbus.broker.entities.record import Record
from twinbus.errors import FilterError
from twinbus.message import PROPERTIES_BYTES_MAX

_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"


class Removed:
    """In place of a value: the property goes away."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = Removed()


@dataclass(frozen=True, slots=True)
class Changes:
    """The outcome of an action, in the words of the message."""

    system: Mapping[str, str | None] = field(default_factory=dict)
    """Fields of the AMQP properties section and their new values."""
    user: Mapping[str, Any] = field(default_factory=dict)
    """Application properties by their own names, and their new values or REMOVED."""


def apply_changes(record: Record, changes: Changes, view: MessageView | None = None) -> Record:
    """A copy of ``record`` with ``changes``; the original stays as it is.

    ``view`` is the record as it was read already, if it was.
    """
    if view is None:
        view = MessageView(record)
    rest = view.spans.rest
    before = 0 if view.spans.properties is None else view.spans.properties[1]
    try:
        properties = _properties(view, changes) if changes.system else record.bare[:before]
        own = _own(view, changes) if changes.user else record.bare[before:rest]
    except EncodeError as error:
        raise FilterError("an action sets a property to what no message can carry") from error
    # What a sender may use; a message that is filled up further could not be sent again.
    if len(properties) + len(own) > max(PROPERTIES_BYTES_MAX, rest):
        raise FilterError(
            f"an action makes the properties of a message larger than {PROPERTIES_BYTES_MAX} bytes"
        )
    return replace(record, bare=properties + own + record.bare[rest:])


def _properties(view: MessageView, changes: Changes) -> bytes:
    fields: dict[str, Any] = dict(changes.system)
    changed = replace(view.properties or Properties(), **fields)
    out = bytearray()
    encode_composite(out, changed, elide_trailing_nulls=True)
    return bytes(out)


def _own(view: MessageView, changes: Changes) -> bytes:
    own = {**view.own, **changes.user}
    kept = {name: value for name, value in own.items() if value is not REMOVED}
    return _APPLICATION_PROPERTIES + encode_value(kept) if kept else b""
