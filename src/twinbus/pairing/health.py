"""What a factory says about its entities: one frozen value for each (P16)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from twinbus.core.failover import Health
from twinbus.pairing.occurrence import utc_at
from twinbus.pairing.routing import SendRouter

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
    last_ping_error: str
    """What the last ping of a diverted entity met; empty when it succeeded (P23)."""
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """The backlog queues that no sender of the factory uses now, each with the reason."""
    backlog_error: str = ""
    """Why the pair has no backlog yet, or nothing: until then no send can be diverted (P19)."""


def health_of(path: str, routing: SendRouter) -> EntityHealth:
    """Also of an entity that was not used yet."""
    entity, withdrawn = routing.entities.get(path), routing.rules.rotation.withdrawn_reasons
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
            last_ping_error="",
            withdrawn=withdrawn,
            backlog_error=routing.backlog_error,
        )
    failover = entity.failover
    return EntityHealth(
        path=path,
        state=failover.health,
        is_diverted=failover.is_diverted,
        since=utc_at(failover.since_s) if failover.since_s else None,
        reason=failover.reason,
        epoch=failover.epoch,
        sends_under_way=entity.sends_under_way + len(entity.direct),
        messages_diverted=entity.messages_diverted,
        last_error=entity.last_error,
        last_ping_error=failover.last_ping_error,
        withdrawn=withdrawn,
        backlog_error=routing.backlog_error,
    )
