"""Entities as the service's XML: one Atom entry each, a feed of them for a list, and updates.

Rule 1: the rows of a table are in the order that the service requires for the elements.
Rule 2: a missing or empty element has the default; one that cannot be parsed makes the whole
        response invalid, because a wrong guess about a queue may lose messages.
Rule 3: a document type or an entity declaration is refused.
Rule 4: an update replaces the whole description, so everything that was read is sent back
        unchanged, also unknown elements. Only values that the service computes are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element, ParseError, SubElement, tostring
from xml.sax.saxutils import escape

from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

from twinbus.common.durations import NEVER, format_duration_us, parse_duration_us
from twinbus.drivers.administration.entities import (
    MessageCounts,
    NamespaceInfo,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from twinbus.errors import ConfigurationError, ServiceInternalError

__all__ = [
    "QUEUE",
    "SUBSCRIPTION",
    "TOPIC",
    "AccessRule",
    "FeedPage",
    "ParsedEntry",
    "Shape",
    "parse_access_rules",
    "parse_namespace",
    "parse_page",
    "set_key",
    "set_status",
    "update_xml",
]

ATOM: Final = "{http://www.w3.org/2005/Atom}"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNT_DETAILS: Final = "{http://schemas.microsoft.com/netservices/2011/06/servicebus}"
_CONNECT: Final = f"{{{SERVICE_BUS}}}"

_MICROSECOND: Final = timedelta(microseconds=1)
_NEVER_US: Final = parse_duration_us(NEVER) or 0
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
# XML 1.0 does not allow these, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


# -- values -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Codec:
    """Conversion between the text of an element and a value."""

    read: Callable[[str], Any]
    """Raises ValueError."""
    write: Callable[[Any], str | None]
    """None leaves the element out."""


def _duration(text: str) -> timedelta:
    total_us = parse_duration_us(text)
    if total_us is None:
        raise ValueError(text)
    return timedelta(microseconds=total_us)


def _lifetime(text: str) -> timedelta | None:
    value = _duration(text)
    # The official client rounds the longest duration, so anything as long as that is "never".
    return None if value // _MICROSECOND >= _NEVER_US - 1_000 else value


def _duration_text(value: timedelta) -> str:
    if value < timedelta():
        raise ConfigurationError(
            f"A duration of an entity must be 0 s or more, got {value.total_seconds():g} s",
            hint="Use None for never",
        )
    return format_duration_us(value // _MICROSECOND)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


def _path_of_url(text: str) -> str:
    """The service returns a forward as a URL; within a namespace its path is enough."""
    url = urlsplit(text)
    return url.path.strip("/") if url.netloc else text


def _text(value: str) -> str | None:
    if _NOT_XML.search(value):
        raise ConfigurationError(
            "A property of the entity contains a character that XML does not allow",
            hint="Remove the character",
        )
    return escape(value) or None


DURATION: Final = Codec(_duration, _duration_text)
LIFETIME: Final = Codec(_lifetime, lambda value: NEVER if value is None else _duration_text(value))
NUMBER: Final = Codec(_number, lambda value: None if value is None else str(value))
FLAG: Final = Codec(_flag, lambda value: "true" if value else "false")
TEXT: Final = Codec(str, _text)
FORWARD: Final = Codec(_path_of_url, lambda value: None if value is None else _text(value))


# -- shapes -------------------------------------------------------------------------------

Rows = tuple[tuple[str, str, Codec], ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of entity: its element, its settings in order, and facts that are only read."""

    element: str
    rows: Rows
    facts: Rows = ()

    def write(self, value: QueueProperties | TopicProperties | SubscriptionProperties) -> bytes:
        """The body of a request that creates the entity."""
        written = [(name, codec.write(getattr(value, field))) for name, field, codec in self.rows]
        inside = "".join(f"<{name}>{text}</{name}>" for name, text in written if text is not None)
        return (
            '<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom">'
            f'<content type="application/xml"><{self.element} xmlns="{SERVICE_BUS}">'
            f"{inside}</{self.element}></content></entry>"
        ).encode()

    def read(self, described: Element) -> dict[str, Any]:
        """The fields of an element of this kind, its counts included."""
        fields: dict[str, Any] = {"counts": _counts_in(described)}
        for name, field, codec in self.rows + self.facts:
            text = _text_in(described, _CONNECT + name)
            if text:
                fields[field] = _read(codec, text, name)
        return fields


_EXPIRED: Final[Rows] = (
    ("DefaultMessageTimeToLive", "default_message_time_to_live", LIFETIME),
    ("DeadLetteringOnMessageExpiration", "enable_dead_lettering_on_message_expiration", FLAG),
)
_DUPLICATES: Final = ("RequiresDuplicateDetection", "requires_duplicate_detection", FLAG)
_WINDOW: Final = (
    "DuplicateDetectionHistoryTimeWindow",
    "duplicate_detection_history_time_window",
    DURATION,
)
_LOCK: Final = ("LockDuration", "lock_duration", DURATION)
_MAX_SIZE: Final = ("MaxSizeInMegabytes", "max_size_in_megabytes", NUMBER)
_SESSION: Final = ("RequiresSession", "requires_session", FLAG)
_DELIVERIES: Final = ("MaxDeliveryCount", "max_delivery_count", NUMBER)
_BATCHED: Final = ("EnableBatchedOperations", "enable_batched_operations", FLAG)
_STATUS: Final = ("Status", "status", TEXT)
_IDLE: Final = ("AutoDeleteOnIdle", "auto_delete_on_idle", LIFETIME)
_PARTITIONS: Final = ("EnablePartitioning", "enable_partitioning", FLAG)
_FORWARD: Final = ("ForwardTo", "forward_to", FORWARD)
_FORWARD_DEAD: Final = (
    "ForwardDeadLetteredMessagesTo",
    "forward_dead_lettered_messages_to",
    FORWARD,
)
_METADATA: Final = ("UserMetadata", "user_metadata", TEXT)
_MESSAGE_SIZE: Final = ("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes", NUMBER)
_SIZE: Final = ("SizeInBytes", "size_bytes", NUMBER)

QUEUE: Final = Shape(
    "QueueDescription",
    (
        _LOCK,
        _MAX_SIZE,
        _DUPLICATES,
        _SESSION,
        *_EXPIRED,
        _WINDOW,
        _DELIVERIES,
        _BATCHED,
        _STATUS,
        _IDLE,
        _PARTITIONS,
        _FORWARD,
        _METADATA,
        _FORWARD_DEAD,
        _MESSAGE_SIZE,
    ),
    (_SIZE,),
)
TOPIC: Final = Shape(
    "TopicDescription",
    (
        _EXPIRED[0],
        _MAX_SIZE,
        _DUPLICATES,
        _WINDOW,
        _BATCHED,
        _STATUS,
        ("SupportOrdering", "support_ordering", FLAG),
        _IDLE,
        _PARTITIONS,
        _METADATA,
        _MESSAGE_SIZE,
    ),
    (_SIZE, ("SubscriptionCount", "subscription_count", NUMBER)),
)
SUBSCRIPTION: Final = Shape(
    "SubscriptionDescription",
    (
        _LOCK,
        _SESSION,
        *_EXPIRED,
        (
            "DeadLetteringOnFilterEvaluationExceptions",
            "enable_dead_lettering_on_filter_evaluation_exceptions",
            FLAG,
        ),
        _DELIVERIES,
        _BATCHED,
        _STATUS,
        _FORWARD,
        _FORWARD_DEAD,
        _IDLE,
        _METADATA,
    ),
)
_COUNTS: Final[Mapping[str, str]] = {
    "ActiveMessageCount": "active",
    "DeadLetterMessageCount": "dead_letter",
    "ScheduledMessageCount": "scheduled",
    "TransferMessageCount": "transfer",
    "TransferDeadLetterMessageCount": "transfer_dead_letter",
}


# -- documents ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParsedEntry:
    """One entity as the service returned it: title, element name and description."""

    title: str
    kind: str
    described: Element


@dataclass(frozen=True, slots=True)
class FeedPage:
    """The entries of a document, and whether more pages follow."""

    entries: tuple[ParsedEntry, ...]
    has_more: bool


def parse_page(body: bytes) -> FeedPage:
    """The entries of a feed, or the single entry of the document."""
    root = _parse(body)
    if root.tag == f"{ATOM}entry":
        return FeedPage(_entries([root]), has_more=False)
    if root.tag != f"{ATOM}feed":
        raise _unreadable("it is neither an Atom entry nor a feed")
    links = root.findall(f"{ATOM}link")
    has_more = any(link.get("rel") == "next" for link in links)
    return FeedPage(_entries(root.findall(f"{ATOM}entry")), has_more)


def parse_namespace(body: bytes) -> NamespaceInfo:
    """The properties of the namespace."""
    for entry in parse_page(body).entries:
        name = _text_in(entry.described, f"{_CONNECT}Name") or entry.title
        if entry.kind == "NamespaceInfo" and name:
            return NamespaceInfo(name, _text_in(entry.described, f"{_CONNECT}MessagingSKU"))
    raise _unreadable("it contains no NamespaceInfo")


def _entries(found: list[Element]) -> tuple[ParsedEntry, ...]:
    entries = []
    for entry in found:
        content = entry.find(f"{ATOM}content")
        # For an entity that does not exist, the service returns an entry without content.
        if content is not None and len(content):
            kind = str(content[0].tag).removeprefix(_CONNECT)
            entries.append(ParsedEntry(_text_in(entry, f"{ATOM}title"), kind, content[0]))
    return tuple(entries)


def _counts_in(described: Element) -> MessageCounts:
    details = described.find(f"{_CONNECT}CountDetails")
    if details is None:
        return MessageCounts()
    counts = {
        field: _read(NUMBER, _text_in(details, COUNT_DETAILS + name) or "0", name)
        for name, field in _COUNTS.items()
    }
    return MessageCounts(**counts)


def _text_in(parent: Element, name: str) -> str:
    return (parent.findtext(name) or "").strip()


def _read(codec: Codec, text: str, name: str) -> Any:
    try:
        return codec.read(text)
    except ValueError:
        raise _unreadable(f"invalid value for {name}: {text[:40]!a}") from None


def _parse(body: bytes) -> Element:
    try:
        root: Element = fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, LookupError, ValueError) as error:
        raise _unreadable("it is not plain XML") from error
    return root


def _unreadable(reason: str) -> ServiceInternalError:
    return ServiceInternalError(
        f"The response of the namespace cannot be parsed: {reason}",
        hint="Check that the address is that of a messaging service",
    )


_READ_ONLY: Final = (
    "SizeInBytes",
    "MessageCount",
    "CountDetails",
    "SubscriptionCount",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
)
_KEYS: Final = {"primary": "PrimaryKey", "secondary": "SecondaryKey"}


@dataclass(frozen=True, slots=True)
class AccessRule:
    """An access rule of one entity. Its keys are in no repr."""

    name: str
    rights: tuple[str, ...]
    primary_key: str
    secondary_key: str

    def __repr__(self) -> str:
        return f"AccessRule({self.name!r}, {self.rights!r})"


def update_xml(described: Element) -> bytes:
    """The body of a request that updates the entity to this description."""
    for name in _READ_ONLY:
        for each in described.findall(_CONNECT + name):
            described.remove(each)
    entry = Element("{http://www.w3.org/2005/Atom}entry")
    content = SubElement(entry, "{http://www.w3.org/2005/Atom}content", type="application/xml")
    content.append(described)
    written: bytes = tostring(entry, encoding="utf-8", xml_declaration=True)
    return written


def set_status(described: Element, status: str) -> None:
    """Set the status, which every service returns; the order of the elements matters."""
    found = described.find(_CONNECT + "Status")
    if found is not None:
        found.text = status


def parse_access_rules(described: Element) -> list[AccessRule]:
    return [
        AccessRule(
            _rule_text(rule, "KeyName"),
            tuple((each.text or "").strip() for each in rule.iter(_CONNECT + "AccessRights")),
            _rule_text(rule, "PrimaryKey"),
            _rule_text(rule, "SecondaryKey"),
        )
        for rule in _rules(described)
    ]


def set_key(described: Element, rule_name: str, which: str, key: str) -> bool:
    """Set a key of a rule; False when the rule does not exist."""
    for rule in _rules(described):
        if _rule_text(rule, "KeyName").lower() == rule_name.lower():
            found = rule.find(_CONNECT + _KEYS[which])
            if found is not None:
                found.text = key
                return True
    return False


def _rules(described: Element) -> Iterator[Element]:
    return described.iterfind(f"{_CONNECT}AuthorizationRules/{_CONNECT}AuthorizationRule")


def _rule_text(rule: Element, name: str) -> str:
    return (rule.findtext(_CONNECT + name) or "").strip()
