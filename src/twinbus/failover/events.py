"""What happens in a pair, as values: for ``events()``, the journal and the log.

Rule 1: every transition is one event (P16), with its time on the clock of the pair and a reason.
Rule 2: ``PingPrimary`` is not an event but work to do; it is the only such value here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

REASON_CHARACTERS_MAX: Final = 300

REFUSAL_ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "not found": "Create the entity, or correct its name in the application.",
        "unauthorized": "Give the application a key with the Send claim for the entity, and "
        "restart it. Its messages stay in the backlog until a syphon moves them.",
    }
)


@dataclass(frozen=True, slots=True)
class PingPrimary:
    """Send a ping to the entity; pass its result to ``EntityFailover.ping_answered``."""

    path: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Suspected:
    """The first failure that counts: the failover interval has begun."""

    path: str
    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SuspicionCleared:
    """A send succeeded before the interval had passed."""

    path: str
    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Diverted:
    """From now on the entity's sends go to the backlog."""

    path: str
    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PingSent:
    path: str
    at_s: float


@dataclass(frozen=True, slots=True)
class PingFailed:
    path: str
    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PingRefused:
    """The primary is reachable and refuses the messages of this diverted entity until an operator
    acts (P23). Reported at once for each diversion and each ``refusal``, then once an hour."""

    path: str
    at_s: float
    refusal: str
    """``not found`` or ``unauthorized``."""
    reason: str = ""
    advice: str = field(init=False)
    """What an operator can do about it; callers get no error."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "advice", REFUSAL_ADVICE.get(self.refusal, ""))


@dataclass(frozen=True, slots=True)
class RestoreDelayed:
    """A ping succeeded so soon after the last restore that the entity stays diverted."""

    path: str
    at_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Restored:
    """From now on the entity's sends go to the primary again."""

    path: str
    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EntityHeld:
    """The entity stays on the primary or on the backlog until an operator ends the hold."""

    path: str
    at_s: float
    is_diverted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BacklogQueueWithdrawn:
    """No sender of the factory uses this backlog queue until one more attempt at it succeeds."""

    queue: str
    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BacklogQueueReinstated:
    queue: str
    at_s: float


@dataclass(frozen=True, slots=True)
class BacklogExhaustedEvent:
    """Every backlog queue was withdrawn, and the caller of a send got an error."""

    path: str
    at_s: float
    withdrawn: int


@dataclass(frozen=True, slots=True)
class BacklogUnreachable:
    """The pair has no backlog queue yet: sends go to the primary and cannot be diverted (P19)."""

    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class BacklogReady:
    """The secondary has become reachable: the pair is complete (P19)."""

    at_s: float
    queues: int


@dataclass(frozen=True, slots=True)
class PossibleDuplicate:
    """An attempt was ambiguous and the message was sent again, to the same entity or another."""

    path: str
    at_s: float
    first: str
    """Where the first ambiguous attempt went: the path itself or a backlog queue."""
    message_ids: tuple[str, ...] = field(default=())
    attempts: int = 1
    """How many attempts were ambiguous: as many further copies may arrive."""


@dataclass(frozen=True, slots=True)
class BacklogThresholdCrossed:
    """A backlog queue passed a threshold, upwards or downwards."""

    queue: str
    at_s: float
    what: str
    """``percent-full``, ``messages`` or ``age``."""
    value: float
    threshold: float
    is_above: bool


@dataclass(frozen=True, slots=True)
class BacklogUnattended:
    """Messages wait in the backlog and none was moved for a while: is a syphon running? (Y7)"""

    at_s: float
    messages: int
    oldest_age_s: float


@dataclass(frozen=True, slots=True)
class SyphonStalled:
    """Messages wait, the syphon of this process runs, and it has moved none for a while."""

    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class ClaimMissing:
    """The syphon of this process may not receive from a backlog queue, or not send to a
    destination: the messages there stay in the backlog until it may."""

    at_s: float
    namespace: str
    path: str
    claim: str
    """``Listen`` or ``Send``."""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The syphon of this process dead-lettered messages; each is in the dead-letter queue of its
    backlog queue, with a reason."""

    at_s: float
    messages: int


@dataclass(frozen=True, slots=True)
class ForeignMessages:
    """The syphon of this process did not move messages that belong to another primary of the same
    name, whose pair uses the same backlog queues (P21). Reported once for each such primary."""

    at_s: float
    owner: str
    """The mark of that pair: an id and the address of its primary."""
    messages: int


@dataclass(frozen=True, slots=True)
class BacklogDrained:
    """The backlog held messages and holds none any more."""

    at_s: float


@dataclass(frozen=True, slots=True)
class FactoryClosedEvent:
    """A factory of the pair was closed."""

    side: str
    at_s: float


@dataclass(frozen=True, slots=True)
class FactoryFaultedEvent:
    """A factory of the pair has faulted."""

    side: str
    at_s: float
    reason: str = ""


Event: TypeAlias = (
    Suspected
    | SuspicionCleared
    | Diverted
    | PingSent
    | PingFailed
    | PingRefused
    | RestoreDelayed
    | Restored
    | EntityHeld
    | BacklogQueueWithdrawn
    | BacklogQueueReinstated
    | BacklogExhaustedEvent
    | BacklogUnreachable
    | BacklogReady
    | PossibleDuplicate
    | BacklogThresholdCrossed
    | BacklogUnattended
    | SyphonStalled
    | ClaimMissing
    | DeadLettered
    | ForeignMessages
    | BacklogDrained
    | FactoryClosedEvent
    | FactoryFaultedEvent
)


def error_summary(error: BaseException) -> str:
    """An error as the reason of an event: one line of at most REASON_CHARACTERS_MAX."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:REASON_CHARACTERS_MAX]
