"""Entities as ATOM, and what an update sends.

Entities as the service's XML: one Atom entry each, a feed of them for a list.

An entity's description as it was told, with a few things changed: what an update sends.

Rule 1: the rows of a table are in the order in which the service wants the elements.
Rule 2: an element that is missing or empty leaves the default; one that cannot be read makes the
        whole answer unreadable, because a wrong guess about a queue may lose messages.
Rule 3: a document type or an entity declaration is refused where it stands.
Rule 4: an update replaces the whole description, so whatever was told goes back as it was, also
        what is not understood here. Only what the service counts by itself is left out.
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
    "access_rules_in",
    "changed_xml",
    "page_in",
    "parse_namespace",
    "set_key",
    "set_status",
]

ATOM: Final = "{http://www.w3.org/2005/Atom}"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNT_DETAILS: Final = "{http://schemas.microsoft.com/netservices/2011/06/servicebus}"
_CONNECT: Final = f"{{{SERVICE_BUS}}}"

_MICROSECOND: Final = timedelta(microseconds=1)
_NEVER_US: Final = parse_duration_us(NEVER) or 0
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
# XML 1.0 has no way to write these, not even escaped.
_UNSPEAKABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


# -- values -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Codec:
    """How the text of an element and a value become each other."""

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
    # The stock client rounds the longest duration, so anything as long as that is "never".
    return None if value // _MICROSECOND >= _NEVER_US - 1_000 else value


def _duration_text(value: timedelta) -> str:
    if value < timedelta():
        raise ConfigurationError("a duration of an entity is negative", hint="Use None for never")
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
    """The service tells a forwarding as a URL; within a namespace its path says it all."""
    url = urlsplit(text)
    return url.path.strip("/") if url.netloc else text


def _text(value: str) -> str | None:
    if _UNSPEAKABLE.search(value):
        raise ConfigurationError(
            "a property of an entity has a character that XML cannot spell", hint="Leave it out"
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
        """The fields that an element of this kind fills, its counts among them."""
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
    """One entity as it was told: its title, and its description by the element's name."""

    title: str
    kind: str
    described: Element


@dataclass(frozen=True, slots=True)
class FeedPage:
    """The entries of a document, and whether the service has more of them."""

    entries: tuple[ParsedEntry, ...]
    has_more: bool


def page_in(body: bytes) -> FeedPage:
    """The entries of a feed, or the one that the document is."""
    root = _parsed(body)
    if root.tag == f"{ATOM}entry":
        return FeedPage(_entries([root]), has_more=False)
    if root.tag != f"{ATOM}feed":
        raise _unreadable("it is neither an entry nor a feed")
    links = root.findall(f"{ATOM}link")
    has_more = any(link.get("rel") == "next" for link in links)
    return FeedPage(_entries(root.findall(f"{ATOM}entry")), has_more)


def parse_namespace(body: bytes) -> NamespaceInfo:
    """What the namespace says of itself."""
    for entry in page_in(body).entries:
        name = _text_in(entry.described, f"{_CONNECT}Name") or entry.title
        if entry.kind == "NamespaceInfo" and name:
            return NamespaceInfo(name, _text_in(entry.described, f"{_CONNECT}MessagingSKU"))
    raise _unreadable("it has no NamespaceInfo")


def _entries(found: list[Element]) -> tuple[ParsedEntry, ...]:
    entries = []
    for entry in found:
        content = entry.find(f"{ATOM}content")
        # The service tells of what does not exist with an entry that has no content.
        if content is not None and len(content):
            kind = str(content[0].tag).removeprefix(_CONNECT)
            entries.append(ParsedEntry(_text_in(entry, f"{ATOM}title"), kind, content[0]))
    return tuple(entries)


def _counts_in(described: Element) -> MessageCounts:
    details = described.find(f"{_CONNECT}CountDetails")
    if details is None:
        return MessageCounts()
    told = {
        field: _read(NUMBER, _text_in(details, COUNT_DETAILS + name) or "0", name)
        for name, field in _COUNTS.items()
    }
    return MessageCounts(**told)


def _text_in(parent: Element, name: str) -> str:
    return (parent.findtext(name) or "").strip()


def _read(codec: Codec, text: str, name: str) -> Any:
    try:
        return codec.read(text)
    except ValueError:
        raise _unreadable(f"its {name} is {text[:40]!a}") from None


def _parsed(body: bytes) -> Element:
    try:
        root: Element = fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, LookupError, ValueError) as error:
        raise _unreadable("it is no plain XML") from error
    return root


def _unreadable(reason: str) -> ServiceInternalError:
    return ServiceInternalError(
        f"the namespace answered with something that cannot be understood: {reason}",
        hint="Check that the address is the one of a messaging service",
    )


_COUNTED: Final = (
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


def changed_xml(described: Element) -> bytes:
    """The body of a request that updates the entity to this description."""
    for name in _COUNTED:
        for each in described.findall(_CONNECT + name):
            described.remove(each)
    entry = Element("{http://www.w3.org/2005/Atom}entry")
    content = SubElement(entry, "{http://www.w3.org/2005/Atom}content", type="application/xml")
    content.append(described)
    written: bytes = tostring(entry, encoding="utf-8", xml_declaration=True)
    return written


def set_status(described: Element, status: str) -> None:
    """The status must be there: its place in the order matters, and every service tells it."""
    found = described.find(_CONNECT + "Status")
    if found is not None:
        found.text = status


def access_rules_in(described: Element) -> list[AccessRule]:
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
    """Give a rule another key; False when there is no such rule."""
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
