"""What happens in a pair, as values: read live, kept in the journal, shown to operators.

Rule 1: every transition is one event (P16), with the moment on the core's clock and a reason.
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
        "unauthorized": "Give the application a key that may send to the entity, and restart it: "
        "its messages wait in the backlog until a syphon brings them home.",
    }
)


@dataclass(frozen=True, slots=True)
class PingPrimary:
    """Ask the primary entity whether it is back; answer with ``Failover.ping_answered``."""

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
    """The primary can be contacted, and will never take the messages of this diverted entity as
    things are (P23). For each diversion and each ``refusal`` at once, then once an hour."""

    path: str
    at_s: float
    refusal: str
    """``not found`` or ``unauthorized``."""
    reason: str = ""
    advice: str = field(init=False)
    """What an operator can do about it: nobody else will, and callers see no error."""

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
    """The entity stays where it is until somebody says otherwise."""

    path: str
    at_s: float
    is_diverted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BacklogQueueWithdrawn:
    """No sender of the factory uses this backlog queue until it was tried again."""

    queue: str
    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BacklogQueueReinstated:
    queue: str
    at_s: float


@dataclass(frozen=True, slots=True)
class BacklogExhaustedEvent:
    """A send found every backlog queue withdrawn, and its caller got an error."""

    path: str
    at_s: float
    withdrawn: int


@dataclass(frozen=True, slots=True)
class BacklogUnreachable:
    """The pair has no backlog yet: sends go to the primary and cannot be diverted (P19)."""

    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class BacklogReady:
    """The secondary answered after all: the pair is complete (P19)."""

    at_s: float
    queues: int


@dataclass(frozen=True, slots=True)
class PossibleDuplicate:
    """An attempt had no clear answer and the message went another way too."""

    path: str
    at_s: float
    first: str
    """Where the first unclear attempt went: the path itself or a backlog queue."""
    message_ids: tuple[str, ...] = field(default=())
    attempts: int = 1
    """How many attempts had no clear answer: so many further copies may arrive."""


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
    """Messages wait in the backlog and none has left for a while: is a syphon running? (Y7)"""

    at_s: float
    messages: int
    oldest_age_s: float


@dataclass(frozen=True, slots=True)
class SyphonStalled:
    """Messages wait, the syphon of this process runs, and none has come home for a while."""

    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class ClaimMissing:
    """The syphon of this process may not receive from a backlog queue, or not send to a
    destination: what waits there stays until it may."""

    at_s: float
    namespace: str
    path: str
    claim: str
    """``Listen`` or ``Send``."""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The syphon of this process gave up on messages; each is in the dead-letter queue of its
    backlog queue, with a reason."""

    at_s: float
    messages: int


@dataclass(frozen=True, slots=True)
class ForeignMessages:
    """The syphon of this process left messages alone that belong to another primary of the same
    name, whose pair uses the same backlog queues (P21). Told once for each such primary."""

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
    """A factory of the pair was given up."""

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
    """An error as the reason of an event: one line, of a length that a log can bear."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:REASON_CHARACTERS_MAX]
