"""What the application does all the time: one sender for each entity, one receiver for each place.

Rule 1: a send is counted as acknowledged when it returns, and as failed when it raises; nothing is
        sent again by hand.
Rule 2: a message is counted as arrived before it is completed: a completion can be on disk although
        its answer died with the broker, and then the message does not come again.
Rule 3: senders keep their rate by the clock: what was due during a slow send follows at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from twinbus.aio import BrokeredMessage, MessageReceiver, MessageSender
from twinbus.demo.books import DeliveryCheck
from twinbus.errors import TwinbusError

__all__ = ["RateLimitedSender", "receive_all"]

SEND_TIMEOUT_S: Final = 30.0
TICK_S: Final = 0.05
# What was due during a stall goes in several batches.
BATCH_MAX: Final = 100
RECEIVE_COUNT: Final = 200
# A wait that ends without a message costs an operation; a message ends it at once.
RECEIVE_WAIT_S: Final = 10.0
TRY_AGAIN_S: Final = 0.2


class RateLimitedSender:
    """Sends to one entity until it is told to stop."""

    def __init__(
        self,
        sender: MessageSender,
        books: DeliveryCheck,
        bodies: Iterator[bytes],
        *,
        rate_per_s: float,
        is_diverted: Callable[[], bool],
    ) -> None:
        self.entity = sender.path
        self._sender = sender
        self._books = books
        self._bodies = bodies
        self._rate_per_s = rate_per_s
        self._is_diverted = is_diverted
        self._made = 0
        self._stops = asyncio.Event()
        self.first_detour_s: float | None = None
        """When (on the monotonic clock) the first message was safe in the backlog."""

    async def run(self) -> None:
        began_s = time.monotonic()
        while not self._stops.is_set():
            due = int((time.monotonic() - began_s) * self._rate_per_s) - self._made
            if due > 0:
                await self._send(min(due, BATCH_MAX))
            else:
                await asyncio.sleep(TICK_S)

    def stop(self) -> None:
        self._stops.set()

    async def _send(self, count: int) -> None:
        numbers = range(self._made, self._made + count)
        self._made += count
        ids = [f"{self.entity}-{number:06d}" for number in numbers]
        messages = [
            BrokeredMessage(body, message_id=each)
            for each, body in zip(ids, islice(self._bodies, count), strict=True)
        ]
        self._books.attempt(self.entity, ids)
        try:
            await self._sender.send_batch(messages, timeout=SEND_TIMEOUT_S)
        except TwinbusError:
            self._books.fail(count)
            return
        is_detoured = self._is_diverted()
        self._books.acknowledge(self.entity, ids, is_detoured=is_detoured)
        if is_detoured and self.first_detour_s is None:
            self.first_detour_s = time.monotonic()


async def receive_all(receiver: MessageReceiver, books: DeliveryCheck) -> None:
    """Receive, count and complete, until cancelled; a broker that is away is waited for."""
    while True:
        try:
            messages = await receiver.receive_batch(RECEIVE_COUNT, max_wait_time=RECEIVE_WAIT_S)
            for message in messages:
                books.arrive(receiver.path.lower(), str(message.message_id))
            await asyncio.gather(*(_completed(message) for message in messages))
        except TwinbusError:
            await asyncio.sleep(TRY_AGAIN_S)


async def _completed(message: BrokeredMessage) -> None:
    try:
        await message.complete()
    except TwinbusError:
        return  # It comes again, and is counted as a duplicate then.
