"""What an active fault does to an attach, a send, a delivery, a settlement, a request or a commit.

    send          refused, dropped, stored without an acknowledgement, hidden for a while, or slow
    attach        refused, or not answered
    delivery      nothing is delivered for a while, or only at intervals
    settlement    applied or not, and the answer is missing or late
    request       to ``<entity>/$management``: by its operation
    commit        the disk is full or slow

A receiver whose settlement is not answered does not know whether it was applied. If it was not,
the message is delivered again: duplicates are possible, losses are not.

Rule 1: a send is refused before anything is stored, so that a repeated send makes no copy.
Rule 2: a send that was dropped is never acknowledged, not even when the same transfer is repeated.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.access.rules import Claim
from twinbus.broker.engine.stored_message import IncomingMessage, facts_of, partition_of
from twinbus.broker.faults.degraded_connection import reset_connection
from twinbus.broker.faults.registry import ActiveFault, FaultPhase, FaultRegistry
from twinbus.broker.throttle import busy
from twinbus.errors import StoreFull

if TYPE_CHECKING:
    from twinbus.amqp.events import DeliveryReceived, DispositionReceived
    from twinbus.broker.engine.queue import Queue
    from twinbus.broker.namespace.namespace import Namespace
    from twinbus.broker.server.attach import AnyLinkHandler
    from twinbus.broker.server.connection import ClientConnection
    from twinbus.broker.server.incoming_link import IncomingLink
    from twinbus.broker.server.ingest import Ingested
    from twinbus.broker.server.outgoing_link import UnsettledDeliveries
    from twinbus.broker.server.request_reply import Reply
    from twinbus.common.clock import Instant


class SilentAck:
    """Sends no answer, whether the message was stored or not."""

    def stored(self, seqs: range) -> None:
        """Do not acknowledge."""

    def failed(self, error: Exception) -> None:
        """Do not reject."""


def fault_error(active: ActiveFault) -> AmqpError:
    """The error with which a fault refuses an operation."""
    fault = active.fault
    condition = Condition.LINK_DETACH_FORCED if fault.how == "detach" else fault.condition
    return AmqpError(condition, f"Fault {active.id} is active: {fault.kind}. Clear it.")


def inject_send(
    registry: FaultRegistry,
    end: IncomingLink,
    event: DeliveryReceived,
    taken: Ingested,
    now: Instant,
) -> bool:
    """Whether a fault handled the send; raises the error of a fault that refuses it."""
    path = end.queue.description.path
    check_throttle(registry, path, taken.messages, len(taken.messages) + taken.ping_count, now)
    active = registry.fires("cannot-send", path)
    if active is not None:
        _fail_send(active, end, event, taken)
        return True
    crashed = registry.crash_of(path, FaultPhase.DOWN)
    if crashed is not None:
        crashed.fires()
        _swallow(crashed, end, event, taken)
        return True
    hide(registry, path, taken.messages, now)
    slow = registry.crash_of(path, FaultPhase.SLOW)
    if slow is not None and slow.fires():
        end.hold(event)
        registry.later(slow.latency_s(), end.store_held, event, taken)
        return True
    return False


def _fail_send(
    active: ActiveFault, end: IncomingLink, event: DeliveryReceived, taken: Ingested
) -> None:
    if active.fault.how == "timeout":
        _swallow(active, end, event, taken)
    elif active.fault.how == "detach":
        end.detach(fault_error(active))
    else:
        raise fault_error(active)


def _swallow(
    active: ActiveFault, end: IncomingLink, event: DeliveryReceived, taken: Ingested
) -> None:
    end.hold(event)
    if active.is_applied() and taken.messages:
        end.store_silently(taken.messages, SilentAck())


def check_throttle(
    registry: FaultRegistry, path: str, messages: list[IncomingMessage], count: int, now: Instant
) -> None:
    """Raise ServerBusy if the entity, or the partition of one of the messages, is throttled."""
    for active in registry.covering("throttle", path):
        partition = active.fault.scope.partition
        if partition is not None and not _is_in(partition, messages):
            continue
        if active.bucket is not None and active.bucket.take(count, now.monotonic_s):
            continue
        if active.fires():
            raise busy(f"Fault {active.id} is active: throttle")


def _is_in(partition: int, messages: list[IncomingMessage]) -> bool:
    return any(
        partition_of(message.facts or facts_of(message.record)) == partition for message in messages
    )


def hide(registry: FaultRegistry, path: str, messages: list[IncomingMessage], now: Instant) -> None:
    """Make messages visible later (rule F3): they are stored as scheduled until then."""
    for message in messages:
        active = registry.fires("delayed-visibility", path)
        if active is not None:
            delay_s = _spread(active, active.fault.delay_s or 0.0, active.fault.jitter_s or 0.0)
            due_ms = now.wall_ms + round(delay_s * 1000)
            message.due_ms = due_ms if message.due_ms is None else max(due_ms, message.due_ms)


def _spread(active: ActiveFault, middle: float, jitter: float) -> float:
    return max(0.0, middle + (active.random.uniform(-jitter, jitter) if jitter else 0.0))


SUB_QUEUE_MARK = "/$"


def entity_of(path: str) -> str:
    """The entity of a link's path: without the sub-queue and the management node."""
    return path.partition(SUB_QUEUE_MARK)[0]


def inject_attach(registry: FaultRegistry, end: AnyLinkHandler) -> bool:
    """Whether the attach stays unanswered; raises the error of a fault that refuses it."""
    if end.path == "$cbs":
        return False
    path = entity_of(end.path)
    crashed = registry.crash_of(path, FaultPhase.DOWN)
    if crashed is not None and crashed.fires():
        if crashed.fault.links == "hang":
            return True
        raise AmqpError(
            Condition.INTERNAL_ERROR,
            f"Subsystem {crashed.fault.scope.subsystem!r} is down: fault {crashed.id}.",
        )
    active = _fault_of_attach(registry, end, path)
    if active is None:
        return False
    if active.fault.how == "timeout":
        return True
    raise fault_error(active)


def _fault_of_attach(registry: FaultRegistry, end: AnyLinkHandler, path: str) -> ActiveFault | None:
    if end.claim is Claim.SEND:
        return registry.fires("cannot-send", path)
    if end.claim is Claim.LISTEN:
        return registry.fires("cannot-receive", path)
    return None


def holds_back(namespace: Namespace, queue: Queue) -> bool:
    """Whether a fault holds back the messages of the queue at this moment."""
    registry, path = namespace.faults, queue.description.path
    if registry.crash_of(path, FaultPhase.DOWN) is not None:
        return True
    for active in registry.covering("cannot-receive", path):
        if active.fault.how == "timeout":
            active.hit_count += 1
            return True
    return _is_paced(registry, namespace, queue, path)


def _is_paced(registry: FaultRegistry, namespace: Namespace, queue: Queue, path: str) -> bool:
    """A slow subsystem delivers once per latency."""
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


def inject_settlement(
    namespace: Namespace, ledger: UnsettledDeliveries, event: DispositionReceived
) -> bool:
    """Whether a fault handled the settlement."""
    # broker/server/settlement.py imports this module, so it cannot be imported at the top.
    from twinbus.broker.server.settlement import apply

    registry = namespace.faults
    found = (entry for _first, _count, entry in ledger.find(event.first, event.last) if entry)
    entry = next(found, None)
    if entry is None:
        return False
    path = entry.end.queue.description.path
    lost = _fault_of_settlement(registry, path)
    if lost is not None:
        if lost.fault.kind == "lost-disposition" and lost.is_applied():
            # As if the client had settled it already: then the broker does not answer.
            apply(namespace, ledger, replace(event, settled=True))
        if lost.fault.how == "reset":
            reset_connection(entry.end.peer)
        return True
    slow = registry.crash_of(path, FaultPhase.SLOW)
    if slow is not None and slow.fires():
        registry.later(slow.latency_s(), apply, namespace, ledger, event)
        return True
    return False


def _fault_of_settlement(registry: FaultRegistry, path: str) -> ActiveFault | None:
    crashed = registry.crash_of(path, FaultPhase.DOWN)
    if crashed is not None and crashed.fires():
        return crashed
    return registry.fires("lost-disposition", path)


Answer = Callable[["Reply"], None]
Work = Callable[[Answer], None]

_FAULT_OF = {
    "com.microsoft:schedule-message": "cannot-send",
    "com.microsoft:cancel-scheduled-message": "cannot-send",
    "com.microsoft:peek-message": "cannot-receive",
    "com.microsoft:receive-by-sequence-number": "cannot-receive",
    "com.microsoft:update-disposition": "lost-disposition",
}


def inject_request(
    peer: ClientConnection, path: str, operation: str, work: Work, answer: Answer
) -> bool:
    """Whether a fault handled the request.

    ``work`` carries the request out and passes its reply to the callback it is given. Raises
    the error of a fault that refuses the request.
    """
    registry = peer.namespace.faults
    if operation == "com.microsoft:schedule-message":
        check_throttle(registry, path, [], 1, peer.namespace.now())
    active = _fault_of_request(registry, path, operation)
    if active is not None:
        _fail_request(active, peer, work)
        return True
    slow = registry.crash_of(path, FaultPhase.SLOW)
    if slow is not None and slow.fires():
        registry.later(slow.latency_s(), work, answer)
        return True
    return False


def _fault_of_request(registry: FaultRegistry, path: str, operation: str) -> ActiveFault | None:
    crashed = registry.crash_of(path, FaultPhase.DOWN)
    if crashed is not None and crashed.fires():
        return crashed
    kind = _FAULT_OF.get(operation)
    return None if kind is None else registry.fires(kind, path)


def _fail_request(active: ActiveFault, peer: ClientConnection, work: Work) -> None:
    fault = active.fault
    if fault.kind in ("cannot-send", "cannot-receive") and fault.how != "timeout":
        raise fault_error(active)
    if fault.kind != "crash-subsystem" and fault.applied_probability and active.is_applied():
        work(lambda _reply: peer.ended_asking())
    else:
        # There will be no reply, so the request must not count as one in progress.
        peer.ended_asking()
    if fault.how == "reset":
        reset_connection(peer)


def inject_commit(registry: FaultRegistry, commit: Callable[[], None]) -> Callable[[], None]:
    """The commit with the disk faults of now. Random choices are made here, on the loop."""
    wait_s = 0.0
    for active in registry.active_of_kind("slow-disk"):
        wait_s += active.latency_s()
        active.fires()
    is_full = any(active.fires() for active in registry.active_of_kind("disk-full"))
    if not wait_s and not is_full:
        return commit

    def slowly() -> None:
        time.sleep(wait_s)
        if is_full:
            # The same error, raised at the same place, as when SQLite finds the disk full.
            raise StoreFull(path="fault disk-full", detail=os.strerror(errno.ENOSPC))
        commit()

    return slowly
