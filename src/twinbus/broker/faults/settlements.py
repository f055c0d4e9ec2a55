"""A settlement meets a fault: applied or not, and its answer never comes (or comes late).

Whoever waits for the answer cannot know. The message comes again if it was not applied, so a
consumer must be able to see a message twice; none is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from twinbus.broker.faults.board import ActiveFault, FaultPhase, FaultRegistry
from twinbus.broker.faults.line import hang_up

if TYPE_CHECKING:
    from twinbus.amqp.events import DispositionReceived
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.receiving import UnsettledDeliveries


def catch_settlement(
    namespace: Namespace, ledger: UnsettledDeliveries, event: DispositionReceived
) -> bool:
    """Whether a fault took care of the settlement."""
    # settling.py asks here first, so it cannot be imported before this module is there.
    from twinbus.broker.settling import apply

    registry = namespace.faults
    found = (entry for _first, _count, entry in ledger.find(event.first, event.last) if entry)
    entry = next(found, None)
    if entry is None:
        return False
    path = entry.end.queue.description.path
    lost = _lost(registry, path)
    if lost is not None:
        if lost.fault.kind == "lost-disposition" and lost.is_applied():
            # Settled already, as far as the broker is asked: so nobody is answered.
            apply(namespace, ledger, replace(event, settled=True))
        if lost.fault.how == "reset":
            hang_up(entry.end.peer)
        return True
    slow = registry.crash_of(path, FaultPhase.SLOW)
    if slow is not None and slow.fires():
        registry.later(slow.latency_s(), apply, namespace, ledger, event)
        return True
    return False


def _lost(registry: FaultRegistry, path: str) -> ActiveFault | None:
    crashed = registry.crash_of(path, FaultPhase.DOWN)
    if crashed is not None and crashed.fires():
        return crashed
    return registry.fires("lost-disposition", path)
