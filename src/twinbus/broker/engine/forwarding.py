"""Forwarding: which targets are allowed, and how a message changes when it is forwarded.

    queue, subscription --forward_to--> queue, topic
    their dead letters  --forward_dead_lettered_messages_to--> queue, topic
    topic --> its subscriptions

Rule 1: no path of forwards, of any of the three kinds, leads back to its start, and none has more
        than four forwards. Both are checked when an entity is created or changed, so that a
        message never has to be stopped between two entities.
Rule 2: the target exists when the forward is set. When it is deleted, the forward ends with it:
        a new entity of the same name is not the authorized target (rule M14).
Rule 3: a message keeps its ids, properties, annotations and the rest of its time to live, and the
        sequence number of its first entity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Long, Symbol
from twinbus.broker.access.sas import Audience
from twinbus.broker.engine.audit_hooks import audited_path
from twinbus.broker.engine.consumers import DeliveryBatch
from twinbus.broker.engine.descriptions import (
    FORWARD_FIELDS,
    QueueDescription,
    SubscriptionDescription,
)
from twinbus.broker.engine.outcomes import DeadLetter
from twinbus.broker.engine.stored_message import (
    IncomingMessage,
    MessageOrigin,
    facts_of,
    pack_record,
    unpack_record,
)
from twinbus.common.clock import Instant
from twinbus.common.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue

__all__ = [
    "FORWARDS_MAX",
    "check_forwarding",
    "find_rejection",
    "forwarded",
    "own_targets",
    "target_of",
    "target_path",
    "targets_first",
    "without_forwards",
]

# As in Azure Service Bus.
FORWARDS_MAX: Final = 4

_Rest = TypeVar("_Rest")

_ORIGINAL_SEQ = encode_value(Symbol("x-opt-enqueue-sequence-number"))


def targets_of(description: QueueDescription) -> list[str]:
    """The paths that an entity forwards to."""
    wanted = (description.forward_to, description.forward_dead_lettered_messages_to)
    return [path for path in wanted if path is not None]


def without_forwards(description: QueueDescription, targets: Collection[str]) -> QueueDescription:
    """The description without the forwards to these paths; unchanged if there are none."""
    if not any(path in targets for path in targets_of(description)):
        return description
    forward_to, dead_letters_to = (
        None if path in targets else path
        for path in (description.forward_to, description.forward_dead_lettered_messages_to)
    )
    return replace(
        description, forward_to=forward_to, forward_dead_lettered_messages_to=dead_letters_to
    )


def target_path(text: str, audience: Audience) -> str:
    """The path of a forwarding target that is a path, or a URL with a host name of this namespace.

    The port may be any: the namespace's own, the one for TLS, or a mapped one.
    """
    text = text.strip()
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        raise ConfigurationError(
            f"Invalid URL: {text!a:.80}", hint="Use sb://<host>/<entity>"
        ) from None
    if not url.netloc:
        return parse_entity_path(text)
    if not audience.answers_to(url.hostname):
        raise ConfigurationError(
            f"Messages can only be forwarded inside this namespace, not to {url.hostname!a:.80}",
            hint="Use the path of an entity in this namespace",
        )
    return parse_entity_path(url.path.strip("/"))


def own_targets(values: Mapping[str, Any], audience: Audience) -> dict[str, Any]:
    """The properties of an entity, with paths instead of URLs of this namespace."""
    return {
        name: target_path(value, audience)
        if name in FORWARD_FIELDS and isinstance(value, str) and value.strip()
        else value
        for name, value in values.items()
    }


def target_of(queue: Queue) -> str | None:
    """The path that a queue, subscription or dead-letter queue forwards to, or None."""
    description = queue.description
    if queue.is_dead_letter_queue:
        return description.forward_dead_lettered_messages_to
    return description.forward_to


def check_forwarding(new: QueueDescription, others: Iterable[QueueDescription]) -> None:
    """Refuse a description with a missing forwarding target, a loop, or too many forwards."""
    if not targets_of(new):
        return
    if new.forward_to is not None and new.requires_session:
        raise ConfigurationError(
            f"The {new.kind} {new.path!r} requires sessions and cannot forward its messages",
            hint="Remove forward_to or requires_session",
        )
    known = {each.path: each for each in others} | {new.path: new}
    for path in targets_of(new):
        _check_target(new, path, known.get(path))
    _ForwardPaths(known).check_from_all()


def _check_target(new: QueueDescription, path: str, target: QueueDescription | None) -> None:
    if path == new.path:
        raise ConfigurationError(
            f"The {new.kind} {new.path!r} cannot forward to itself", hint="Choose another target"
        )
    if target is None or not target.takes_messages:
        raise ConfigurationError(
            f"Queue or topic {path!r}, to which {new.path!r} forwards, not found",
            hint="Create the queue or topic first",
        )


class _ForwardPaths:
    """The longest path from each entity, counted in forwards."""

    def __init__(self, known: dict[str, QueueDescription]) -> None:
        self._known = known
        self._subscriptions: dict[str, list[str]] = {}
        for each in known.values():
            if isinstance(each, SubscriptionDescription):
                self._subscriptions.setdefault(each.topic_path, []).append(each.path)
        self._lengths: dict[str, int] = {}
        self._walking: set[str] = set()

    def check_from_all(self) -> None:
        for path in self._known:
            if self._length(path) > FORWARDS_MAX:
                raise ConfigurationError(
                    f"A message sent to {path!r} would be forwarded more than {FORWARDS_MAX} times",
                    hint="Use fewer forwards in a row",
                )

    def _steps(self, path: str) -> Iterator[tuple[str, int]]:
        description = self._known.get(path)
        if description is not None:
            yield from ((target, 1) for target in targets_of(description))
        yield from ((each, 0) for each in self._subscriptions.get(path, ()))

    def _length(self, path: str) -> int:
        # No deeper than a few steps: what is stored was checked, and one entity is new.
        if path in self._walking:
            raise ConfigurationError(
                f"Messages of {path!r} would be forwarded in a loop",
                hint="Forward to an entity that does not forward back",
            )
        if path not in self._lengths:
            self._walking.add(path)
            steps = [cost + self._length(target) for target, cost in self._steps(path)]
            self._lengths[path] = max(steps, default=0)
            self._walking.discard(path)
        return self._lengths[path]


def targets_first(
    wanted: Iterable[tuple[QueueDescription, _Rest]],
) -> list[tuple[QueueDescription, _Rest]]:
    """Entities, each with whatever belongs to it, in an order in which they can be created."""
    waiting = list(wanted)
    ordered: list[tuple[QueueDescription, _Rest]] = []
    while waiting:
        missing = {description.path for description, _rest in waiting}
        ready = [each for each in waiting if not missing.intersection(_needs(each[0]))]
        if not ready:
            # A loop: creating the entities raises the error about it.
            return ordered + waiting
        ordered += ready
        waiting = [each for each in waiting if missing.intersection(_needs(each[0]))]
    return ordered


def _needs(description: QueueDescription) -> list[str]:
    needs = targets_of(description)
    if isinstance(description, SubscriptionDescription):
        needs.append(description.topic_path)
    return needs


# -- forwarded messages -----------------------------------------------------------------------


def forwarded(
    source: Queue, grant: DeliveryBatch, index: int, target: QueueDescription, now: Instant
) -> IncomingMessage:
    """A message that was delivered to the forwarder, in the form that its target stores."""
    seq = grant.chunk.first_seq + index
    starts = grant.chunk.starts
    record = unpack_record(grant.blob, starts[index], starts[index + 1])
    if target.default_ttl_ms is not None:
        latest_ms = now.wall_ms + target.default_ttl_ms
        if record.expires_ms is None or record.expires_ms > latest_ms:
            record.expires_ms, record.ttl_ms = latest_ms, target.default_ttl_ms
    if _ORIGINAL_SEQ not in record.annotation_pairs:
        record.annotation_count += 1
        record.annotation_pairs += _ORIGINAL_SEQ + encode_value(Long(seq))
    packed = pack_record(record)
    facts = facts_of(packed, now.wall_ms) if target.needs_facts else None
    return IncomingMessage(
        packed, record.expires_ms, None, facts, MessageOrigin(audited_path(source), seq)
    )


def find_rejection(message: IncomingMessage, target: QueueDescription) -> DeadLetter | None:
    """Why the target can never accept the message, or None."""
    size, size_max = len(message.record), target.max_message_size_bytes
    if size > size_max:
        return DeadLetter(
            "ForwardingFailed",
            f"Entity {target.path!r} accepts messages of at most {size_max} bytes, this message "
            f"has {size}.",
        )
    session_id = None if message.facts is None else message.facts.session_id
    if target.requires_session and session_id is None:
        return DeadLetter(
            "ForwardingFailed",
            f"Entity {target.path!r} requires sessions, this message has no session id.",
        )
    return None
