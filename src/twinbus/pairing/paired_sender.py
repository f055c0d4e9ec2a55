"""PairedSender sends to one entity or its backlog; SenderRegistry has all senders of a factory.

``failover.send_decision`` decides each step of a send; this module executes the first attempt, and
``send_execution`` the other steps.

Rule 1: a healthy send costs one look-up and the driver's own work: no copy, no extra round trip
        (P0). Only a send whose first attempt fails becomes a SendExecution.
Rule 2: a message that could not be diverted is refused in every state (P12, P13).
Rule 3: the messages belong to the caller: they are never changed.
Rule 4: while a pair is being created sends are suspended (P1), each at most until its own deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from twinbus.drivers.interface import Driver, Sender
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import CancelImpossible, ConfigurationError, OperationTimeout, PairingError
from twinbus.failover.backlog_rotation import QueueAffinity
from twinbus.failover.send_decision import (
    SEND_TIMEOUT_S,
    Deadline,
    cancelled_attempt,
    first_attempt_s,
)
from twinbus.metering.client_meter import ClientMeter
from twinbus.pairing.client.call_tracker import CallTracker
from twinbus.pairing.routing import Entity, SendRouter
from twinbus.pairing.send_execution import (
    ENCODED_BYTES,
    Links,
    MessageAdapter,
    SendAttempt,
    SendExecution,
    SendResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PairedSender", "SenderRegistry", "checked_timeout_s"]

SEND_TIMEOUT_S_MAX: Final = 86_400.0
"""One day."""


class PairedSender:
    """Sends to one entity, or to its backlog while the entity is diverted.

    It may be used from many tasks at once. Before its factory is paired it is an ordinary sender
    with retries; afterwards the same object is a paired sender (P1).
    """

    def __init__(
        self,
        path: str,
        registry: SenderRegistry,
        kind: MessageAdapter = ENCODED_BYTES,
        link: Sender | None = None,
    ) -> None:
        self.path = path
        """Canonical: the name that events, health and the backlog use."""
        self.registry = registry
        """Shared by all senders of the factory."""
        self._kind = kind
        self._links = Links(path, registry.driver, link)
        self._affinity = QueueAffinity()
        self._routing: SendRouter | None = None
        self._entity: Entity | None = None

    # -- calls --------------------------------------------------------------------------------

    def send_outgoing(
        self, messages: Sequence[OutgoingMessage], *, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, SendResult]:
        """Await it: it returns once the messages are durable. ``where`` is the path of the entity
        or the backlog queue that has accepted them (the last one, if a batch was sent in
        parts)."""
        return self._carry(messages, _send, timeout_s)

    async def schedule_outgoing(
        self, messages: Sequence[OutgoingMessage], *, timeout_s: float | None = None
    ) -> list[int]:
        """Send messages with a scheduled enqueue time; returns sequence numbers, for cancelling.

        The primary's sequence numbers are positive. While the entity is diverted the messages
        wait in the backlog with their schedule, and the numbers are negative:
        cancel_scheduled() cannot cancel these.
        """
        outcome = await self._carry(messages, _schedule, timeout_s)
        return [*_placeholder_numbers(outcome.diverted, self.registry.rng), *(outcome.answer or ())]

    async def cancel_scheduled(
        self, sequence_numbers: Sequence[int], *, timeout_s: float | None = None
    ) -> None:
        """Cancel scheduled messages.

        Raises CancelImpossible, before anything is cancelled, for diverted messages, and while
        the entity is diverted, because the primary gets only pings then (P8).
        """
        if any(number < 0 for number in sequence_numbers):
            raise CancelImpossible.in_backlog(self.path)

        async def cancel(
            sender: Sender, _messages: Sequence[OutgoingMessage], timeout_s: float
        ) -> None:
            await sender.cancel_scheduled(sequence_numbers, timeout_s=timeout_s)

        calls = self.registry.calls
        task = calls.enter_send()
        try:
            await self._cancel(cancel, self._timeout_s(timeout_s))
        except asyncio.CancelledError:
            raise calls.cancellation_error(task) from None
        finally:
            calls.leave_send(task)

    def set_meter(self, meter: ClientMeter | None) -> None:
        """Count sends with this meter from now on; None for no metering."""
        self._links.set_meter(self.registry.driver, meter, self._kind.unpack)

    async def close(self) -> None:
        """Close the links; may be called twice."""
        self.registry.forget(self)
        if not self.registry.calls.is_inherited:
            await self._links.close()

    # -- execution ----------------------------------------------------------------------------

    async def _carry(
        self,
        messages: Sequence[OutgoingMessage],
        send_attempt: SendAttempt,
        timeout_s: float | None,
    ) -> SendResult:
        """One coroutine for the usual case, because every send pays for every layer."""
        if not messages:
            raise ConfigurationError("No message to send", hint="Pass at least one message")
        timeout_s = self._timeout_s(timeout_s)
        registry, error, attempt_s = self.registry, None, None
        task = registry.calls.enter_send()
        try:
            start_s = registry.now_s()
            if registry.is_suspended:
                await registry.wait_until_paired(start_s, timeout_s)
                routing, entity = self._route(messages)
            else:
                routing, entity = self._route(messages)
                attempt_s = first_attempt_s(entity.failover, timeout_s)
            entity.sends_under_way += 1
            try:
                if attempt_s is not None:
                    success_mark = entity.failover.success_mark
                    entity.attempts[task], before = 0, task.cancelling()
                    try:
                        link = self._links.primary()
                        answer = await send_attempt(link, messages, attempt_s)
                    except Exception as raised:
                        error = raised
                    except asyncio.CancelledError as cancelled:
                        error = routing.interruption(entity, task, cancelled, before)
                        if error is None:
                            self.caller_left(routing, entity, start_s, success_mark)
                            raise
                    else:
                        routing.first_attempt_succeeded(entity)
                        if entity.link_facts is None:
                            entity.link_facts = link.facts
                        return SendResult(self.path, answer)
                    finally:
                        entity.attempt_ended(task)
                deadline = Deadline(start_s, start_s + timeout_s)
                return await self._new_execution(
                    messages, send_attempt, deadline, routing, entity
                ).run(error)
            finally:
                entity.sends_under_way -= 1
        except asyncio.CancelledError:
            raise registry.calls.cancellation_error(task) from None
        finally:
            registry.calls.leave_send(task)

    def caller_left(
        self, routing: SendRouter, entity: Entity, began_s: float, success_mark: tuple[int, int]
    ) -> None:
        """A first attempt was cancelled, by its caller or because the factory has ended (which
        means nothing for the entity)."""
        if self.registry.calls.is_open:
            routing.publish(
                cancelled_attempt(
                    entity.failover,
                    began_s=began_s,
                    success_mark=success_mark,
                    now_s=routing.now_s(),
                )
            )

    async def continue_send(
        self,
        messages: Sequence[OutgoingMessage],
        error: Exception,
        start_s: float,
        timeout_s: float,
    ) -> SendResult:
        """Continue a send whose first attempt, on the caller's thread, has failed."""
        registry = self.registry
        try:
            task = registry.calls.resume_send()
        except PairingError as ended:
            ended.is_ambiguous = getattr(error, "is_ambiguous", False)
            raise
        try:
            routing, entity = self._route(messages)
            entity.sends_under_way += 1
            try:
                deadline = Deadline(start_s, start_s + timeout_s)
                return await self._new_execution(messages, _send, deadline, routing, entity).run(
                    error
                )
            finally:
                entity.sends_under_way -= 1
        except asyncio.CancelledError:
            raise registry.calls.cancellation_error(task) from None
        finally:
            registry.calls.leave_send(task)

    def entity_in(self, routing: SendRouter) -> Entity | None:
        """The entity in that routing; None before the first send on the loop."""
        return self._entity if self._routing is routing else None

    def _route(self, messages: Sequence[OutgoingMessage]) -> tuple[SendRouter, Entity]:
        """The routing and the entity of a send; refuses messages that could not be diverted (P12,
        P13)."""
        routing = self.registry.routing
        if self._entity is None or self._routing is not routing:
            # The entity first: another thread may read both (entity_in).
            self._entity = routing.entity(self.path)
            self._routing = routing
        if routing.message_bytes_max is not None:
            owner = "" if routing.backlog is None else routing.backlog.owner
            self._kind.check(messages, self.path, routing.message_bytes_max, owner)
        return routing, self._entity

    def _new_execution(
        self,
        messages: Sequence[OutgoingMessage],
        send_attempt: SendAttempt,
        deadline: Deadline,
        routing: SendRouter,
        entity: Entity,
    ) -> SendExecution:
        execution = SendExecution(
            self._links,
            routing,
            entity,
            self._affinity,
            messages,
            self._kind,
            send_attempt,
            deadline,
        )
        execution.is_one_delivery = send_attempt is _send
        return execution

    async def _cancel(self, send_attempt: SendAttempt, timeout_s: float) -> None:
        start_s = self.registry.now_s()
        if self.registry.is_suspended:
            await self.registry.wait_until_paired(start_s, timeout_s)
        routing, entity = self._route(())
        if entity.failover.is_diverted:
            raise CancelImpossible.while_diverted(self.path)
        # A cancel cannot be diverted: it is retried as an unpaired call and diverts nothing.
        alone = SendRouter.unpaired(routing.hub, routing.rules.retry, routing.rules.credential)
        deadline = Deadline(start_s, start_s + timeout_s)
        await self._new_execution((), send_attempt, deadline, alone, alone.entity(self.path)).run()

    def _timeout_s(self, given: float | None) -> float:
        return self.registry.operation_timeout_s if given is None else checked_timeout_s(given)


def _send(sender: Sender, messages: Sequence[OutgoingMessage], timeout_s: float) -> Awaitable[Any]:
    return sender.send(messages, timeout_s=timeout_s)


def _schedule(
    sender: Sender, messages: Sequence[OutgoingMessage], timeout_s: float
) -> Awaitable[Any]:
    return sender.schedule(messages, timeout_s=timeout_s)


def _placeholder_numbers(count: int, rng: Random) -> list[int]:
    """Numbers for diverted scheduled messages: never a sequence number of the service."""
    return [-1 - rng.getrandbits(62) for _ in range(count)]


def checked_timeout_s(timeout_s: object) -> float:
    """The timeout of a call, checked."""
    if (
        isinstance(timeout_s, bool)
        or not isinstance(timeout_s, int | float)
        or not 0 < timeout_s <= SEND_TIMEOUT_S_MAX
    ):
        raise ConfigurationError(
            f"Invalid value for timeout: {timeout_s!r:.40}",
            hint=f"Use a number of seconds greater than 0; the default is {SEND_TIMEOUT_S:g}",
        )
    return float(timeout_s)


class SenderRegistry:
    """The senders of a factory, and their driver and routing."""

    def __init__(
        self, driver: Driver, calls: CallTracker, routing: SendRouter, operation_timeout_s: float
    ) -> None:
        self.driver = driver
        self.calls = calls
        self.routing = routing
        self.operation_timeout_s = operation_timeout_s
        self.now_s: Callable[[], float] = time.monotonic
        self.rng = Random()
        self._senders: set[PairedSender] = set()
        self._paired_event: asyncio.Event | None = None

    def sender(self, path: str, kind: MessageAdapter, link: Sender | None = None) -> PairedSender:
        """A new sender with its own links; ``path`` is canonical."""
        self.calls.check()
        sender = PairedSender(path, self, kind, link)
        self._senders.add(sender)
        return sender

    def forget(self, sender: PairedSender) -> None:
        self._senders.discard(sender)

    @property
    def paths(self) -> list[str]:
        """The entities that have a sender."""
        return sorted({sender.path for sender in tuple(self._senders)})

    def set_meter(self, driver: Driver, meter: ClientMeter | None) -> None:
        """Count with this meter from now on, for existing senders too."""
        self.driver = driver
        for sender in tuple(self._senders):
            sender.set_meter(meter)

    async def close_senders(self) -> None:
        for sender in tuple(self._senders):
            await sender.close()

    # -- suspension ---------------------------------------------------------------------------

    def suspend_sends(self) -> None:
        self._paired_event = asyncio.Event()

    def resume_sends(self) -> None:
        if self._paired_event is not None:
            self._paired_event.set()
            self._paired_event = None

    @property
    def is_suspended(self) -> bool:
        return self._paired_event is not None

    async def wait_until_paired(self, start_s: float, timeout_s: float) -> None:
        """Wait until pairing has ended, at most until the deadline of the send."""
        try:
            async with asyncio.timeout(start_s + timeout_s - self.now_s()):
                while (
                    self._paired_event is not None
                ):  # Set again if pairing has failed and is repeated.
                    await self._paired_event.wait()
        except TimeoutError:
            error = OperationTimeout(
                f"The namespaces were not paired within the timeout of the send, {timeout_s:g} s",
                hint="Use a longer timeout, or check why pair_namespace() takes so long",
            )
            error.is_ambiguous = False
            raise error from None
