"""Our endpoint of a link from a queue or subscription: credit out, messages in, settlements out.

    prefetch 0   credit for one call; the rest of it is drained when the first messages have arrived
    prefetch n   credit for n messages, topped up as they are taken

Rule 1: a wait of any length is one grant of credit.
Rule 2: messages that arrived and that no caller received are released when the endpoint closes.
Rule 3: a settlement is over when the service has answered it. Adjacent ids share one frame.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from twinbus.amqp.codec.types import Symbol, UInt
from twinbus.amqp.delivery_states import STATE_RELEASED, Rejected
from twinbus.amqp.errors import Condition
from twinbus.amqp.events import DeliveriesReceived, DeliveryReceived, DispositionReceived
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.limits import UINT_MAX
from twinbus.amqp.performatives import ROLE_RECEIVER, Source
from twinbus.amqp.transfers import encode_disposition
from twinbus.drivers.amqp.connection import CLOSE_TIMEOUT_S, AmqpConnection
from twinbus.drivers.amqp.delivery_metadata import MetadataReader
from twinbus.drivers.amqp.errors import ConnectionLoss, refusal
from twinbus.drivers.amqp.link_endpoint import FIRST, SECOND, SETTLED, UNSETTLED, LinkEndpoint
from twinbus.errors import LinkDetached, ServiceInternalError

# A few messages may arrive without credit for good reasons; too many of them would fill memory.
SURPLUS_MAX: Final = 1_000
# For the service to return the rest of our credit. If it does not, the link is unusable.
DRAIN_TIMEOUT_S: Final = 5.0

SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
SESSION_TIMEOUT: Final = Symbol("com.microsoft:timeout")
LOST: Final = frozenset({Condition.MESSAGE_LOCK_LOST, Condition.SESSION_LOCK_LOST})

Arrival = tuple[int, bytes, bytes]
"""Delivery id, tag and payload."""


class Settlement:
    """Deliveries that one call settles, until the service has answered all of them."""

    __slots__ = ("future", "lost", "missing")

    def __init__(self, ids: Iterable[int], future: asyncio.Future[None]) -> None:
        self.missing = set(ids)
        self.lost: set[int] = set()
        self.future = future

    def take_answered(self, first: int, span: int) -> set[int]:
        """Remove the ids of a range from the missing ones and return them."""
        missing = self.missing
        if span < len(missing):
            ids = {(first + offset) & UINT_MAX for offset in range(span + 1)} & missing
        else:
            ids = {each for each in missing if (each - first) & UINT_MAX <= span}
        missing -= ids
        return ids


class ReceiverEndpoint(LinkEndpoint):
    """Receives from one entity, or from one session of it."""

    def __init__(
        self,
        connection: AmqpConnection,
        path: str,
        name: str,
        *,
        deletes: bool,
        prefetch: int = 0,
        session_filter: dict[Any, Any] | None = None,
        session_wait_ms: int | None = None,
    ) -> None:
        super().__init__(connection, path)
        self.name = name
        self.facts = MetadataReader()
        self._loop = asyncio.get_running_loop()
        self._prefetch = prefetch
        self._arrived: deque[Arrival] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._settlements: list[Settlement] = []
        self._deletes = deletes
        self.link = self.attach_receiver(
            Source(address=path, filter=session_filter),
            name,
            snd_settle_mode=SETTLED if deletes else UNSETTLED,
            rcv_settle_mode=FIRST if deletes else SECOND,
            properties=None
            if session_wait_ms is None
            else {SESSION_TIMEOUT: UInt(session_wait_ms)},
        )
        self.link.keeps_tags = True

    @property
    def session_id(self) -> str | None:
        """The session that the service assigned, if one was requested."""
        source = self.link.peer.source
        granted = ((source.filter if source is not None else None) or {}).get(SESSION_FILTER)
        return granted if isinstance(granted, str) else None

    def on_open(self) -> None:
        self._top_up()

    # -- messages -------------------------------------------------------------------------

    def on_delivery(self, event: DeliveryReceived) -> None:
        self._arrived.append((event.delivery_id, event.tag, event.payload))
        self._notify_arrival()
        if self.link.credit < -SURPLUS_MAX:
            self.lost(
                ConnectionLoss(
                    ServiceInternalError,
                    f"The service sent more messages of {self.path!r} than were requested",
                )
            )
            self.close()

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        first, count = event.first_id, len(event.payloads)
        if first + count > UINT_MAX or self.link.credit < 0:
            super().on_deliveries(event)
            return
        ids = range(first, first + count)
        self._arrived.extend(zip(ids, event.tags, event.payloads, strict=True))
        self._notify_arrival()

    def _notify_arrival(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def collect(self, count_max: int, wait_s: float) -> list[Arrival]:
        """Messages as soon as there are some, up to ``count_max``; none after ``wait_s``."""
        if not self._arrived:
            if not self._prefetch:
                await self._drain()
                if self.loss is None and not self._arrived:
                    self.link.grant(count_max)
                    self.connection.wants_flush()
            await self._await_arrival(wait_s)
            if not self._arrived and self.loss is not None:
                raise self.loss.error(self.path, was_sent=False)
            if not self._prefetch:
                await self._drain()
        taken = [self._arrived.popleft() for _ in range(min(count_max, len(self._arrived)))]
        self._top_up()
        return taken

    async def _await_arrival(self, wait_s: float) -> None:
        if self._arrived or self.loss is not None:
            return
        self._arrival = self._loop.create_future()
        try:
            async with asyncio.timeout(wait_s):
                await self._arrival
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if not self._prefetch:
                self._begin_drain()  # No call waits for further messages.
            raise
        finally:
            self._arrival = None

    def _top_up(self) -> None:
        wanted = self._prefetch - len(self._arrived)
        if self.loss is None and self._prefetch and self.link.credit * 2 <= wanted:
            self.link.grant(wanted)
            self.connection.wants_flush()

    async def _drain(self, timeout_s: float | None = None) -> None:
        """Drain the credit; messages that were under way have arrived when this returns."""
        self._begin_drain()
        if self._drained is None:
            return
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S if timeout_s is None else timeout_s):
                await asyncio.shield(self._drained)
        except TimeoutError:
            sentence = f"The service did not return the link credit of {self.path!r}"
            self.lost(ConnectionLoss(LinkDetached, sentence))
            self.close()

    def _begin_drain(self) -> None:
        if self.loss is None and self.link.credit > 0 and self._drained is None:
            self.link.drain()
            self.connection.wants_flush()
            self._drained = self._loop.create_future()

    def on_drained(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    # -- settlements ----------------------------------------------------------------------

    def settle(self, ids: Sequence[int], state: bytes) -> Settlement:
        """Settle deliveries; the future is done when the service has answered."""
        settlement = Settlement(ids, self._loop.create_future())
        self._settlements.append(settlement)
        for first, last in group_ranges(ids):
            self._dispose(first, last, state, settled=False)
        return settlement

    def forget(self, settlement: Settlement) -> None:
        """No call waits for it any more."""
        if settlement in self._settlements:
            self._settlements.remove(settlement)
        self.close_if_unused()

    def _dispose(self, first: int, last: int, state: bytes, *, settled: bool) -> None:
        body = encode_disposition(ROLE_RECEIVER, first, last, settled, state)
        self.connection.write(encode_frame(self.session.channel, body))

    def on_disposition(self, event: DispositionReceived) -> None:
        if event.role:
            return
        span = (event.last - event.first) & UINT_MAX
        for settlement in list(self._settlements):
            ids = settlement.take_answered(event.first, span)
            if ids:
                self._judge(settlement, ids, event.state)

    def _judge(self, settlement: Settlement, ids: set[int], state: Any) -> None:
        error = state.error if isinstance(state, Rejected) else None
        if error is not None and error.condition in LOST:
            settlement.lost |= ids
            error = None
        future = settlement.future
        if error is not None and not future.done():
            future.set_exception(refusal(error, path=self.path))
        elif not settlement.missing and not future.done():
            future.set_result(None)

    # -- the end --------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return bool(self._settlements) or self._arrival is not None

    def abort(self, loss: ConnectionLoss) -> None:
        self._notify_arrival()
        self.on_drained()
        for settlement in self._settlements:
            if not settlement.future.done():
                settlement.future.set_exception(loss.error(self.path, was_sent=True))

    @property
    def has_arrivals(self) -> bool:
        """Whether messages have arrived that no caller received."""
        return bool(self._arrived)

    async def drain_and_close(self) -> None:
        """Drain the credit, release all messages that no caller received, and close."""
        self._prefetch = 0
        try:
            await self._drain(CLOSE_TIMEOUT_S)
        finally:
            self.close()

    def release(self) -> None:
        """Release the messages that no caller received, as if they had never been sent."""
        if self.loss is None and not self._deletes:
            for first, last in group_ranges([arrival[0] for arrival in self._arrived]):
                self._dispose(first, last, STATE_RELEASED, settled=True)
            self._arrived.clear()

    def close(self) -> None:
        self.release()
        super().close()


def group_ranges(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Delivery ids as ranges of consecutive ids, both ends included."""
    ordered = sorted(set(ids))
    if not ordered or ordered[-1] - ordered[0] == len(ordered) - 1:
        return [(ordered[0], ordered[-1])] if ordered else []
    found = []
    first = last = ordered[0]
    for each in ordered[1:]:
        if each != last + 1:
            found.append((first, last))
            first = each
        last = each
    found.append((first, last))
    return found
