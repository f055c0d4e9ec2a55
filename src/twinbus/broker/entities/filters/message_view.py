"""A stored message as rules see it, decoded at most once however many rules look.

Rule 1: nothing is decoded before somebody asks, and then only the section they ask for.
Rule 2: ``user`` and ``system`` are dictionaries by folded name with plain values (values.py). They
        are slots that fill themselves on first use, so that a thousand closures read them at
        the price of an attribute.
Rule 3: effort is accounted for here, because a message is what all rules have in common.

Two application properties whose names differ only in upper case are one to rules: the first.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

from twinbus.amqp.decode import decode_value
from twinbus.amqp.limits import Budget
from twinbus.amqp.sections import MessageSections, Properties, decode_properties, scan_message
from twinbus.amqp.types import Timestamp
from twinbus.broker.entities.filters.limits import (
    MESSAGE_EFFORT_MAX,
    RULE_EFFORT_MAX,
)
from twinbus.broker.entities.filters.system_properties import PROPERTY_FIELDS
from twinbus.broker.entities.filters.values import plain
from twinbus.broker.entities.record import Record
from twinbus.errors import FilterError

_PLAIN_ALREADY = frozenset({str, bool, float, Timestamp, UUID, bytes, type(None)})


class MessageView:
    """One message, on its way to the subscriptions of a topic."""

    __slots__ = (
        "_random",
        "_rule_effort_max",
        "effort",
        "now_ms",
        "own",
        "properties",
        "record",
        "sections",
        "system",
        "user",
    )

    record: Record
    now_ms: int
    effort: int
    """Characters that rules have looked at one by one so far."""
    sections: MessageSections
    properties: Properties | None
    """The properties section, with AMQP's types."""
    own: dict[str, Any]
    """The application properties under their own names, with AMQP's types."""
    user: dict[str, Any]
    """The application properties by folded name, as plain values."""
    system: dict[str, Any]
    """The system properties by folded name, as plain values."""

    def __init__(self, record: Record, *, now_ms: int = 0, random: Random | None = None) -> None:
        self.record = record
        self.now_ms = now_ms
        self.effort = 0
        self._rule_effort_max = RULE_EFFORT_MAX
        self._random = random

    @classmethod
    def from_record(
        cls, record: Record, *, now_ms: int = 0, random: Random | None = None
    ) -> MessageView:
        """``now_ms`` is the wall time of the message's arrival; ``random`` feeds newid()."""
        return cls(record, now_ms=now_ms, random=random)

    def __getattr__(self, name: str) -> Any:
        # Python comes here only for a slot that is still empty.
        read = _READERS.get(name)
        if read is None:
            raise AttributeError(name)
        value = read(self)
        setattr(self, name, value)
        return value

    def draft(self) -> MessageView:
        """The same message for an action to change: its dictionaries are its own."""
        copy = MessageView(self.record, now_ms=self.now_ms, random=self._random)
        copy.own, copy.properties = self.own, self.properties
        copy.user, copy.system = dict(self.user), dict(self.system)
        copy.effort = self.effort
        return copy

    def new_id(self) -> UUID:
        """A random UUID for newid()."""
        if self._random is None:
            raise FilterError("newid() has no source of random numbers here")
        return UUID(int=self._random.getrandbits(128), version=4)

    def begin_rule(self) -> None:
        """The next rule gets its own share of the effort."""
        self._rule_effort_max = min(self.effort + RULE_EFFORT_MAX, MESSAGE_EFFORT_MAX)

    def spend(self, characters: int) -> None:
        """Account for a look at a text, before it is taken; FilterError if it would be too much."""
        if self.effort + characters > self._rule_effort_max:
            raise FilterError(
                "searching the properties of this message would take too long",
                hint="Compare short properties, or use fewer LIKEs",
            )
        self.effort += characters


def _read_sections(view: MessageView) -> MessageSections:
    bare = view.record.bare
    return scan_message(bare, 0, len(bare), body_required=False)


def _read_properties(view: MessageView) -> Properties | None:
    span = view.sections.properties
    return None if span is None else decode_properties(view.record.bare, span)


def _read_own(view: MessageView) -> dict[str, Any]:
    span = view.sections.application_properties
    if span is None:
        return {}
    own: dict[str, Any] = decode_value(view.record.bare, span[0], span[1], Budget())[0]
    return own


def _read_user(view: MessageView) -> dict[str, Any]:
    user: dict[str, Any] = {}
    for name, value in view.own.items():
        user.setdefault(name.lower(), value if type(value) in _PLAIN_ALREADY else plain(value))
    return user


def _read_system(view: MessageView) -> dict[str, Any]:
    record = view.record
    system = dict.fromkeys(PROPERTY_FIELDS)
    if view.properties is not None:
        for name, field in PROPERTY_FIELDS.items():
            system[name] = _id_text(getattr(view.properties, field))
    system |= _annotations(record)
    system["deliverycount"] = 0
    system["size"] = len(record.bare)
    system["enqueuedtimeutc"] = Timestamp(view.now_ms)
    expires_ms, ttl_ms = record.expires_ms, record.ttl_ms
    system["expiresatutc"] = None if expires_ms is None else Timestamp(expires_ms)
    system["timetolive"] = None if ttl_ms is None else timedelta(milliseconds=ttl_ms)
    return system


def _id_text(value: Any) -> str | None:
    """Ids may be numbers, UUIDs or bytes on the wire; to rules, as in C#, they are text."""
    if value is None or type(value) is str:
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


_ANNOTATIONS = {
    "x-opt-partition-key": "partitionkey",
    "x-opt-via-partition-key": "viapartitionkey",
    "x-opt-scheduled-enqueue-time": "scheduledenqueuetimeutc",
}


def _annotations(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(_ANNOTATIONS.values())
    raw, pos, budget = record.annotation_pairs, 0, Budget()
    for _ in range(record.annotation_count):
        key, pos = decode_value(raw, pos, len(raw), budget)
        value, pos = decode_value(raw, pos, len(raw), budget)
        if key in _ANNOTATIONS:
            found[_ANNOTATIONS[key]] = plain(value)
    return found


_READERS = {
    "sections": _read_sections,
    "properties": _read_properties,
    "own": _read_own,
    "user": _read_user,
    "system": _read_system,
}
