"""Restores the original message from what a backlog queue delivered.

Rule 1: a message is restored completely or not at all: any defect is an EnvelopeError with a
        reason.
Rule 2: values that only a broker sets (numbers, times, locks, counts) are removed.
Rule 3: a message that an entity would drop as a ping is not restored: pings are never diverted, so
        that a message would be lost without an error (M7).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Long, Symbol, Timestamp
from twinbus.amqp.message.properties import GROUP_ID, MESSAGE_ID
from twinbus.amqp.message.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
)
from twinbus.encoding.envelope.fast_path import bare_message_start, restore_plain
from twinbus.encoding.envelope.fields import (
    HOPS_ANNOTATION,
    OWNER,
    PATH,
    RESERVED_NAMES,
    SCHEDULED,
    SCHEDULED_ANNOTATION,
    SESSION_ID,
    TIME_TO_LIVE,
    Reason,
    TtlPolicy,
    hops_pair,
    malformed,
    misspelt,
    no_destination,
    read_owner,
    read_path,
    read_scheduled_ms,
    read_session_id,
    read_ttl_ms,
)
from twinbus.encoding.ping import PING_CONTENT_TYPE, is_ping
from twinbus.encoding.splicing import (
    CREATION_TIME,
    DAMAGE,
    EXPIRY_TIME,
    TTL_MS_UNSPECIFIED,
    Pair,
    SectionEnds,
    expiry_ms,
    header_at,
    header_section,
    map_section,
    outline,
    pairs_of,
    property_starts,
    timestamp_at,
    value_at,
    with_properties,
    without,
)
from twinbus.errors import EnvelopeError

_OWNER_KEY: Final = OWNER.encode()
_RESERVED: Final = frozenset(name.encode() for name in RESERVED_NAMES)
# Annotations that only a broker sets.
_BROKER_ANNOTATIONS: Final = frozenset(
    (
        b"x-opt-sequence-number",
        b"x-opt-enqueued-time",
        b"x-opt-locked-until",
        b"x-opt-lock-token",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-message-state",
        b"x-opt-deadletter-source",
        b"x-opt-partition-id",
    )
)

_DEFAULT_PRIORITY: Final = 4
_PING_BYTES: Final = PING_CONTENT_TYPE.encode()
_SCHEDULED_PAIR: Final = encode_value(Symbol(SCHEDULED_ANNOTATION.decode()))


class RestoredMessage(NamedTuple):
    """A message to be sent to its destination."""

    path: str
    """The destination as the sender wrote it; mover/planning/chunk_plan.py checks it."""
    encoded: bytes
    session_id: str | None
    message_id: str | None
    """As text, whatever its type, for receipts."""
    owner: str = ""
    """The mark of the pair that it belongs to; empty: it has none."""


def restore(
    encoded: bytes,
    *,
    now_ms: int,
    enqueued_at_ms: int | None = None,
    ttl_policy: TtlPolicy = TtlPolicy.RESTART,
) -> RestoredMessage:
    """The original message, from the bytes that the backlog queue delivered.

    ``now_ms`` and ``enqueued_at_ms`` count for policies other than RESTART. Raises EnvelopeError
    for a message that can never be restored.
    """
    bare_at = bare_message_start(encoded)
    try:
        if bare_at and (plain := restore_plain(encoded, bare_at)):
            return RestoredMessage(*plain)
        return _restored(encoded, bare_at, now_ms, enqueued_at_ms, ttl_policy)
    except DAMAGE as error:
        raise malformed(getattr(error, "description", "Its bytes are not complete.")) from error


def _restored(
    encoded: bytes, bare_at: int, now_ms: int, enqueued_at_ms: int | None, ttl_policy: TtlPolicy
) -> RestoredMessage:
    buf, stops = outline(encoded, bare_at)
    _, _, annotations_stop, properties_stop, stop = stops
    found, application_properties = _take_aliases(buf, properties_stop, stop)
    path = read_path(found[PATH])
    starts = property_starts(buf, annotations_stop, properties_stop)
    properties = buf[annotations_stop:properties_stop]
    session_id = _group_id(buf, starts)
    ttl_ms = scheduled_ms = None
    owner = read_owner(found[OWNER]) if OWNER in found else ""
    if len(found) > 1:
        changes: dict[int, bytes] = {}
        if SESSION_ID in found:
            session_id = read_session_id(found[SESSION_ID])
            changes[GROUP_ID] = encode_value(session_id)
        if SCHEDULED in found:
            scheduled_ms = read_scheduled_ms(found[SCHEDULED])
        if TIME_TO_LIVE in found:
            ttl_ms = read_ttl_ms(found[TIME_TO_LIVE])
            waited_ms = _waited_ms(now_ms, enqueued_at_ms, scheduled_ms)
            ttl_ms = _ttl_left_ms(ttl_ms, waited_ms, ttl_policy)
            _put_times(buf, starts, ttl_ms, type(found[TIME_TO_LIVE]), now_ms, changes)
        if changes:
            properties = with_properties(buf, starts, changes)
    front = _restored_front(buf, stops, bool(bare_at), ttl_ms, scheduled_ms)
    whole = b"".join((*front, properties, application_properties, buf[stop:]))
    if _PING_BYTES in properties and is_ping(whole):
        raise _looks_like_ping()
    return RestoredMessage(path, whole, session_id, _message_id(buf, starts), owner)


def read_destination(encoded: bytes) -> tuple[str, str | None]:
    """(destination, message id) of a message that cannot be restored, as far as it has them."""
    path = ""
    try:
        buf, stops = outline(encoded)
        message_id = _message_id(buf, property_starts(buf, stops[2], stops[3]))
        with suppress(EnvelopeError):
            path = read_path(_take_aliases(buf, stops[3], stops[4])[0][PATH])
    except DAMAGE:
        return path, None
    return path, message_id


def read_owner_mark(encoded: bytes) -> str:
    """The mark of the pair that a message belongs to, also of one that cannot be restored; empty
    where it has none, or none that can be read."""
    try:
        buf, stops = outline(encoded)
        for key, _, first, after in pairs_of(buf, stops[3], stops[4]):
            if key == _OWNER_KEY:
                return read_owner(value_at(buf, first, after))
    except (*DAMAGE, EnvelopeError):
        return ""
    return ""


def read_message_id(encoded: bytes) -> str | None:
    """The id of any message as text, as receipts have it; None where it has none."""
    try:
        buf, stops = outline(encoded)
        return _message_id(buf, property_starts(buf, stops[2], stops[3]))
    except DAMAGE:
        return None


def _looks_like_ping() -> EnvelopeError:
    return EnvelopeError(
        reason=Reason.LOOKS_LIKE_A_PING,
        description="The message is empty and has the content type and time to live of a ping: its "
        "destination would drop it.",
    )


def _restored_front(
    buf: bytes, stops: SectionEnds, is_usual: bool, ttl_ms: int | None, scheduled_ms: int | None
) -> tuple[bytes, ...]:
    """Header, delivery and message annotations; of a usual front nothing is kept."""
    header_stop, delivery_stop, annotations_stop = stops[:3]
    if not is_usual:
        return (
            _restored_header(_priority_at(buf, header_stop), ttl_ms),
            without(DELIVERY_ANNOTATIONS, buf, header_stop, delivery_stop, _BROKER_ANNOTATIONS),
            _restored_annotations(buf, delivery_stop, annotations_stop, scheduled_ms),
        )
    if ttl_ms is None and scheduled_ms is None:
        return ()
    return _restored_header(None, ttl_ms), _restored_annotations(buf, 0, 0, scheduled_ms)


def _take_aliases(buf: bytes, start: int, stop: int) -> tuple[dict[str, Any], bytes]:
    """The values of the envelope by name, and the other application properties."""
    found: dict[str, Any] = {}
    kept: list[bytes] = []
    for pair in pairs_of(buf, start, stop):
        key = pair[0]
        if key is None or key.lower() not in _RESERVED:
            kept.append(buf[pair[1] : pair[3]])
        else:
            _take(buf, key, pair, found)
    if PATH not in found:
        raise no_destination()
    return found, map_section(APPLICATION_PROPERTIES, len(kept), b"".join(kept))


def _take(buf: bytes, key: bytes, pair: Pair, found: dict[str, Any]) -> None:
    name = key.decode()
    if name not in RESERVED_NAMES:
        raise misspelt(key)
    if name in found:
        raise malformed(f"It has {name} twice.")
    found[name] = value_at(buf, pair[2], pair[3])


def _waited_ms(now_ms: int, enqueued_at_ms: int | None, scheduled_ms: int | None) -> int:
    """How much of its time to live has passed: it begins when the message is due."""
    if enqueued_at_ms is None:
        return 0
    begun_ms = enqueued_at_ms if scheduled_ms is None else max(enqueued_at_ms, scheduled_ms)
    return max(0, now_ms - begun_ms)


def _ttl_left_ms(ttl_ms: int, waited_ms: int, ttl_policy: TtlPolicy) -> int:
    if ttl_policy is TtlPolicy.RESTART or waited_ms < ttl_ms:
        return ttl_ms if ttl_policy is TtlPolicy.RESTART else ttl_ms - waited_ms
    if ttl_policy is TtlPolicy.ELAPSED:
        return 1
    raise EnvelopeError(
        reason=Reason.EXPIRED,
        description=f"The message has expired: its time to live is {ttl_ms} ms, and it waited for "
        f"{waited_ms} ms.",
    )


def _put_times(
    buf: bytes, starts: list[int], ttl_ms: int, kind: type, now_ms: int, changes: dict[int, bytes]
) -> None:
    """The times that go with a time to live, by the table in encoding/splicing.py."""
    creation_ms = timestamp_at(buf, starts, CREATION_TIME)
    if timestamp_at(buf, starts, EXPIRY_TIME) is not None and ttl_ms <= TTL_MS_UNSPECIFIED:
        return
    if creation_ms is None:
        if ttl_ms <= TTL_MS_UNSPECIFIED:
            return
        creation_ms = now_ms
        changes[CREATION_TIME] = encode_value(Timestamp(creation_ms))
    elif kind is not Long and ttl_ms <= TTL_MS_UNSPECIFIED:
        return
    changes[EXPIRY_TIME] = encode_value(Timestamp(expiry_ms(creation_ms, ttl_ms)))


def _restored_header(priority: int | None, ttl_ms: int | None) -> bytes:
    """Priority and time to live. Service Bus stores every message, so durable is not set."""
    if ttl_ms is not None:
        ttl_ms = min(ttl_ms, TTL_MS_UNSPECIFIED)
    return header_section(
        priority=None if priority == _DEFAULT_PRIORITY else priority, ttl_ms=ttl_ms
    )


def _priority_at(buf: bytes, header_stop: int) -> int | None:
    if not header_stop:
        return None
    if buf[3] == 0xC0 and buf[6] in b"\x40\x41\x42" and buf[7] == 0x50 and header_stop > 8:
        return buf[8]
    return header_at(buf, header_stop).priority


def _restored_annotations(buf: bytes, start: int, stop: int, scheduled_ms: int | None) -> bytes:
    names, added = _BROKER_ANNOTATIONS, []
    if scheduled_ms is not None:
        names = names | {SCHEDULED_ANNOTATION}
        added.append(_SCHEDULED_PAIR + encode_value(Timestamp(scheduled_ms)))
    if hops := hops_pair(buf, start, stop):
        names = names | {HOPS_ANNOTATION}
        added.append(hops)
    return without(MESSAGE_ANNOTATIONS, buf, start, stop, names, added)


def _group_id(buf: bytes, starts: list[int]) -> str | None:
    if len(starts) <= GROUP_ID + 1 or buf[starts[GROUP_ID]] == 0x40:
        return None
    return str(value_at(buf, starts[GROUP_ID], starts[GROUP_ID + 1]))


def _message_id(buf: bytes, starts: list[int]) -> str | None:
    if len(starts) < 2 or buf[starts[MESSAGE_ID]] == 0x40:
        return None
    value = value_at(buf, starts[MESSAGE_ID], starts[MESSAGE_ID + 1])
    return value.hex() if isinstance(value, bytes) else str(value)
