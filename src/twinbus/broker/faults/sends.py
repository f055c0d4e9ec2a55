"""A send meets a fault: refused, swallowed, stored without a word, hidden for a while, or slow.

Rule 1: a refusal comes before anything is stored, so that whoever sends again makes no copy.
Rule 2: what was swallowed is never acknowledged, not even when the same transfer comes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.entities.facts import facts_of
from twinbus.broker.entities.partitions import partition_of
from twinbus.broker.entities.record import IncomingMessage
from twinbus.broker.faults.board import ActiveFault, FaultPhase, FaultRegistry
from twinbus.broker.throttle import busy

if TYPE_CHECKING:
    from twinbus.amqp.events import DeliveryReceived
    from twinbus.broker.ingest import Ingested
    from twinbus.broker.sending import IncomingLink
    from twinbus.clock import Instant


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
    return AmqpError(condition, f"The fault {active.id} is switched on: {fault.kind}. Clear it.")


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
        _fail(active, end, event, taken)
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


def _fail(active: ActiveFault, end: IncomingLink, event: DeliveryReceived, taken: Ingested) -> None:
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
            raise busy(f"The fault {active.id} is switched on: throttle")


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
