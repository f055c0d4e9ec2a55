"""Combines the sends of many callers to one backlog queue into batches (P24, P25).

    send() --> waiting --next batch--> in progress --> answered, each caller separately

While a batch is in progress, further sends wait and form the next batch. So 500 sends that are
diverted at once are two or three sends to the backlog instead of 500 one after the other.

Rule 1: a single send never waits for others.
Rule 2: each caller keeps its own deadline and cancellation. If it is cancelled while its messages
        are in progress, their state is ambiguous; before that, nothing was sent. A caller that was
        not cancelled gets an error and no cancellation when the sender is closed.
Rule 3: the order of the calls is kept.
Rule 4: a batch that is refused because of its content is sent again call by call, so that no
        caller fails because of the messages of another. Once the queue is known to refuse what
        another queue accepts (P20), the rest is refused at once: its callers use that other queue.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from twinbus.drivers.interface import Sender, note_unsent
from twinbus.encoding.batching import BATCH_ENVELOPE_BYTES_MAX, size_in_batch
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    LinkDetached,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
)

__all__ = ["BatchingSender"]

# Well below what a broker accepts in one batch (ours and Azure's Standard tier: 4,500).
BATCH_COUNT_MAX: Final = 1_000

# Errors of the queue or of the connection: another batch would get the same error.
_QUEUE_ERRORS: Final = (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    LinkDetached,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
)


class _Call:
    """One send, and the future of its caller."""

    __slots__ = ("end_s", "future", "is_under_way", "messages")

    def __init__(self, messages: Sequence[OutgoingMessage], end_s: float) -> None:
        self.messages = messages
        self.end_s = end_s
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_under_way = False


class BatchingSender:
    """Sends encoded messages to one queue."""

    def __init__(
        self,
        inner: Sender,
        batch_bytes_max: int,
        is_withdrawn: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_withdrawn`` returns whether the queue is withdrawn from the rotation."""
        self._is_withdrawn = is_withdrawn
        self.path = inner.path
        self._inner = inner
        self._batch_bytes_max = batch_bytes_max
        self._waiting: deque[_Call] = deque()
        self._task: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[None] | None = None
        self._under_way: list[_Call] = []
        """The calls whose messages are in the current attempt."""

    async def send(self, messages: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        """Return once the queue has stored all messages durably: it accepts all or none."""
        call = _Call(messages, asyncio.get_running_loop().time() + timeout_s)
        self._waiting.append(call)
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name="twinbus-backlog-batches")
        try:
            async with asyncio.timeout_at(call.end_s):
                await call.future
        except ServiceError:
            raise  # The answer of the queue, which can be an OperationTimeout.
        except TimeoutError:
            self._caller_left()
            error = OperationTimeout(
                f"Sending to {self.path!r} was not acknowledged within {timeout_s:g} s",
                path=self.path,
            )
            error.is_ambiguous = call.is_under_way
            raise error from None
        except asyncio.CancelledError as cancelled:
            self._caller_left()
            if not call.is_under_way:
                note_unsent(cancelled)
            raise

    async def attach(self, *, timeout_s: float) -> None:
        """Open the link if it is not open, and send nothing."""
        await self._inner.attach(timeout_s=timeout_s)

    def _caller_left(self) -> None:
        """Cancel an attempt without remaining callers: others may wait behind it."""
        if self._attempt is not None and all(call.future.done() for call in self._under_way):
            self._attempt.cancel()

    async def close(self) -> None:
        """End the sends in progress, and close the link."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._inner.close()

    # -- batches --------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        try:
            while calls := self._next_batch():
                await self._send_batch(calls)
        finally:
            self._task = None
            for call in self._waiting:
                _answer(call, self._no_answer_error(call, "was closed"))
            self._waiting.clear()

    def _next_batch(self) -> list[_Call]:
        """The waiting calls that fit into one batch, in their order."""
        calls: list[_Call] = []
        count, size_bytes = 0, BATCH_ENVELOPE_BYTES_MAX
        while self._waiting:
            call = self._waiting[0]
            if call.future.done():  # Its caller was cancelled.
                self._waiting.popleft()
                continue
            count += len(call.messages)
            size_bytes += sum(size_in_batch(len(message.encoded)) for message in call.messages)
            if calls and (count > BATCH_COUNT_MAX or size_bytes > self._batch_bytes_max):
                break
            calls.append(self._waiting.popleft())
        return calls

    async def _send_batch(self, calls: list[_Call]) -> None:
        for call in calls:
            call.is_under_way = True
        error = await self._try([message for call in calls for message in call.messages], calls)
        if error is not None and len(calls) > 1 and not isinstance(error, _QUEUE_ERRORS):
            for call in calls:
                if self._is_withdrawn():
                    _answer(call, error)
                elif not call.future.done():
                    _answer(call, await self._try(call.messages, [call]))
            return
        for call in calls:
            _answer(call, error)

    async def _try(
        self, messages: Sequence[OutgoingMessage], calls: list[_Call]
    ) -> BaseException | None:
        """One send; its error, or None."""
        timeout_s = max(call.end_s for call in calls) - asyncio.get_running_loop().time()
        attempt = asyncio.ensure_future(self._inner.send(messages, timeout_s=max(timeout_s, 0.0)))
        self._attempt, self._under_way = attempt, calls
        try:
            await asyncio.wait([attempt])
        except asyncio.CancelledError:
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
            for call in calls:
                _answer(call, self._no_answer_error(call, "was closed"))
            raise
        finally:
            self._attempt = None
        if attempt.cancelled():
            # Its callers were cancelled. If one was not, the state of its messages is ambiguous.
            return self._no_answer_error(calls[0], "was cancelled")
        return attempt.exception()

    def _no_answer_error(self, call: _Call, why: str) -> ServiceError:
        """The error of a caller that was not cancelled, and whose send ends without an answer."""
        error = CommunicationError(
            f"The sender to {self.path!r} {why} before the queue responded",
            path=self.path,
            was_sent=call.is_under_way,
        )
        return error.mark_final()


def _answer(call: _Call, error: BaseException | None) -> None:
    if call.future.done():
        return
    if error is None:
        call.future.set_result(None)
    else:
        # Each caller gets its own copy: an error changes as it is passed on.
        own = copy.copy(error) if isinstance(error, ServiceError) else error
        own.__cause__ = error.__cause__
        call.future.set_exception(own)
