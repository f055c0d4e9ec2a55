"""Any driver with metering: its operations are counted and written to the operations log (C1).

    MeteredDriver(AmqpDriver(...), meter)      the same interface, with an inner driver

Counted as a namespace counts: sends and pings with their messages, units and bytes; receives, and
those that returned nothing; peeks; settlements; requests to ``$management``.

Rule 1: metering changes no call: arguments, results and errors pass unchanged.
Rule 2: a failed call is not counted: whether it reached the service is unknown here.
Rule 3: a receive that returned nothing, or was cancelled, is one empty receive: its credit ended
        unused. With prefetch the credit stays with the link, so that waiting costs nothing more.
Rule 4: an error of the metering does not fail the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from twinbus.cost.units import Operation
from twinbus.drivers.interface import (
    Driver,
    LinkProperties,
    NextSession,
    ReceiveMode,
    Receiver,
    Sender,
)
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.metering.client_meter import ClientMeter

__all__ = ["MeteredDriver", "MeteredSender", "metered_sender"]


def _one_message(outgoing_message: OutgoingMessage) -> list[bytes]:
    return [outgoing_message.encoded]


class MeteredSender:
    """The Sender interface, metered."""

    def __init__(
        self,
        inner: Sender,
        meter: ClientMeter,
        *,
        is_own: bool,
        unpack: Callable[[OutgoingMessage], list[bytes]] = _one_message,
    ) -> None:
        """``is_own``: its messages originate here and belong into the audit log. ``unpack`` splits
        an outgoing batch into its messages."""
        self.path = inner.path
        self.inner = inner
        self._meter = meter
        self._is_own = is_own
        self._unpack = unpack

    async def send(self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        await self.inner.send(outgoing_messages, timeout_s=timeout_s)
        self._count_sent(outgoing_messages)

    async def schedule(
        self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float
    ) -> list[int]:
        numbers = await self.inner.schedule(outgoing_messages, timeout_s=timeout_s)
        self._count_sent(outgoing_messages)
        return numbers

    def _count_sent(self, outgoing_messages: Sequence[OutgoingMessage]) -> None:
        with self._meter.harmless:
            messages = [
                message
                for outgoing_message in outgoing_messages
                for message in self._unpack(outgoing_message)
            ]
            self._meter.sent(self.path, messages, is_own=self._is_own)

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        await self.inner.cancel_scheduled(sequence_numbers, timeout_s=timeout_s)
        with self._meter.harmless:
            self._meter.add_request(self.path, Operation.MANAGEMENT)

    @property
    def facts(self) -> LinkProperties | None:
        return self.inner.facts

    async def attach(self, *, timeout_s: float) -> LinkProperties:
        return await self.inner.attach(timeout_s=timeout_s)

    async def close(self) -> None:
        await self.inner.close()


def metered_sender(
    sender: Sender, meter: ClientMeter | None, unpack: Callable[[OutgoingMessage], list[bytes]]
) -> Sender:
    """The link of a sender with this meter instead of its own, or without one."""
    plain = sender.inner if isinstance(sender, MeteredSender) else sender
    return plain if meter is None else MeteredSender(plain, meter, is_own=True, unpack=unpack)


class MeteredReceiver:
    """The Receiver interface, metered."""

    def __init__(self, inner: Receiver, meter: ClientMeter, *, has_prefetch: bool) -> None:
        self.path = inner.path
        self._inner = inner
        self._meter = meter
        self._has_prefetch = has_prefetch

    @property
    def session_id(self) -> str | None:
        return self._inner.session_id

    async def receive(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
        try:
            found = await self._inner.receive(count_max, wait_s=wait_s)
        except asyncio.CancelledError:
            self._count_empty_receive()
            raise
        if found:
            self._count_received(Operation.RECEIVE, found)
        else:
            self._count_empty_receive()
        return found

    def _count_empty_receive(self) -> None:
        if not self._has_prefetch:
            with self._meter.harmless:
                self._meter.add_request(self.path, Operation.EMPTY_RECEIVE)

    def _count_received(self, operation: Operation, found: Sequence[ReceivedMessage]) -> None:
        with self._meter.harmless:
            self._meter.received(self.path, operation, [len(each.encoded) for each in found])

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        found = await self._inner.receive_deferred(sequence_numbers, timeout_s=timeout_s)
        self._count_received(Operation.RECEIVE, found)
        return found

    async def complete(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return await self._settle_and_count(
            messages, self._inner.complete(messages, timeout_s=timeout_s)
        )

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return await self._settle_and_count(
            messages, self._inner.abandon(messages, timeout_s=timeout_s)
        )

    async def defer(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return await self._settle_and_count(
            messages, self._inner.defer(messages, timeout_s=timeout_s)
        )

    async def dead_letter(
        self,
        messages: Sequence[ReceivedMessage],
        *,
        reason: str,
        description: str,
        timeout_s: float,
    ) -> list[ReceivedMessage]:
        settling = self._inner.dead_letter(
            messages, reason=reason, description=description, timeout_s=timeout_s
        )
        return await self._settle_and_count(messages, settling)

    async def _settle_and_count(
        self, messages: Sequence[ReceivedMessage], settling: Awaitable[list[ReceivedMessage]]
    ) -> list[ReceivedMessage]:
        lost = await settling
        if len(messages) > len(lost):
            with self._meter.harmless:
                self._meter.settled(self.path, len(messages) - len(lost))
        return lost

    async def renew(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        lost = await self._inner.renew(messages, timeout_s=timeout_s)
        if messages:
            with self._meter.harmless:
                self._meter.add_request(self.path, Operation.MANAGEMENT)
        return lost

    async def peek(
        self, count_max: int, *, from_sequence: int = 1, timeout_s: float
    ) -> list[ReceivedMessage]:
        found = await self._inner.peek(count_max, from_sequence=from_sequence, timeout_s=timeout_s)
        self._count_received(Operation.PEEK, found)
        return found

    async def close(self) -> None:
        await self._inner.close()


class MeteredDriver:
    """The Driver interface, metered. The creator of the meter closes it: others may use it."""

    def __init__(self, inner: Driver, meter: ClientMeter, *, is_own: bool = True) -> None:
        """``is_own=False``: it moves messages that were sent elsewhere, and audits none."""
        self.address = inner.address
        self.inner = inner
        self._meter = meter
        self._is_own = is_own

    def sender(self, path: str) -> Sender:
        return MeteredSender(self.inner.sender(path), self._meter, is_own=self._is_own)

    def receiver(
        self,
        path: str,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int = 0,
        session: str | NextSession | None = None,
    ) -> Receiver:
        inner = self.inner.receiver(path, mode=mode, prefetch=prefetch, session=session)
        return MeteredReceiver(inner, self._meter, has_prefetch=prefetch > 0)

    async def close(self) -> None:
        await self.inner.close()
