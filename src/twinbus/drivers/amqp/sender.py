"""AmqpSender: the Sender interface over AMQP.

Rule 1: a link opens when it is first needed. One that the service detached while nothing was under
        way is replaced silently.
Rule 2: bytes that were sent are never sent again: then the caller decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import uuid4

from twinbus.amqp.codec.types import Array, Long
from twinbus.drivers.amqp.batching import (
    FORMAT_BATCH,
    BatchKeys,
    EncodedDelivery,
    check_size,
    encode_delivery,
)
from twinbus.drivers.amqp.connection import IDLE_S
from twinbus.drivers.amqp.connection_pool import ConnectionPool
from twinbus.drivers.amqp.errors import closed_loss
from twinbus.drivers.amqp.sender_endpoint import NotSent, SenderEndpoint
from twinbus.drivers.amqp.shared_attempt import SharedAttempt, time_limit, timeout_error
from twinbus.drivers.interface import LinkProperties, note_unsent
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    MessageRefused,
    ServiceError,
    ServiceInternalError,
)

_LONG: Final = 0x81


class AmqpSender:
    """Sends to one queue or topic."""

    def __init__(
        self, pool: ConnectionPool, path: str, on_close: Callable[[AmqpSender], None]
    ) -> None:
        self.path = path
        self._pool = pool
        self._on_close = on_close
        self._end: SenderEndpoint | None = None
        self._opening: SharedAttempt[SenderEndpoint] = SharedAttempt()
        self._is_closed = False

    # -- sending --------------------------------------------------------------------------

    async def send(self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        if not outgoing_messages:
            raise MessageRefused(f"No messages to send to {self.path!r}", path=self.path)
        load = encode_delivery(outgoing_messages)
        began_s = asyncio.get_running_loop().time()
        try:
            await self._send(load, began_s, timeout_s)
        except NotSent as gone:
            if gone.loss.is_final:
                raise gone.loss.error(self.path, was_sent=False) from None
            try:
                await self._send(load, began_s, timeout_s)
            except NotSent as again:
                raise again.loss.error(self.path, was_sent=False) from None

    async def _send(self, load: EncodedDelivery, began_s: float, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        end, deadline_s = self._end, began_s + timeout_s
        if end is None or not end.is_fresh or began_s - end.connection.received_at_s > IDLE_S:
            end = await self._fresh(deadline_s - loop.time(), timeout_s)
        if len(load.payload) > end.facts.message_bytes_max or load.message_format == FORMAT_BATCH:
            check_size(load, end.facts, self.path)
        outgoing = end.post(load.payload, load.message_format)
        timer = loop.call_at(deadline_s, outgoing.expire)
        try:
            await outgoing.future
        except ServiceError:
            raise  # The service's own response, which can be an OperationTimeout.
        except TimeoutError:
            end.forget(outgoing)
            self._pool.suspect(began_s)
            was_sent = end.has_left(outgoing)
            raise timeout_error(
                timeout_s, path=self.path, doing="Sending to", was_sent=was_sent
            ) from None
        except asyncio.CancelledError as cancelled:
            end.forget(outgoing)
            if not end.has_left(outgoing):
                note_unsent(cancelled)
            raise
        finally:
            timer.cancel()

    @property
    def facts(self) -> LinkProperties | None:
        return None if self._end is None else self._end.facts

    async def attach(self, *, timeout_s: float) -> LinkProperties:
        return (await self._fresh(timeout_s, timeout_s)).facts

    async def _fresh(self, left_s: float, timeout_s: float) -> SenderEndpoint:
        """An open link, the existing one or a new one."""
        if self._is_closed:
            raise self._closed()
        end = self._end
        if end is not None and end.is_fresh:
            await end.connection.poll_if_idle()
            if end.is_fresh:
                return end
        try:
            async with asyncio.timeout(left_s):
                return await self._opening.result(self._open)
        except ServiceError as error:
            error.path = error.path or self.path
            raise
        except TimeoutError:
            raise timeout_error(
                timeout_s, path=self.path, doing="Opening a link to", was_sent=False
            ) from None

    async def _open(self) -> SenderEndpoint:
        _pooled, end = await self._pool.attach(
            self.path, lambda connection: SenderEndpoint(connection, self.path, f"sender-{uuid4()}")
        )
        old, self._end = self._end, end
        if old is not None:
            old.close_when_idle()
        return end

    # -- schedules ------------------------------------------------------------------------

    async def schedule(
        self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float
    ) -> list[int]:
        messages = [_entry(outgoing_message.encoded) for outgoing_message in outgoing_messages]
        answer = await self._request("schedule-message", {"messages": messages}, timeout_s)
        numbers = answer.get("sequence-numbers")
        if not isinstance(numbers, Array) or len(numbers.items) != len(outgoing_messages):
            raise ServiceInternalError(
                f"A response of {self.path!r} contains no sequence numbers", path=self.path
            )
        return [int(each) for each in numbers.items]

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        numbers = Array.of(_LONG, [Long(each) for each in sequence_numbers])
        body = {"sequence-numbers": numbers}
        await self._request("cancel-scheduled-message", body, timeout_s)

    async def _request(
        self, operation: str, body: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        if self._is_closed:
            raise self._closed()
        doing = f"Request {operation} to"
        suspect = self._pool.suspect
        async with time_limit(timeout_s, path=self.path, doing=doing, on_timeout=suspect):
            pooled = await self._pool.acquire()
            return await pooled.request(self.path, operation, body, timeout_s=timeout_s)

    # -- the end --------------------------------------------------------------------------

    def _closed(self) -> ServiceError:
        return closed_loss(f"The sender to {self.path!r}").error(self.path, was_sent=False)

    async def close(self) -> None:
        self._is_closed = True
        self._on_close(self)
        self._opening.fail(self._closed())
        if self._end is not None:
            self._end.close()


def _entry(encoded: bytes) -> dict[str, Any]:
    """A message to be scheduled, with the properties that the service needs separately."""
    routing = BatchKeys(encoded)
    known = {
        "message-id": routing.message_id,
        "session-id": routing.session_id,
        "partition-key": routing.partition_key,
    }
    entry: dict[str, Any] = {"message": encoded}
    return entry | {name: value for name, value in known.items() if value is not None}
