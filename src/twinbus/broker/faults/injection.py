"""What happens to an attach, a send, a receive, a settlement, a request or a commit
that meets a fault.

A send meets a fault: refused, swallowed, stored without a word, hidden for a while, or slow.

A link is opened while a fault is switched on: refused, or not answered at all.

Receivers meet a fault: for a while nothing is handed out, or only now and then.

A settlement meets a fault: applied or not, and its answer never comes (or comes late).

Whoever waits for the answer cannot know. The message comes again if it was not applied, so a
consumer must be able to see a message twice; none is lost.

A request to ``<entity>/$management`` meets a fault, by what it is about.

A disk that is full or slow, without one: what the writer's thread meets instead of it.

Rule 1: a refusal comes before anything is stored, so that whoever sends again makes no copy.
Rule 2: what was swallowed is never acknowledged, not even when the same transfer comes again.
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
from twinbus.broker.faults.degraded_connection import hang_up
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
    """Stored or not, nobody hears of it."""

    def stored(self, seqs: range) -> None:
        """Not even then."""

    def failed(self, error: Exception) -> None:
        """Nor then."""


def failure(active: ActiveFault) -> AmqpError:
    """The error that a fault shows."""
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
    """Whether a fault took care of the send; raises what refuses it."""
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
        end.detach(failure(active))
    else:
        raise failure(active)


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
    """Let messages appear later (rule F3): kept with the scheduled ones until then."""
    for message in messages:
        active = registry.fires("delayed-visibility", path)
        if active is not None:
            delay_s = _spread(active, active.fault.delay_s or 0.0, active.fault.jitter_s or 0.0)
            due_ms = now.wall_ms + round(delay_s * 1000)
            message.due_ms = due_ms if message.due_ms is None else max(due_ms, message.due_ms)


def _spread(active: ActiveFault, middle: float, jitter: float) -> float:
    return max(0.0, middle + (active.chance.uniform(-jitter, jitter) if jitter else 0.0))


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
            f"Subsystem {crashed.fault.scope.subsystem!r} is down: fault {crashed.id}.",
        )
    active = _struck_attach(registry, end, path)
    if active is None:
        return False
    if active.fault.how == "timeout":
        return True
    raise failure(active)


def _struck_attach(registry: FaultRegistry, end: AnyLinkHandler, path: str) -> ActiveFault | None:
    if end.claim is Claim.SEND:
        return registry.fires("cannot-send", path)
    if end.claim is Claim.LISTEN:
        return registry.fires("cannot-receive", path)
    return None


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


def catch_settlement(
    namespace: Namespace, ledger: UnsettledDeliveries, event: DispositionReceived
) -> bool:
    """Whether a fault took care of the settlement."""
    # broker/server/settlement.py asks here first, so it cannot be imported before this module is
    # there.
    from twinbus.broker.server.settlement import apply

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
    active = _struck_request(registry, path, operation)
    if active is not None:
        _fail_request(active, peer, work)
        return True
    slow = registry.crash_of(path, FaultPhase.SLOW)
    if slow is not None and slow.fires():
        registry.later(slow.latency_s(), work, answer)
        return True
    return False


def _struck_request(registry: FaultRegistry, path: str, operation: str) -> ActiveFault | None:
    crashed = registry.crash_of(path, FaultPhase.DOWN)
    if crashed is not None and crashed.fires():
        return crashed
    kind = _FAULT_OF.get(operation)
    return None if kind is None else registry.fires(kind, path)


def _fail_request(active: ActiveFault, peer: ClientConnection, work: Work) -> None:
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


def faulty(registry: FaultRegistry, commit: Callable[[], None]) -> Callable[[], None]:
    """The commit as the disk of now would take it. Chance is asked here, on the loop."""
    wait_s = 0.0
    for active in registry.on_now("slow-disk"):
        wait_s += active.latency_s()
        active.fires()
    is_full = any(active.fires() for active in registry.on_now("disk-full"))
    if not wait_s and not is_full:
        return commit

    def slowly() -> None:
        time.sleep(wait_s)
        if is_full:
            # The same error, by the same way, as when SQLite finds no room.
            raise StoreFull(path="fault disk-full", detail=os.strerror(errno.ENOSPC))
        commit()

    return slowly
