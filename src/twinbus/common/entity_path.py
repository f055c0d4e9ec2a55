"""Paths of entities, and the link addresses that contain them, in one canonical form.

Every layer compares paths that were parsed here, so that ``Orders`` and ``orders`` are the same
queue everywhere, and no other spelling of a name bypasses a check.

Rule 1: only ASCII letters, digits and ``. - _ /`` are allowed; a text is accepted or refused,
        never corrected.
Rule 2: canonical means lower case. Parsing a canonical text returns it unchanged.
Rule 3: a segment that begins with ``$`` is reserved for the broker.
Rule 4: these names are never file names (``con`` and ``aux`` are valid queues).

    amqps://host:5671/Orders/$DeadLetterQueue  ->  entity "orders", sub-queue "dead-letter"
    orders/$management                         ->  entity "orders", node "management"
    $cbs                                       ->  node "cbs"
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from twinbus.errors import ConfigurationError, InvalidEntityPath

__all__ = [
    "BACKLOG_MARKER",
    "BACKLOG_SEPARATOR",
    "ENTITY_PATH_LENGTH_MAX",
    "Address",
    "BacklogPath",
    "backlog_owner",
    "backlog_prefix",
    "check_patterns",
    "owning_entity",
    "parse_address",
    "parse_backlog_path",
    "parse_entity_path",
    "parse_resource_segments",
]

# The limit that Azure Service Bus documents for the path of an entity.
ENTITY_PATH_LENGTH_MAX: Final = 260
# A path, its longest suffix, and the longest host name (253) with scheme and port.
ADDRESS_LENGTH_MAX: Final = 640
# How much of an invalid name an error repeats: enough to find it, too little to flood a log.
SHOWN_LENGTH_MAX: Final = 80

BACKLOG_MARKER: Final = "x-servicebus-transfer"
BACKLOG_SEPARATOR: Final = f"/{BACKLOG_MARKER}/"
"""In the path of a backlog queue, between the name of its primary and its index."""

SUBSCRIPTIONS: Final = "subscriptions"
"""In the path of a subscription, between its topic and its name."""
RULES: Final = "rules"
"""In the path of a rule, between its subscription and its name."""

SubQueue = Literal["dead-letter", "transfer-dead-letter"]
Node = Literal["entity", "management", "cbs"]

_SEGMENT = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_RESERVED_SEGMENT = re.compile(r"\$[A-Za-z]+", re.ASCII)
_SCHEME = re.compile(r"(?:amqps?|sb)://[^/@\s]+/", re.ASCII | re.IGNORECASE)
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)

_SUB_QUEUES: Final[dict[tuple[str, ...], SubQueue]] = {
    ("$deadletterqueue",): "dead-letter",
    ("$transfer", "$deadletterqueue"): "transfer-dead-letter",
}
_SUB_QUEUE_PATHS: Final = {name: "/".join(path) for path, name in _SUB_QUEUES.items()}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a link, inside the namespace that it is connected to."""

    entity: str
    """Canonical path of the queue, topic or subscription; empty for ``$cbs`` only."""
    sub_queue: SubQueue | None = None
    node: Node = "entity"

    @property
    def path(self) -> str:
        """The entity with its sub-queue but without ``$management``: what a token must cover."""
        if self.sub_queue is None:
            return self.entity
        return f"{self.entity}/{_SUB_QUEUE_PATHS[self.sub_queue]}"

    def __str__(self) -> str:
        if self.node == "cbs":
            return "$cbs"
        return f"{self.path}/$management" if self.node == "management" else self.path


@dataclass(frozen=True, slots=True)
class BacklogPath:
    """The parts of the path of a backlog queue."""

    primary: str
    index: int

    def __str__(self) -> str:
        return f"{backlog_prefix(self.primary)}{self.index}"


def parse_entity_path(text: str) -> str:
    """The canonical form of an entity's path; raises InvalidEntityPath."""
    return "/".join(_entity_segments(text))


def parse_address(text: str) -> Address:
    """Parse a link's source or target address, with or without a ``scheme://host`` before it.

    The host is not checked: a link always belongs to the namespace of its connection.
    """
    if len(text) > ADDRESS_LENGTH_MAX:
        raise InvalidEntityPath(
            f"an address has at most {ADDRESS_LENGTH_MAX} characters, got {len(text)}"
        )
    prefix = _SCHEME.match(text)
    path = text[prefix.end() :] if prefix else text
    if path.lower() == "$cbs":
        return Address("", node="cbs")
    names, reserved = _split_reserved(path)
    node: Node = "entity"
    if reserved and reserved[-1] == "$management":
        node, reserved = "management", reserved[:-1]
    if reserved and reserved not in _SUB_QUEUES:
        raise InvalidEntityPath(
            f"node {'/'.join(reserved)!r} not found: an entity has no such node"
        )
    return Address(parse_entity_path(names), _SUB_QUEUES.get(reserved), node)


def parse_backlog_path(text: str, *, backlog_queue_count: int | None = None) -> BacklogPath:
    """Parse ``<primary>/x-servicebus-transfer/<index>``; the index has no leading zeros."""
    if backlog_queue_count is not None:
        _check_count(backlog_queue_count)
    primary, *rest = _entity_segments(text)
    if len(rest) != 2 or rest[0] != BACKLOG_MARKER:
        raise InvalidEntityPath(f"{_shown(text)} is not the path of a backlog queue")
    if not _INDEX.fullmatch(rest[1]):
        raise InvalidEntityPath(f"{_shown(text)} does not end with the index of a backlog queue")
    index = int(rest[1])
    if backlog_queue_count is not None and index >= backlog_queue_count:
        raise InvalidEntityPath(
            f"backlog queue {index} not found: there are {backlog_queue_count}, from 0"
        )
    return BacklogPath(primary, index)


def backlog_prefix(primary: str) -> str:
    """The common prefix of the paths of a primary's backlog queues."""
    return f"{primary}{BACKLOG_SEPARATOR}"


def backlog_owner(path: str) -> str:
    """The primary whose backlog queue, or its dead-letter queue, has this canonical path; empty for
    every other entity. The path must be parsed already: nothing is checked."""
    primary, separator, _index = path.partition(BACKLOG_SEPARATOR)
    return primary if separator else ""


def parse_resource_segments(text: str) -> tuple[str, ...]:
    """The canonical segments of a path in a token: empty for the whole namespace.

    Unlike an entity's path it may end with reserved segments, or with one slash.
    """
    if text in ("", "/"):
        return ()
    if text.lower() == "$cbs":
        return ("$cbs",)
    names, reserved = _split_reserved(text.removesuffix("/"))
    return (*_entity_segments(names), *reserved)


def owning_entity(segments: Sequence[str]) -> str:
    """The queue or topic whose access rules cover a path, by its canonical segments.

    An entity covers its dead-letter queue and its ``$management``, a topic also its subscriptions
    and their rules. Any other longer path is another entity. Empty if no entity covers it.
    """
    names = list(segments)
    for at, segment in enumerate(names):
        if segment.startswith("$"):
            del names[at:]
            break
    # No queue and no topic has this segment in its path (broker/engine/descriptions.py).
    if SUBSCRIPTIONS in names[1:]:
        at = names.index(SUBSCRIPTIONS, 1)
        if len(names) > at + 2 and (names[at + 2] != RULES or len(names) > at + 4):
            return ""
        del names[at:]
    return "/".join(names)


def _check_count(count: object) -> None:
    # NaN is not below any number, so that it would allow every index.
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigurationError(
            f"backlog_queue_count must be a whole number of at least 1, got {count!r:.60}"
        )


def _split_reserved(path: str) -> tuple[str, tuple[str, ...]]:
    """Separate the user's segments from the ``$…`` segments after them."""
    names, dollar, tail = path.partition("/$")
    if not dollar:
        return path, ()
    reserved = tuple(("$" + tail).lower().split("/"))
    if not all(_RESERVED_SEGMENT.fullmatch(segment) for segment in reserved):
        raise InvalidEntityPath(f"{_shown(path)} has a name after a reserved '$' segment")
    return names, reserved


def _entity_segments(text: str) -> list[str]:
    if not text:
        raise InvalidEntityPath("the path of an entity is empty")
    if len(text) > ENTITY_PATH_LENGTH_MAX:
        raise InvalidEntityPath(
            f"the path of an entity has at most {ENTITY_PATH_LENGTH_MAX} characters, "
            f"got {len(text)}"
        )
    segments = text.split("/")
    for segment in segments:
        _check_segment(segment, text)
    if not (text[0].isalnum() and text[-1].isalnum()):
        raise InvalidEntityPath(f"{_shown(text)} must begin and end with a letter or a digit")
    return [segment.lower() for segment in segments]


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ConfigurationError for a pattern that matches no name, for example two in one."""
    if not patterns:
        raise ConfigurationError(
            "the list of allowed destinations is empty", hint="Use '*' for all"
        )
    for pattern in patterns:
        if not pattern or "," in pattern or pattern != pattern.strip():
            raise ConfigurationError(
                f"pattern {_shown(pattern)} matches no entity name",
                hint="Pass each pattern separately, without blanks and commas",
            )


def _check_segment(segment: str, text: str) -> None:
    if not segment:
        raise InvalidEntityPath(f"{_shown(text)} has a leading, trailing or double slash")
    if segment.startswith("$"):
        raise InvalidEntityPath(
            f"{_shown(text)} has a name that begins with '$', which is reserved"
        )
    if segment in (".", ".."):
        raise InvalidEntityPath(f"{_shown(text)} has a '.' or '..' segment")
    if not _SEGMENT.fullmatch(segment):
        raise InvalidEntityPath(f"{_shown(text)} has an invalid character")


def _shown(text: str) -> str:
    """The text for an error: short, with all special characters escaped."""
    short = text if len(text) <= SHOWN_LENGTH_MAX else text[: SHOWN_LENGTH_MAX - 1] + "…"
    return ascii(short)
