"""The copy of a message for a backlog queue, and its size.

    header | annotations          | properties           | application properties | body
    no ttl | no scheduled time    | no group-id, expiry  | + x-ms-path, ...       | as it is

In all functions ``owner`` is the mark of the pair that the message belongs to (P21); empty: none.

Rule 1: a message that the primary refuses and a backlog queue accepts is refused here: an outage
        must not turn an error of the caller into a lost message.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Final

from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Long, UInt
from twinbus.amqp.message.properties import GROUP_ID
from twinbus.amqp.message.sections import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS
from twinbus.encoding.envelope.fast_path import alias_plain
from twinbus.encoding.envelope.fields import (
    OWNER,
    PATH,
    RESERVED_NAMES,
    SCHEDULED,
    SCHEDULED_ANNOTATION,
    SESSION_ID,
    SESSION_ID_CHARACTERS_MAX,
    TIME_TO_LIVE,
    TTL_MS_MAX,
    WALL_MS_MAX,
    WALL_MS_MIN,
)
from twinbus.encoding.splicing import (
    CREATION_TIME,
    DAMAGE,
    EXPIRY_TIME,
    NULL,
    SECTION_HEAD_BYTES,
    TTL_MS_UNSPECIFIED,
    SectionEnds,
    expiry_ms,
    header_at,
    header_section,
    inside,
    map_section,
    outline,
    pairs_of,
    property_starts,
    timestamp_at,
    value_at,
    with_properties,
    without,
)
from twinbus.errors import MessageRefused, ReservedProperty, TooLargeForBacklog
from twinbus.message import PROPERTIES_BYTES_MAX

# str8-utf8 and str32-utf8.
_STRING_CODES: Final = b"\xa1\xb1"

_RESERVED_HINTS: Final = (b"x-ms-", OWNER.encode())
"""What the reserved names contain: a message without it needs no further check."""

_SCHEDULED_ONLY: Final = frozenset((SCHEDULED_ANNOTATION,))

_PATH_KEY: Final = encode_value(PATH)
_OWNER_KEY: Final = encode_value(OWNER)
_SESSION_KEY: Final = encode_value(SESSION_ID)
_TTL_KEY: Final = encode_value(TIME_TO_LIVE)
_SCHEDULED_KEY: Final = encode_value(SCHEDULED)


# --- reserved names ----------------------------------------------------------------------------


def check_reserved_names(names: Iterable[str | bytes]) -> None:
    """Raise ReservedProperty if an application property has a reserved name."""
    for name in names:
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
        if text.lower() in RESERVED_NAMES:
            raise ReservedProperty(name=text)


def check_reserved(encoded: bytes) -> None:
    """The same for an encoded message."""
    try:
        buf, stops = outline(encoded)
        _check_keys(buf, stops[3], stops[4])
    except DAMAGE as error:
        raise _malformed() from error


def _check_keys(buf: bytes, start: int, stop: int) -> None:
    if stop <= start:
        return
    names = buf[start:stop].lower()
    if any(hint in names for hint in _RESERVED_HINTS):
        check_reserved_names(pair[0] for pair in pairs_of(buf, start, stop) if pair[0])


# --- into the backlog --------------------------------------------------------------------------


def alias(encoded: bytes, path: str, owner: str = "") -> bytes:
    """A copy for a backlog queue, with ``path`` as its destination.

    Raises ReservedProperty, and MessageRefused for a message that the primary refuses and a backlog
    queue accepts (rule 1).
    """
    plain = alias_plain(encoded, path, owner)
    if plain is not None:
        return plain
    buf, stops, front = _build_alias(encoded, path, owner)
    return b"".join((*front, buf[stops[4] :]))


def _build_alias(encoded: bytes, path: str, owner: str) -> tuple[bytes, SectionEnds, list[bytes]]:
    """The message, where its sections end, and what precedes the body of the copy."""
    try:
        return _parse_sections(encoded, path, owner)
    except DAMAGE as error:
        raise _malformed(path) from error


def _malformed(path: str = "") -> MessageRefused:
    return MessageRefused("the message is not a whole AMQP message", path=path)


def _parse_sections(
    encoded: bytes, path: str, owner: str
) -> tuple[bytes, SectionEnds, list[bytes]]:
    buf, stops = outline(encoded)
    header_stop, delivery_stop, annotations_stop, properties_stop, stop = stops
    _check_keys(buf, properties_stop, stop)
    pairs = [_PATH_KEY, encode_value(path)]
    if owner:
        pairs += _owner_pair(owner)
    header = buf[:header_stop]
    annotations = buf[delivery_stop:annotations_stop]
    starts = property_starts(buf, annotations_stop, properties_stop)
    changes: dict[int, bytes] = {}
    if len(starts) > GROUP_ID + 1 and buf[starts[GROUP_ID]] != 0x40:
        changes[GROUP_ID] = NULL
        pairs += (_SESSION_KEY, _session_value(buf, starts, path))
    if header_stop:
        sent = header_at(buf, header_stop)
        if sent.ttl_ms is not None:
            header = header_section(priority=sent.priority, durable=sent.durable)
            pairs += (_TTL_KEY, _take_ttl(buf, starts, sent.ttl_ms, changes))
    if SCHEDULED_ANNOTATION in annotations:
        annotations = _take_schedule(buf, delivery_stop, annotations_stop, path, pairs)
    properties = buf[annotations_stop:properties_stop]
    if changes:
        properties = with_properties(buf, starts, changes)
    delivery = buf[header_stop:delivery_stop]
    return buf, stops, [header, delivery, annotations, properties, _added(buf, stops, pairs)]


@lru_cache(maxsize=64)  # A process has few pairs.
def _owner_pair(owner: str) -> tuple[bytes, bytes]:
    return _OWNER_KEY, encode_value(owner)


def _added(buf: bytes, stops: SectionEnds, pairs: list[bytes]) -> bytes:
    """The application properties, followed by the pairs of the envelope."""
    start, stop = stops[3], stops[4]
    count, first = inside(buf, start + SECTION_HEAD_BYTES) if stop > start else (0, stop)
    body = b"".join((buf[first:stop], *pairs))
    return map_section(APPLICATION_PROPERTIES, (count + len(pairs)) >> 1, body)


def _session_value(buf: bytes, starts: list[int], path: str) -> bytes:
    raw = buf[starts[GROUP_ID] : starts[GROUP_ID + 1]]
    if raw[0] not in _STRING_CODES:
        raise MessageRefused(
            "the session id (the property group-id) is not a string",
            path=path,
            hint="Use a string",
        )
    # A character has at least one byte, so that only a long text can have too many.
    if len(raw) > SESSION_ID_CHARACTERS_MAX:
        session_id = value_at(raw, 0, len(raw))
        if len(session_id) > SESSION_ID_CHARACTERS_MAX:
            raise MessageRefused(
                f"the session id has at most {SESSION_ID_CHARACTERS_MAX} characters, "
                f"got {len(session_id)}",
                path=path,
            )
    return raw


def _take_ttl(buf: bytes, starts: list[int], ttl_ms: int, changes: dict[int, bytes]) -> bytes:
    """The alias of the time to live, by the table in encoding/splicing.py."""
    expires_ms = timestamp_at(buf, starts, EXPIRY_TIME)
    creation_ms = timestamp_at(buf, starts, CREATION_TIME)
    if creation_ms is None:
        return encode_value(Long(ttl_ms))
    if expires_ms is None:
        return encode_value(UInt(ttl_ms))
    if ttl_ms == TTL_MS_UNSPECIFIED and ttl_ms < expires_ms - creation_ms <= TTL_MS_MAX:
        ttl_ms = expires_ms - creation_ms
    if expires_ms == expiry_ms(creation_ms, ttl_ms):
        changes[EXPIRY_TIME] = NULL
    elif ttl_ms > TTL_MS_UNSPECIFIED:
        ttl_ms = TTL_MS_UNSPECIFIED
    return encode_value(Long(ttl_ms))


def _take_schedule(buf: bytes, start: int, stop: int, path: str, pairs: list[bytes]) -> bytes:
    """The annotations without the schedule, whose alias is added to ``pairs``.

    A value that is not a timestamp is kept, so that the service refuses it.
    """
    for key, _, first, after in pairs_of(buf, start, stop):
        if key == SCHEDULED_ANNOTATION and buf[first] == 0x83:
            at_ms = int.from_bytes(buf[first + 1 : after], "big", signed=True)
            if not WALL_MS_MIN <= at_ms <= WALL_MS_MAX:
                raise MessageRefused(
                    "the scheduled enqueue time is outside the years 1 to 9999", path=path
                )
            pairs += (_SCHEDULED_KEY, buf[first:after])
            return without(MESSAGE_ANNOTATIONS, buf, start, stop, _SCHEDULED_ONLY)
    return buf[start:stop]


# --- sizes -------------------------------------------------------------------------------------


def size_if_aliased(encoded: bytes, path: str, owner: str = "") -> int:
    """The size of the result of alias() in bytes, without copying the body."""
    buf, stops, front = _build_alias(encoded, path, owner)
    return sum(map(len, front)) + len(buf) - stops[4]


def overhead_bytes(encoded: bytes, path: str, owner: str = "") -> int:
    """How many bytes alias() adds to this message."""
    return size_if_aliased(encoded, path, owner) - len(encoded)


@lru_cache(maxsize=1_024)  # Called for every send; an application has a few paths.
def overhead_bytes_max(path: str, owner: str = "") -> int:
    """The most that alias() can add to any message for this destination.

    12 for the section and its head, 11 for the first name, the path, 17 for a session (its name,
    and a null where it was), 26 for a time to live, 1 for a schedule, whose names differ by one.
    332 bytes for the longest path. The mark of a pair has its name and at most 115 bytes: 463 with
    the longest one.
    """
    size = len(path.encode())
    mark = sum(map(len, _owner_pair(owner))) if owner else 0
    return size + (69 if size < 256 else 72) + mark


def check_fits(encoded: bytes, path: str, limit_bytes: int, owner: str = "") -> None:
    """Raise TooLargeForBacklog if a backlog queue with this limit would refuse the message (P13).

    A small message costs one comparison.
    """
    if len(encoded) + overhead_bytes_max(path, owner) <= min(limit_bytes, PROPERTIES_BYTES_MAX):
        return
    buf, stops, front = _build_alias(encoded, path, owner)
    size = len(encoded)
    aliased = sum(map(len, front)) + len(buf) - stops[4]
    if aliased > limit_bytes:
        raise TooLargeForBacklog(
            path=path, size_bytes=size, overhead_bytes=aliased - size, limit_bytes=limit_bytes
        )
    before = _values_bytes(buf[start:stop] for start, stop in pairwise(stops))
    after = _values_bytes(front[1:])
    if after > PROPERTIES_BYTES_MAX >= before:
        raise TooLargeForBacklog(
            path=path,
            size_bytes=before,
            overhead_bytes=after - before,
            limit_bytes=PROPERTIES_BYTES_MAX,
            what="property part of the message",
        )


def _values_bytes(sections: Iterable[bytes]) -> int:
    """The size of the sections without their descriptors, as the limit for properties counts."""
    return sum(len(section) - SECTION_HEAD_BYTES for section in sections if section)
