"""What a factory says about its entities: one frozen value for each (P16)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from twinbus.core.failover import Health
from twinbus.pairing.occurrence import utc_at
from twinbus.pairing.routing import Entity

__all__ = ["EntityHealth", "health_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityHealth:
    """One queue or topic, as this factory knows it."""

    path: str
    state: Health
    is_diverted: bool
    """Whether sends go to the backlog now."""
    since: datetime | None
    """When the state last changed; None if it never did."""
    reason: str
    epoch: int
    """How often it was diverted."""
    sends_under_way: int
    messages_diverted: int
    """Messages that this factory has put into the backlog for it."""
    last_error: str
    """The last attempt that failed, at the primary or in the backlog."""


def health_of(path: str, entity: Entity | None) -> EntityHealth:
    """None is an entity that nobody has used."""
    if entity is None:
        return EntityHealth(
            path=path,
            state=Health.HEALTHY,
            is_diverted=False,
            since=None,
            reason="",
            epoch=0,
            sends_under_way=0,
            messages_diverted=0,
            last_error="",
        )
    failover = entity.failover
    return EntityHealth(
        path=path,
        state=failover.health,
        is_diverted=failover.is_diverted,
        since=utc_at(failover.since_s) if failover.since_s else None,
        reason=failover.reason,
        epoch=failover.epoch,
        sends_under_way=entity.sends_under_way,
        messages_diverted=entity.messages_diverted,
        last_error=entity.last_error,
    )
