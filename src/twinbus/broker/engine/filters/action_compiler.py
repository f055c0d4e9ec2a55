"""SQL actions: what SET and REMOVE change on a copy of a message, and the changed copy.

Rule 1: the body, the footer and a section without changes are copied byte for byte.
Rule 2: values that are not changed keep their AMQP types.
Rule 3: the result is as valid as the original: ids stay within their limits, and so do the
        properties together; otherwise FilterError.
Rule 4: statements work one after the other on a draft: each sees the changes of those before it.
Rule 5: the result is the list of changes, in the message's own spelling of names; the message
        itself is not changed.
Rule 6: an existing property keeps its type if the new value can have it: a number that is set to
        text with a number stays a number, an int32 stays an int32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from twinbus.amqp.codec.composites import encode_composite
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import (
    Byte,
    Float32,
    Int,
    Long,
    Short,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.amqp.errors import EncodeError
from twinbus.amqp.message.properties import Properties
from twinbus.broker.engine.filters.expressions import Evaluate, compile_node
from twinbus.broker.engine.filters.message_view import MessageView
from twinbus.broker.engine.filters.rule_description import SqlAction
from twinbus.broker.engine.filters.rule_values import TEXT_CHARACTERS_MAX
from twinbus.broker.engine.filters.syntax_tree import Property, Set
from twinbus.broker.engine.filters.system_properties import (
    ID_CHARACTERS_MAX,
    LIMITED_IDS,
    PROPERTY_FIELDS,
)
from twinbus.broker.engine.filters.values import plain, text_of
from twinbus.broker.engine.stored_message import Record
from twinbus.errors import FilterError
from twinbus.message import PROPERTIES_BYTES_MAX

_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"


class Removed:
    """In place of a value: the property is removed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = Removed()


@dataclass(frozen=True, slots=True)
class Changes:
    """The result of an action, by the message's own names."""

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
        raise FilterError("An action sets a property to a value without an AMQP form") from error
    # The limit for senders; a message with larger properties could not be sent again.
    if len(properties) + len(own) > max(PROPERTIES_BYTES_MAX, rest):
        raise FilterError(
            f"An action makes the properties of a message larger than {PROPERTIES_BYTES_MAX} bytes"
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


class _Draft:
    """A message while an action changes it."""

    __slots__ = ("_sizes", "_spellings", "system", "user", "view")

    def __init__(self, message: MessageView) -> None:
        self.view = message.draft()
        self.system: dict[str, str | None] = {}
        self.user: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._spellings: dict[str, str] = {}
        for name in message.own:
            self._spellings.setdefault(name.lower(), name)

    def set_own(self, name: str, value: Any) -> None:
        """Give an application property a value, of the type it had if possible."""
        self._check_size(name.lower(), value)
        spelling = self._spellings.setdefault(name.lower(), name)
        existing = self.user.get(spelling, self.view.own.get(spelling))
        self.user[spelling] = _like_existing(value, existing)
        self.view.user[name.lower()] = plain(self.user[spelling])

    def remove_own(self, name: str) -> None:
        spelling = self._spellings.get(name.lower())
        if spelling is not None:
            self.user[spelling] = REMOVED
            self.view.user.pop(name.lower(), None)

    def set_system(self, name: str, value: str | None) -> None:
        """``name`` is one that an action may write; label and subject are one property."""
        field = PROPERTY_FIELDS[name]
        self._check_size(f"sys.{field}", value)
        self.system[field] = value
        for other, other_field in PROPERTY_FIELDS.items():
            if other_field == field:
                self.view.system[other] = value

    def _check_size(self, name: str, value: Any) -> None:
        """Refuse texts whose sum is too long, before all of them are built."""
        self._sizes[name] = len(value) if isinstance(value, str | bytes) else 0
        if sum(self._sizes.values()) > PROPERTIES_BYTES_MAX:
            raise FilterError(
                "An action makes the properties of a message larger than "
                f"{PROPERTIES_BYTES_MAX} bytes"
            )


_Step = Callable[[_Draft], None]


def compile_action(described: SqlAction) -> Callable[[MessageView], Changes]:
    """The action as a closure; it may raise FilterError."""
    steps = [
        _set(statement) if isinstance(statement, Set) else _remove(statement.target)
        for statement in described.statements
    ]

    def apply(message: MessageView) -> Changes:
        draft = _Draft(message)
        for step in steps:
            step(draft)
        message.effort = draft.view.effort
        return Changes(draft.system, draft.user)

    return apply


def _set(statement: Set) -> _Step:
    target, evaluate = statement.target, compile_node(statement.value)
    return _set_system(target.name, evaluate) if target.is_system else _set_own(target, evaluate)


def _set_own(target: Property, evaluate: Evaluate) -> _Step:
    name = target.name

    def step(draft: _Draft) -> None:
        value = evaluate(draft.view)
        if isinstance(value, timedelta):
            raise FilterError(f"An action sets {name!a:.60} to a duration, which has no AMQP form")
        draft.set_own(name, value)

    return step


def _set_system(name: str, evaluate: Evaluate) -> _Step:
    is_limited = PROPERTY_FIELDS[name] in LIMITED_IDS
    length_max = ID_CHARACTERS_MAX if is_limited else TEXT_CHARACTERS_MAX

    def step(draft: _Draft) -> None:
        value = evaluate(draft.view)
        text = text_of(value)
        if text is None and (value is not None or name == "messageid"):
            raise FilterError(f"An action sets sys.{name} to a value that is not text")
        if text is not None and len(text) > length_max:
            raise FilterError(f"An action sets sys.{name} to more than {length_max} characters")
        if name == "contenttype" and text is not None and not text.isascii():
            raise FilterError("An action sets sys.contenttype to text that is not ASCII")
        draft.set_system(name, text)

    return step


def _remove(target: Property) -> _Step:
    name = target.name
    if target.is_system:
        return lambda draft: draft.set_system(name, None)
    return lambda draft: draft.remove_own(name)


# --- types ---------------------------------------------------------------------------------------

_INT_BITS: Final[dict[type, tuple[int, int]]] = {
    UByte: (0, 8),
    UShort: (0, 16),
    UInt: (0, 32),
    ULong: (0, 64),
    Byte: (1, 7),
    Short: (1, 15),
    Int: (1, 31),
    Long: (1, 63),
}


def _like_existing(value: Any, existing: Any) -> Any:
    kind = type(existing)
    if kind in _INT_BITS:
        return _like_int(value, kind)
    if kind in (float, Float32):
        number = _number(value, float)
        return value if number is None else kind(number)
    if kind is str or kind is Symbol:
        text = text_of(value)
        return value if text is None else kind(text) if text.isascii() else text
    if kind is bool and type(value) is str and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def _like_int(value: Any, kind: type) -> Any:
    number = _number(value, int)
    if number is None:
        return value
    signed, bits = _INT_BITS[kind]
    fits = (-(1 << bits) if signed else 0) <= number < 1 << bits
    return kind(number) if fits else number


def _number(value: Any, kind: Callable[[Any], Any]) -> Any:
    """``value`` as a number of this kind, or None if it is not one."""
    if type(value) is int:
        return kind(value)
    if type(value) is float:
        return value if kind is float else None
    # int() would accept 1_000, and spaces, which are not numbers in SQL.
    if type(value) is not str or len(value) > 40 or "_" in value or value != value.strip():
        return None
    try:
        return kind(value)
    except ValueError:
        return None
