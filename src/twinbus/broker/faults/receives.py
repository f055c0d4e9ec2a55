"""Receivers meet a fault: for a while nothing is handed out, or only now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.faults.board import FaultPhase, FaultRegistry

if TYPE_CHECKING:
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.namespace import Namespace


def holds_back(namespace: Namespace, queue: Queue) -> bool:
    """Whether nothing of the queue is handed out at this moment."""
    registry, path = namespace.faults, queue.description.path
    if registry.crash_of(path, FaultPhase.DOWN) is not None:
        return True
    for active in registry.covering("cannot-receive", path):
        if active.fault.how == "timeout":
            active.hit_count += 1
            return True
    return _is_paced(registry, namespace, queue, path)


def _is_paced(registry: FaultRegistry, namespace: Namespace, queue: Queue, path: str) -> bool:
    """A subsystem that came back hands out once in a while, for the length of its latency."""
    slow = registry.crash_of(path, FaultPhase.SLOW)
    if slow is None or queue in slow.let_through:
        if slow is not None:
            slow.let_through.discard(queue)
        return False
    if queue not in slow.pacing:
        slow.pacing.add(queue)
        slow.hit_count += 1

        def may_go_on() -> None:
            slow.pacing.discard(queue)
            slow.let_through.add(queue)
            namespace.touch(queue)

        registry.later(slow.latency_s(), may_go_on)
    return True
