"""A stored message as rules see it, decoded at most once, however many rules read it.

Rule 1: a section is decoded when it is first used.
Rule 2: ``user`` and ``system`` are dictionaries by folded name with plain values (values.py). They
        are slots that are filled on first use, so that a thousand closures read them at the cost
        of an attribute.
Rule 3: effort is counted here, because the limit is for all rules of a message together.

Of application properties whose names differ only in letter case, rules see the first.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.codec.types import Timestamp
from twinbus.amqp.limits import STORED_LIMITS, Budget
from twinbus.amqp.message.properties import Properties, Span, decode_properties
from twinbus.amqp.message.sections import scan_to_body
from twinbus.broker.engine.filters.rule_values import (
    MESSAGE_EFFORT_MAX,
    RULE_EFFORT_MAX,
)
from twinbus.broker.engine.filters.values import plain
from twinbus.broker.engine.stored_message import Record
from twinbus.errors import FilterError

_PLAIN_ALREADY = frozenset({str, bool, float, Timestamp, UUID, bytes, type(None)})


_PROPERTIES = b"\x00\x53\x73"
_APPLICATION_PROPERTIES = b"\x00\x53\x74"
_BODY_OR_FOOTER = tuple(b"\x00\x53" + bytes((code,)) for code in (0x75, 0x76, 0x77, 0x78))


class Spans(NamedTuple):
    """Where the properties of a bare message are."""

    properties: Span | None
    application_properties: Span | None
    rest: int
    """Where the body begins, or what follows instead of it."""


class MessageView:
    """One message that rules are evaluated for."""

    __slots__ = (
        "_random",
        "effort",
        "effort_before_rule",
        "now_ms",
        "own",
        "properties",
        "record",
        "spans",
        "system",
        "user",
    )

    record: Record
    now_ms: int
    effort: int
    """Characters that rules have read one by one so far."""
    effort_before_rule: int
    """The effort before the present rule: each has its own limit."""
    spans: Spans
    properties: Properties | None
    """The properties section, with AMQP types."""
    own: dict[str, Any]
    """The application properties by their own names, with AMQP types."""
    user: dict[str, Any]
    """The application properties by folded name, as plain values."""
    system: dict[str, Any]
    """The system properties by folded name, as plain values."""

    def __init__(self, record: Record, *, now_ms: int = 0, random: Random | None = None) -> None:
        self.record = record
        self.now_ms = now_ms
        self.effort = 0
        self.effort_before_rule = 0
        self._random = random

    @classmethod
    def from_record(
        cls, record: Record, *, now_ms: int = 0, random: Random | None = None
    ) -> MessageView:
        """``now_ms`` is the wall time of the message's arrival; ``random`` is for newid()."""
        return cls(record, now_ms=now_ms, random=random)

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for a slot that is still empty.
        read = _READERS.get(name)
        if read is None:
            raise AttributeError(name)
        value = read(self)
        setattr(self, name, value)
        return value

    def draft(self) -> MessageView:
        """The same message for an action to change, with dictionaries of its own."""
        copy = MessageView(self.record, now_ms=self.now_ms, random=self._random)
        copy.own, copy.properties = self.own, self.properties
        copy.user, copy.system = dict(self.user), dict(self.system)
        copy.effort = copy.effort_before_rule = self.effort
        return copy

    def new_id(self) -> UUID:
        """A random UUID for newid()."""
        if self._random is None:
            raise FilterError("The function newid() has no source of random numbers")
        return UUID(int=self._random.getrandbits(128), version=4)

    def spend(self, characters: int) -> None:
        """Count the effort of reading a text, before it is read; FilterError if it is too much."""
        effort = self.effort + characters
        if effort - self.effort_before_rule > RULE_EFFORT_MAX or effort > MESSAGE_EFFORT_MAX:
            raise FilterError(
                "Searching the properties of this message would take too long",
                hint="Compare short properties, or use fewer LIKE conditions",
            )
        self.effort = effort


def _read_spans(view: MessageView) -> Spans:
    """Where the two sections are. The message was checked on arrival: their sizes are enough."""
    bare = view.record.bare
    properties = _span_at(bare, 0, _PROPERTIES)
    own = _span_at(bare, properties[1] if properties else 0, _APPLICATION_PROPERTIES)
    rest = (own or properties or (0, 0))[1]
    if bare.startswith(_BODY_OR_FOOTER, rest) or rest == len(bare):
        return Spans(properties, own, rest)
    # Descriptors have other encodings, which are never used; the scan knows them all.
    found = scan_to_body(bare, 0, len(bare), STORED_LIMITS)
    properties, own = found.properties, found.application_properties
    return Spans(properties, own, (own or properties or (0, 0))[1])


def _span_at(bare: bytes, pos: int, head: bytes) -> Span | None:
    """The value of the section with this head, if it begins at ``pos``."""
    if not bare.startswith(head, pos):
        return None
    start = pos + len(head)
    code = bare[start]
    if code & 0xF0 == 0xC0:
        return start, start + 2 + bare[start + 1]
    if code & 0xF0 == 0xD0:
        return start, start + 5 + int.from_bytes(bare[start + 1 : start + 5], "big")
    return start, start + 1


def _read_properties(view: MessageView) -> Properties | None:
    span = view.spans.properties
    return None if span is None else decode_properties(view.record.bare, span)


def _read_own(view: MessageView) -> dict[str, Any]:
    span = view.spans.application_properties
    if span is None:
        return {}
    own: dict[str, Any] = decode_value(view.record.bare, span[0], span[1], Budget(STORED_LIMITS))[0]
    return own


def _read_user(view: MessageView) -> dict[str, Any]:
    user: dict[str, Any] = {}
    for name, value in view.own.items():
        user.setdefault(name.lower(), value if type(value) in _PLAIN_ALREADY else plain(value))
    return user


def _read_system(view: MessageView) -> dict[str, Any]:
    record, properties = view.record, view.properties or _NO_PROPERTIES
    expires_ms, ttl_ms = record.expires_ms, record.ttl_ms
    system = {
        "messageid": _id_text(properties.message_id),
        "to": properties.to,
        "label": properties.subject,
        "subject": properties.subject,
        "replyto": properties.reply_to,
        "correlationid": _id_text(properties.correlation_id),
        "contenttype": None if properties.content_type is None else str(properties.content_type),
        "sessionid": properties.group_id,
        "replytosessionid": properties.reply_to_group_id,
        "deliverycount": 0,
        "size": len(record.bare),
        "enqueuedtimeutc": Timestamp(view.now_ms),
        "expiresatutc": None if expires_ms is None else Timestamp(expires_ms),
        "timetolive": None if ttl_ms is None else timedelta(milliseconds=ttl_ms),
        **_NOT_ANNOTATED,
    }
    if record.annotation_count:
        _read_annotations(record, system)
    return system


_NO_PROPERTIES = Properties()


def _id_text(value: Any) -> str | None:
    """Ids may be numbers, UUIDs or bytes in AMQP; for rules, as in C#, they are text."""
    if value is None or type(value) is str:
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


_ANNOTATIONS = {
    "x-opt-partition-key": "partitionkey",
    "x-opt-via-partition-key": "viapartitionkey",
    "x-opt-scheduled-enqueue-time": "scheduledenqueuetimeutc",
}


_NOT_ANNOTATED: dict[str, Any] = dict.fromkeys(_ANNOTATIONS.values())


def _read_annotations(record: Record, system: dict[str, Any]) -> None:
    raw, pos, budget = record.annotation_pairs, 0, Budget(STORED_LIMITS)
    for _ in range(record.annotation_count):
        key, pos = decode_value(raw, pos, len(raw), budget)
        value, pos = decode_value(raw, pos, len(raw), budget)
        if key in _ANNOTATIONS:
            system[_ANNOTATIONS[key]] = plain(value)


_READERS = {
    "spans": _read_spans,
    "properties": _read_properties,
    "own": _read_own,
    "user": _read_user,
    "system": _read_system,
}
