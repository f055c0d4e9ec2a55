"""A request to ``<entity>/$management`` meets a fault, by what it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.broker.faults.board import ActiveFault, FaultPhase, FaultRegistry
from twinbus.broker.faults.line import hang_up
from twinbus.broker.faults.sends import check_throttle, failure

if TYPE_CHECKING:
    from twinbus.broker.peer import ClientConnection
    from twinbus.broker.replies import Reply

Answer = Callable[["Reply"], None]
Work = Callable[[Answer], None]

_FAULT_OF = {
    "com.microsoft:schedule-message": "cannot-send",
    "com.microsoft:cancel-scheduled-message": "cannot-send",
    "com.microsoft:peek-message": "cannot-receive",
    "com.microsoft:receive-by-sequence-number": "cannot-receive",
    "com.microsoft:update-disposition": "lost-disposition",
}


def catch_request(
    peer: ClientConnection, path: str, operation: str, work: Work, answer: Answer
) -> bool:
    """Whether a fault took care of the request.

    ``work`` does what was asked and tells the result to the answer it is given. Raises the
    error to answer with.
    """
    registry = peer.namespace.faults
    if operation == "com.microsoft:schedule-message":
        check_throttle(registry, path, [], 1, peer.namespace.now())
    active = _struck(registry, path, operation)
    if active is not None:
        _fail(active, peer, work)
        return True
    slow = registry.crash_of(path, FaultPhase.SLOW)
    if slow is not None and slow.fires():
        registry.later(slow.latency_s(), work, answer)
        return True
    return False


def _struck(registry: FaultRegistry, path: str, operation: str) -> ActiveFault | None:
    crashed = registry.crash_of(path, FaultPhase.DOWN)
    if crashed is not None and crashed.fires():
        return crashed
    kind = _FAULT_OF.get(operation)
    return None if kind is None else registry.fires(kind, path)


def _fail(active: ActiveFault, peer: ClientConnection, work: Work) -> None:
    fault = active.fault
    if fault.kind in ("cannot-send", "cannot-receive") and fault.how != "timeout":
        raise failure(active)
    if fault.kind != "crash-subsystem" and fault.applied_probability and active.is_applied():
        work(lambda _reply: peer.ended_asking())
    else:
        # The reply is owed no more, so it must not count among those that are looked up.
        peer.ended_asking()
    if fault.how == "reset":
        hang_up(peer)
