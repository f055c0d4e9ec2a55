"""How backlog messages are moved: one frozen value, checked when it is created."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from twinbus.errors import ConfigurationError
from twinbus.failover.backoff import Backoff
from twinbus.mover.planning.chunk_plan import DeliveryRules

__all__ = ["MoverOptions"]

# The service writes nothing for it, so a working destination responds in well under a second.
ATTACH_TIMEOUT_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverOptions:
    """What a mover may do, and how much of it at the same time."""

    rules: DeliveryRules
    """Where messages may go."""
    chunk_count: int = 1_000
    """The largest number of messages of a chunk; two chunks stay below the 2,048 unsettled
    deliveries that a link may have."""
    chunk_bytes: int = 16 << 20
    """About how many bytes a chunk should have: of large messages a chunk has fewer."""
    chunk_s_max: float = 30.0
    """No send begins later than this after its chunk was received: half of the lock."""
    chunks_at_once: int = 2
    """Chunks of one queue in progress: one is received while the other is sent."""
    in_flight_max: int | None = None
    """Messages of all queues that were sent and are not completed yet: at most this many are
    duplicated when the mover is killed. None: one chunk."""
    send_timeout_s: float = 20.0
    """For one batch to the primary; longer than a slow disk needs, shorter than the lock."""
    settle_timeout_s: float = 20.0
    """For one settlement in the backlog."""
    poll_s: float = 900.0
    """How long a receive waits for the first message of an idle queue (Y3)."""
    discovery_interval_s: float = 3_600.0
    """How often an idle queue is scanned for messages that another mover deferred, while there are
    signs of diverted messages."""
    attempts_max: int = 100
    """A message that was ambiguous this often, sent alone and with its destination working, is
    dead-lettered."""
    rate_per_s: float | None = None
    """The largest number of messages that are moved in a second; None: no limit."""
    backoff: Backoff = field(default_factory=Backoff)
    """The pauses between attempts at an unavailable destination."""

    def __post_init__(self) -> None:
        for name in (
            "chunk_count",
            "chunk_bytes",
            "chunks_at_once",
            "in_flight_max",
            "attempts_max",
        ):
            value = getattr(self, name)
            is_right = value is None or value >= 1
            self._check(name, is_right, "Use a whole number, 1 or more")
        for name in ("chunk_s_max", "send_timeout_s", "settle_timeout_s", "poll_s"):
            self._check(name, getattr(self, name) > 0, "Use a number of seconds greater than 0")
        self._check(
            "rate_per_s",
            self.rate_per_s is None or self.rate_per_s > 0,
            "Use a number of messages greater than 0, or None for no limit",
        )

    @property
    def attach_timeout_s(self) -> float:
        """For opening a link to a destination: one that does not respond is detected after it."""
        return min(ATTACH_TIMEOUT_S_MAX, self.send_timeout_s)

    def _check(self, name: str, is_right: bool, hint: str) -> None:
        if not is_right:
            raise ConfigurationError(
                f"Invalid value for {name}: {getattr(self, name)!r}", hint=hint
            )
