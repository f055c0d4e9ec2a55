"""What must be true of an entity by our own reckoning, and which errors mean what."""

from __future__ import annotations

from typing import Final

from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    LinkDetached,
    MessageRefused,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    ServiceInternalError,
)

# Said here once more, on purpose: a wrong row in the core's table must not excuse itself.
OUTAGE: Final = (OperationTimeout, CommunicationError, ServiceInternalError, LinkDetached)
QUEUE_IS_BAD: Final = (
    *OUTAGE,
    *(AuthenticationFailed, AccessRefused, EntityNotFound, EntityDisabled, QuotaExceeded),
)
MESSAGE_IS_BAD: Final = (MessageTooLarge, MessageRefused)
THROTTLE_S: Final = 10.0
PROBE_PAUSE_S_MIN: Final = 2.0
CLOSE_WINDOW_S: Final = 5.0
# With an interval of 0: how long one attempt may confirm the first failure.
CONFIRM_S_MAX: Final = 0.25
# A caller's silence counts from here on; a second, and a caller's timer is a little early.
SILENCE_S: Final = 0.95
EPSILON_S: Final = 1e-6


class Shadow:
    """What must be true of one entity, by our own reckoning."""

    __slots__ = (
        "diversions",
        "diverted_s",
        "is_away",
        "is_held",
        "last_ping_s",
        "last_success_s",
        "restored_s",
        "suspect_s",
        "was_forced",
        "was_ping_taken",
    )

    def __init__(self) -> None:
        self.is_away = self.is_held = self.was_forced = self.was_ping_taken = False
        self.diversions = 0
        self.diverted_s = 0.0
        self.suspect_s: float | None = None
        self.last_ping_s: float | None = None
        self.restored_s: float | None = None
        self.last_success_s = -1.0
