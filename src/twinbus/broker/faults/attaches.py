"""A link is opened while a fault is switched on: refused, or not answered at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.access.claims import Claim
from twinbus.broker.faults.board import ActiveFault, FaultBoard, FaultPhase
from twinbus.broker.faults.sends import failure

if TYPE_CHECKING:
    from twinbus.broker.attaching import AnyEnd

SUB_QUEUE_MARK = "/$"


def entity_of(path: str) -> str:
    """The entity behind a link's path: without its sub-queue and its management node."""
    return path.partition(SUB_QUEUE_MARK)[0]


def catch_attach(board: FaultBoard, end: AnyEnd) -> bool:
    """Whether the attach is left without an answer; raises what refuses it."""
    if end.path == "$cbs":
        return False
    path = entity_of(end.path)
    crashed = board.crash_of(path, FaultPhase.DOWN)
    if crashed is not None and crashed.strikes():
        if crashed.fault.links == "hang":
            return True
        raise AmqpError(
            Condition.INTERNAL_ERROR,
            f"The subsystem {crashed.fault.scope.subsystem!r} is down: fault {crashed.id}.",
        )
    active = _struck(board, end, path)
    if active is None:
        return False
    if active.fault.how == "timeout":
        return True
    raise failure(active)


def _struck(board: FaultBoard, end: AnyEnd, path: str) -> ActiveFault | None:
    if end.claim is Claim.SEND:
        return board.strikes("cannot-send", path)
    if end.claim is Claim.LISTEN:
        return board.strikes("cannot-receive", path)
    return None
