"""A link is opened while a fault is switched on: refused, or not answered at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.access.claims import Claim
from twinbus.broker.faults.board import ActiveFault, FaultPhase, FaultRegistry
from twinbus.broker.faults.sends import failure

if TYPE_CHECKING:
    from twinbus.broker.attaching import AnyLinkHandler

SUB_QUEUE_MARK = "/$"


def entity_of(path: str) -> str:
    """The entity behind a link's path: without its sub-queue and its management node."""
    return path.partition(SUB_QUEUE_MARK)[0]


def inject_attach(registry: FaultRegistry, end: AnyLinkHandler) -> bool:
    """Whether the attach is left without an answer; raises what refuses it."""
    if end.path == "$cbs":
        return False
    path = entity_of(end.path)
    crashed = registry.crash_of(path, FaultPhase.DOWN)
    if crashed is not None and crashed.fires():
        if crashed.fault.links == "hang":
            return True
        raise AmqpError(
            Condition.INTERNAL_ERROR,
            f"The subsystem {crashed.fault.scope.subsystem!r} is down: fault {crashed.id}.",
        )
    active = _struck(registry, end, path)
    if active is None:
        return False
    if active.fault.how == "timeout":
        return True
    raise failure(active)


def _struck(registry: FaultRegistry, end: AnyLinkHandler, path: str) -> ActiveFault | None:
    if end.claim is Claim.SEND:
        return registry.fires("cannot-send", path)
    if end.claim is Claim.LISTEN:
        return registry.fires("cannot-receive", path)
    return None
