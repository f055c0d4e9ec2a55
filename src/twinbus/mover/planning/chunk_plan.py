"""What is done with a chunk of a backlog queue, and which destinations are allowed.

    deliveries --plan_chunk-->          the messages of each destination, poison messages, and
                                        messages of another pair (P21)
    messages   --split_into_batches-->  what is sent to the primary in one send
    an error   --classify_error-->      what is done with the batch that failed

The destination is data from a message (Y6): every sender of a backlog queue can write
``x-ms-path``, and the syphon would use its own claims for it. So a destination is

    a plain entity of the primary   no host, scheme, ``$...`` or ``..`` (common/entity_path.py)
    not a backlog queue             messages would be moved in circles
    on the list of patterns         compared in the canonical form

Rule 1: destinations are canonical (lower case); ``Orders`` and ``orders`` are one queue.
Rule 2: a destination may itself forward to a backlog queue. A restored message has no destination
        left, so it stays there; if a subscription rule sets one again, its hops are counted
        (encoding/envelope/fields.py).
Rule 3: a message that can never be delivered is detected here, or when its destination refuses it;
        it is dead-lettered with a reason and never delays others (Y4).
Rule 4: a batch that is refused is split until the refused message is alone; the others are moved.
Rule 5: ERROR_CLASSES states what an error means; an error that ``is_ambiguous`` is always
        AMBIGUOUS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, TypeVar

from twinbus.common.entity_path import BACKLOG_MARKER, check_patterns, parse_entity_path
from twinbus.encoding.batching import ranges_that_fit
from twinbus.encoding.envelope import TtlPolicy, read_destination, read_owner_mark, restore
from twinbus.encoding.envelope.fields import Reason
from twinbus.encoding.pair_mark import is_accepted
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    EnvelopeError,
    InvalidEntityPath,
    LinkDetached,
    MessageRefused,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)
from twinbus.mover.planning.chunk_ledger import RestoredDelivery
from twinbus.mover.planning.circuit_breaker import SendSignal

__all__ = [
    "BATCH_COUNT_MAX",
    "EVERY_ENTITY",
    "ChunkPlan",
    "DeliveryRules",
    "Foreign",
    "MoveErrorClass",
    "PoisonMessage",
    "check_destination",
    "classify_error",
    "plan_chunk",
    "poison_from_error",
    "send_signal_for",
    "split_batch",
    "split_into_batches",
]

EVERY_ENTITY: Final = ("*",)


def check_destination(
    path: str, *, allowed: Sequence[str] = EVERY_ENTITY, primary_name: str
) -> str:
    """The canonical path, or EnvelopeError with the reason ``destination-not-allowed``.

    ``allowed`` holds patterns in which ``*`` stands for any text, slashes included, and ``?``
    for one character.
    """
    try:
        canonical = parse_entity_path(path)
    except InvalidEntityPath as error:
        raise _not_allowed(path, primary_name, error.sentence) from error
    if BACKLOG_MARKER in canonical.split("/"):
        raise _not_allowed(path, primary_name, "It is a backlog queue.")
    if not any(fnmatchcase(canonical, pattern.lower()) for pattern in allowed):
        raise _not_allowed(path, primary_name, "It is not on the list of allowed destinations.")
    return canonical


def _not_allowed(path: str, primary_name: str, why: str) -> EnvelopeError:
    return EnvelopeError(
        reason=Reason.DESTINATION_NOT_ALLOWED,
        description=f"{path[:80]!a} is not an allowed destination on {primary_name!r}: {why}",
    )


# One refused message costs about 2 log2 of this in further sends, and a crash between sending
# and completing duplicates at most this many of a destination; larger batches are hardly faster.
BATCH_COUNT_MAX: Final = 250
# After this many attempts a message is sent in batches that are half as large each further time,
# so that one which always ends in a timeout is alone in the end.
FULL_BATCH_ATTEMPTS: Final = 3
# A refused batch of at most this many messages is sent one by one.
SINGLES_MAX: Final = 8
# The service accepts 4,096 characters of a description; a few lines are enough.
DESCRIPTION_LENGTH_MAX: Final = 1_000


class MoveErrorClass(Enum):
    """What an error means for the batch that failed."""

    LATER = auto()
    """Nothing was stored, and the destination is unavailable now."""
    AMBIGUOUS = auto()
    """It may have been stored; it is sent again later."""
    REFUSED = auto()
    """A message in it is refused, now and later."""
    GONE = auto()
    """The destination does not exist."""


ERROR_CLASSES: Final[Mapping[type[ServiceError], MoveErrorClass]] = {
    ServerBusy: MoveErrorClass.LATER,
    EntityDisabled: MoveErrorClass.LATER,
    QuotaExceeded: MoveErrorClass.LATER,
    # Claims can be granted again; messages that were dead-lettered would not return.
    AuthenticationFailed: MoveErrorClass.LATER,
    AccessRefused: MoveErrorClass.LATER,
    CommunicationError: MoveErrorClass.LATER,
    OperationTimeout: MoveErrorClass.AMBIGUOUS,
    ServiceInternalError: MoveErrorClass.AMBIGUOUS,
    LinkDetached: MoveErrorClass.AMBIGUOUS,
    MessageTooLarge: MoveErrorClass.REFUSED,
    MessageRefused: MoveErrorClass.REFUSED,
    EntityNotFound: MoveErrorClass.GONE,
    # An error of an unknown kind: keep the message.
    ServiceError: MoveErrorClass.AMBIGUOUS,
}
SEND_SIGNALS: Final[Mapping[MoveErrorClass, SendSignal]] = {
    MoveErrorClass.LATER: SendSignal.FAILED,
    MoveErrorClass.AMBIGUOUS: SendSignal.FAILED,
    # A destination that refuses a message works.
    MoveErrorClass.REFUSED: SendSignal.ACCEPTED,
    MoveErrorClass.GONE: SendSignal.GONE,
}
POISON_REASONS: Final[Mapping[type[ServiceError], str]] = {
    MessageTooLarge: "message-too-large",
    MessageRefused: "message-refused",
    EntityNotFound: "destination-not-found",
    ServiceError: "too-many-attempts",
}


def classify_error(error: ServiceError) -> MoveErrorClass:
    """What ``error`` means for the batch that failed."""
    return MoveErrorClass.AMBIGUOUS if error.is_ambiguous else _by_kind(ERROR_CLASSES, error)


def send_signal_for(error: ServiceError) -> SendSignal:
    """What ``error`` means for the circuit of its destination."""
    return SEND_SIGNALS[classify_error(error)]


_Value = TypeVar("_Value")


def _by_kind(table: Mapping[type[ServiceError], _Value], error: ServiceError) -> _Value:
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRules:
    """Where messages may be sent, and how their time to live is handled."""

    primary_name: str
    """The first label of the primary's host name: it names the backlog queues to search (Y9)."""
    allowed: tuple[str, ...] = ("*",)
    """Patterns of destinations that are delivered to."""
    ttl_policy: TtlPolicy = TtlPolicy.RESTART
    """Whether the time in the backlog counts (Y8)."""
    owner: str = ""
    """The mark of this pair; messages with another one are not moved (P21). Empty: all are."""
    accepted_owners: tuple[str, ...] = ()
    """Addresses of other pairs whose messages are moved as well; ``*``: all."""

    def __post_init__(self) -> None:
        check_patterns(self.allowed)


class Foreign(NamedTuple):
    """A message that belongs to another pair."""

    item: RestoredDelivery
    owner: str
    """The mark of that pair."""


class PoisonMessage(NamedTuple):
    """A message that can never be delivered."""

    item: RestoredDelivery
    reason: str
    description: str


@dataclass(slots=True)
class ChunkPlan:
    """What to do with the messages of one chunk."""

    by_destination: dict[str, list[RestoredDelivery]] = field(default_factory=dict)
    poison: list[PoisonMessage] = field(default_factory=list)
    foreign: list[Foreign] = field(default_factory=list)


def plan_chunk(
    deliveries: Sequence[ReceivedMessage], rules: DeliveryRules, *, now_ms: int
) -> ChunkPlan:
    """Restore every message and add it to those of its destination."""
    plan = ChunkPlan()
    # Most chunks name a few destinations a thousand times: each name is checked once.
    destinations: dict[str, tuple[str, list[RestoredDelivery]]] = {}
    ttl_policy = rules.ttl_policy
    owners = {"": True, rules.owner: True}
    for delivered in deliveries:
        try:
            named, encoded, session_id, message_id, owner = restore(
                delivered.encoded,
                now_ms=now_ms,
                enqueued_at_ms=delivered.enqueued_at_ms,
                ttl_policy=ttl_policy,
            )
            if owner not in owners:
                owners[owner] = _is_ours(owner, rules)
            if not owners[owner]:
                item = RestoredDelivery(delivered, named, message_id, b"")
                plan.foreign.append(Foreign(item, owner))
                continue
            found = destinations.get(named)
            if found is None:
                found = destinations[named] = _destination_list(plan, named, rules)
        except EnvelopeError as error:
            # A broken message of another pair is left to the syphon of that pair.
            if not _is_ours(owner := read_owner_mark(delivered.encoded), rules):
                item = RestoredDelivery(delivered, *read_destination(delivered.encoded), b"")
                plan.foreign.append(Foreign(item, owner))
            else:
                plan.poison.append(_undeliverable(delivered, error))
            continue
        found[1].append(RestoredDelivery(delivered, found[0], message_id, encoded, session_id))
    return plan


def _is_ours(owner: str, rules: DeliveryRules) -> bool:
    return is_accepted(owner, rules.owner, rules.accepted_owners)


def _undeliverable(delivered: ReceivedMessage, error: EnvelopeError) -> PoisonMessage:
    """A message whose envelope cannot be restored, with the reason."""
    named, message_id = read_destination(delivered.encoded)
    description = error.description
    # The destination is text from the message: shorten it, and escape everything unusual.
    if named and error.reason != Reason.DESTINATION_NOT_ALLOWED:
        description = f"{named[:80]!a}: {description}"
    item = RestoredDelivery(delivered, named, message_id, b"")
    return PoisonMessage(item, error.reason, _clip(description))


def _destination_list(
    plan: ChunkPlan, named: str, rules: DeliveryRules
) -> tuple[str, list[RestoredDelivery]]:
    """(path, its list) for one spelling of a destination: all spellings of it share one."""
    path = check_destination(named, allowed=rules.allowed, primary_name=rules.primary_name)
    return path, plan.by_destination.setdefault(path, [])


def split_into_batches(
    items: Sequence[RestoredDelivery], *, limit_bytes: int
) -> Iterator[list[RestoredDelivery]]:
    """The items in order, in batches that fit into one send."""
    for (count_max, _has_session), group in _batch_groups(items).items():
        for fitting in ranges_that_fit((len(each.encoded) for each in group), limit_bytes):
            for start in range(fitting.start, fitting.stop, count_max):
                yield group[start : min(start + count_max, fitting.stop)]


def _batch_groups(
    items: Sequence[RestoredDelivery],
) -> dict[tuple[int, bool], list[RestoredDelivery]]:
    """Which messages may share a batch: (how many at most, with or without sessions).

    A destination that requires sessions refuses all messages without one. In batches of their own
    they are found in a few sends; mixed with others they would cost each batch a dozen (Y4).
    """
    groups: dict[tuple[int, bool], list[RestoredDelivery]] = {}
    for item in items:
        repeats = item.delivered.delivery_count - FULL_BATCH_ATTEMPTS
        count_max = BATCH_COUNT_MAX if repeats <= 0 else max(1, BATCH_COUNT_MAX >> repeats)
        key = count_max, item.session_id is not None
        if key in groups:
            groups[key].append(item)
        else:
            groups[key] = [item]
    return groups


def split_batch(items: Sequence[RestoredDelivery]) -> list[Sequence[RestoredDelivery]]:
    """Two halves of a refused batch, to find the message that was refused; of a small batch its
    single messages, which needs fewer sends when several of them are refused."""
    if len(items) <= SINGLES_MAX:
        return [items[index : index + 1] for index in range(len(items))]
    middle = len(items) // 2
    return [items[:middle], items[middle:]]


def poison_from_error(item: RestoredDelivery, error: ServiceError) -> PoisonMessage:
    """A message that its destination will never accept."""
    description = f"{item.destination}: {error.sentence} ({type(error).__name__})"
    return PoisonMessage(item, _by_kind(POISON_REASONS, error), _clip(description))


def _clip(text: str) -> str:
    is_long = len(text) > DESCRIPTION_LENGTH_MAX
    return text[: DESCRIPTION_LENGTH_MAX - 1] + "…" if is_long else text
