"""What a receiver can decide about a message it holds (rule M2)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Complete:
    """Processed: it is gone."""

    forwarded_to: str = ""
    """The entity that has it now, if the broker itself moved it on."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Not processed: hand it out again and count the attempt."""


@dataclass(frozen=True, slots=True)
class Release:
    """Never looked at: hand it out again as if nothing had happened."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Put aside, to be received by its sequence number only."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Cannot be processed: move it to the dead-letter queue."""

    reason: str = ""
    description: str = ""


SettlementOutcome = Complete | Abandon | Release | Defer | DeadLetter

COMPLETE = Complete()
ABANDON = Abandon()
RELEASE = Release()
DEFER = Defer()

# The reasons the service itself gives; receivers of dead-letter queues look for these words.
EXPIRED = DeadLetter("TTLExpiredException", "The message expired and was dead lettered.")
MAX_DELIVERIES = DeadLetter(
    "MaxDeliveryCountExceeded",
    "Message could not be consumed after the maximum number of delivery attempts.",
)
NO_SESSION_ID = DeadLetter(
    "Session id is null.",
    "Session enabled entity doesn't allow a message whose session identifier is null.",
)
