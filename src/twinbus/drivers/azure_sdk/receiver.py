"""SdkReceiver: receives from one queue, subscription or dead-letter queue with the SDK's receiver.

Rule 1: one receive at a time, and one of everything else; a settlement does not wait for a receive
        that waits for messages.
Rule 2: a cancelled call loses nothing: messages that it received are there for the next one. After
        a timeout the SDK's receiver is dropped; messages are settled through ``$management`` then.
Rule 3: a lost lock is reported in the result, never raised.
Rule 4: messages of the open link are settled on it, many at once; messages of another link, or of
        another process, by their lock tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from azure.servicebus import ServiceBusReceivedMessage

from twinbus.drivers.azure_sdk.errors import closed_error, translate_error
from twinbus.drivers.azure_sdk.sdk_link import (
    ABANDONED,
    ACCEPTED,
    DEFERRED,
    SdkReceiverLink,
    Watch,
    encoded_bytes,
    note_renewed,
)
from twinbus.drivers.azure_sdk.sdk_log import without_traceback
from twinbus.drivers.interface import NEXT_SESSION, NextSession
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import (
    CommunicationError,
    LinkDetached,
    MessageLockLost,
    MessageNotFound,
    MessageRefused,
    OperationTimeout,
    ServiceError,
    SessionLockLost,
)

T = TypeVar("T")

# A receive may wait for less than a link takes to open, half a second with this SDK. A service that
# has not responded by then counts as unreachable.
OPEN_S: Final = 20.0
# As in our AMQP client: the service's own limit is not documented, the broker's is 1,000.
TOKENS_PER_REQUEST_MAX: Final = 100
_TOKEN_BYTES: Final = 16
# The service accepts no shorter wait for a free session.
SESSION_WAIT_S_MIN: Final = 0.1


class SdkReceiver:
    """The Receiver interface over the SDK."""

    def __init__(
        self,
        path: str,
        make: Callable[[float | None], Any],
        *,
        prefetch: int,
        session: str | NextSession | None,
        forget: Callable[[SdkReceiver], object],
    ) -> None:
        self.path = path
        self.session_id = None if isinstance(session, NextSession) else session
        self._make = make
        self._forget = forget
        self._prefetch = prefetch
        self._session = session
        self._link: SdkReceiverLink | None = None
        self._opening: asyncio.Future[SdkReceiverLink] | None = None
        self._receiving = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._watch = Watch(self._drop_link)
        self._calls: set[asyncio.Future[Any]] = set()
        self._is_closed = False

    # -- receiving --------------------------------------------------------------------------

    async def receive(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
        until_s = asyncio.get_running_loop().time() + wait_s
        try:
            async with asyncio.timeout_at(until_s):
                await self._receiving.acquire()
        except TimeoutError:
            return []
        try:
            return await self._receive_reopening(count_max, wait_s, until_s)
        finally:
            self._receiving.release()

    async def _receive_reopening(
        self, count_max: int, wait_s: float, until_s: float
    ) -> list[ReceivedMessage]:
        was_open = self._link is not None
        try:
            return await self._receive_once(count_max, wait_s)
        except (CommunicationError, LinkDetached):
            # This call has returned no message, so a lost link can be replaced.
            if not was_open or self._is_closed:
                raise
        left_s = until_s - asyncio.get_running_loop().time()
        return await self._receive_once(count_max, max(0.0, left_s))

    async def _receive_once(self, count_max: int, wait_s: float) -> list[ReceivedMessage]:
        doing = "Receiving from"
        try:
            link = await self._open(doing, session_wait_s=wait_s, is_receiving=True)
        except OperationTimeout as error:
            # The service itself reported that no session was free.
            if self._session is NEXT_SESSION and error.condition:
                return []
            raise
        until_s = asyncio.get_running_loop().time() + wait_s
        try:
            messages = await link.take(count_max, until_s=until_s)
        except Exception as error:
            raise self._failed(error, link, doing) from error
        return [self._delivered(message) for message in messages]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        numbers = list(sequence_numbers)
        if not numbers:
            return []
        messages = await self._call(
            lambda link: link.sdk.receive_deferred_messages(numbers, timeout=timeout_s),
            "Receiving from",
            timeout_s=timeout_s,
        )
        if len(messages) < len(numbers):
            raise MessageNotFound(
                f"{len(numbers) - len(messages)} of {len(numbers)} messages not found in "
                f"{self.path!r}",
                path=self.path,
            )
        return [self._delivered(message) for message in messages]

    async def peek(
        self, count_max: int, *, from_sequence: int = 1, timeout_s: float
    ) -> list[ReceivedMessage]:
        messages = await self._call(
            lambda link: link.sdk.peek_messages(
                count_max, sequence_number=max(1, from_sequence), timeout=timeout_s
            ),
            "Peeking messages of",
            timeout_s=timeout_s,
        )
        return [self._delivered(message, has_lock=False) for message in messages]

    def _delivered(
        self, message: ServiceBusReceivedMessage, *, has_lock: bool = True
    ) -> ReceivedMessage:
        raw = message.raw_amqp_message
        annotations: dict[Any, Any] = dict(raw.annotations or {})
        token = message.lock_token if has_lock else None
        return ReceivedMessage(
            path=self.path,
            encoded=encoded_bytes(message),
            sequence_number=annotations.get(b"x-opt-sequence-number", 0),
            enqueued_at_ms=annotations.get(b"x-opt-enqueued-time"),
            locked_until_ms=annotations.get(b"x-opt-locked-until"),
            delivery_count=(raw.header.delivery_count or 0) if raw.header else 0,
            lock_token=token.bytes_le if isinstance(token, UUID) else b"",
            handle=message,
        )

    # -- settling ---------------------------------------------------------------------------

    async def complete(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return await self._settle(messages, ACCEPTED, "completed", timeout_s=timeout_s)

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return await self._settle(messages, ABANDONED, "abandoned", timeout_s=timeout_s)

    async def defer(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return await self._settle(messages, DEFERRED, "defered", timeout_s=timeout_s)

    async def _settle(
        self, messages: Sequence[ReceivedMessage], state: Any, status: str, *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Settle messages of the open link on it, the others by their tokens."""

        async def settle(link: SdkReceiverLink) -> list[ReceivedMessage]:
            on_link = [each for each in messages if link.holds(each.handle)]
            lost = await self._settle_on(link, on_link, state)
            here = set(map(id, on_link))
            others = [each for each in messages if id(each) not in here]

            def by_token(tokens: Sequence[UUID]) -> Awaitable[None]:
                return link.settle_by_token(tokens, status)

            return lost + await self._by_token(others, by_token)

        _check_locked(messages)
        return (
            await self._call(settle, "Settling messages of", timeout_s=timeout_s)
            if messages
            else []
        )

    async def _settle_on(
        self, link: SdkReceiverLink, messages: Sequence[ReceivedMessage], state: Any
    ) -> list[ReceivedMessage]:
        if not messages:
            return []
        refused = await link.settle([each.handle for each in messages], state)
        for error in refused.values():
            if not self._is_loss(error):
                raise error
        return [messages[place] for place in sorted(refused)]

    async def dead_letter(
        self,
        messages: Sequence[ReceivedMessage],
        *,
        reason: str,
        description: str,
        timeout_s: float,
    ) -> list[ReceivedMessage]:
        async def dead_letter(link: SdkReceiverLink) -> list[ReceivedMessage]:
            lost: list[ReceivedMessage] = []
            others = [each for each in messages if each.handle is None]
            for message in messages:
                if message.handle is None:
                    continue
                try:
                    await link.sdk.dead_letter_message(
                        message.handle, reason=reason, error_description=description
                    )
                except Exception as error:
                    if not self._is_loss(error):
                        raise
                    lost.append(message)

            def by_token(tokens: Sequence[UUID]) -> Awaitable[None]:
                return link.settle_by_token(
                    tokens,
                    "suspended",
                    deadletter_reason=reason,
                    deadletter_description=description,
                )

            return lost + await self._by_token(others, by_token)

        _check_locked(messages)
        return (
            await self._call(dead_letter, "Settling messages of", timeout_s=timeout_s)
            if messages
            else []
        )

    async def renew(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        async def renew(link: SdkReceiverLink) -> list[ReceivedMessage]:
            if self._session is None:
                return await self._renew_by_token(link, messages, timeout_s)
            # One lock covers all messages of a session.
            try:
                await link.sdk.session.renew_lock(timeout=timeout_s)
            except Exception as error:
                if not self._is_loss(error):
                    raise
                return list(messages)
            return []

        _check_locked(messages)
        return await self._call(renew, "Renewing locks of", timeout_s=timeout_s) if messages else []

    async def _renew_by_token(
        self, link: SdkReceiverLink, messages: Sequence[ReceivedMessage], timeout_s: float
    ) -> list[ReceivedMessage]:
        by_token = {each.lock_token: each.handle for each in messages}

        async def renew(tokens: Sequence[UUID]) -> None:
            until = await link.renew(tokens, timeout_s=timeout_s)
            for token, until_ms in zip(tokens, until, strict=False):
                if (handle := by_token[token.bytes_le]) is not None:
                    note_renewed(handle, until_ms)

        return await self._by_token(messages, renew)

    async def _by_token(
        self, messages: Sequence[ReceivedMessage], ask: Callable[[Sequence[UUID]], Awaitable[Any]]
    ) -> list[ReceivedMessage]:
        """Send requests for many at once, and one by one where the service refused all because of
        one; returns those whose lock was lost. One request at a time, because the SDK reads one
        response at a time."""

        async def is_lost(some: Sequence[ReceivedMessage]) -> bool:
            try:
                await ask([UUID(bytes_le=each.lock_token) for each in some])
            except Exception as error:
                if not self._is_loss(error):
                    raise
                return True
            return False

        lost: list[ReceivedMessage] = []
        for start in range(0, len(messages), TOKENS_PER_REQUEST_MAX):
            some = messages[start : start + TOKENS_PER_REQUEST_MAX]
            if not await is_lost(some):
                continue
            lost += some if len(some) == 1 else [each for each in some if await is_lost([each])]
        return lost

    def _is_loss(self, error: Exception) -> bool:
        failure = translate_error(error, doing="Settling messages of", path=self.path)
        return isinstance(failure, MessageLockLost | SessionLockLost | MessageNotFound)

    # -- one call ---------------------------------------------------------------------------

    async def _call(
        self, operation: Callable[[SdkReceiverLink], Awaitable[T]], doing: str, *, timeout_s: float
    ) -> T:
        """Carry an operation out to its end, also when the caller is cancelled: the SDK may read
        a message for another call meanwhile."""
        return await self._result_of(self._start(self._carry_out(operation, doing, timeout_s)))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        call = asyncio.ensure_future(work)
        self._calls.add(call)
        call.add_done_callback(self._on_call_done)
        return call

    async def _result_of(self, call: asyncio.Future[T]) -> T:
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not call.cancelled():
                raise
            # Not this task but the operation was cancelled, with everything of this receiver.
            raise self._closed_error() from error

    def _closed_error(self) -> ServiceError:
        if self._is_closed:
            return closed_error(f"The receiver of {self.path!r}", self.path)
        return CommunicationError(
            f"The connection to {self.path!r} was closed", path=self.path, was_sent=False
        )

    def _on_call_done(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # Perhaps no caller is left to retrieve it.

    async def _carry_out(
        self, operation: Callable[[SdkReceiverLink], Awaitable[T]], doing: str, timeout_s: float
    ) -> T:
        until_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(until_s):
                await self._settling.acquire()
            try:
                with self._watch.until(until_s):
                    link = await self._open(doing, session_wait_s=timeout_s)
                    try:
                        with without_traceback():
                            return await operation(link)
                    except Exception as error:
                        raise self._failed(error, link, doing) from error
            finally:
                self._settling.release()
        except ServiceError:
            raise  # The service's own response, which can be an OperationTimeout.
        except TimeoutError as error:
            raise OperationTimeout(
                f"{doing} {self.path!r} timed out after {timeout_s:g} s", path=self.path
            ) from error

    async def _open(
        self, doing: str, *, session_wait_s: float, is_receiving: bool = False
    ) -> SdkReceiverLink:
        """A usable link, opened again if the service detached it."""
        link = self._link
        if link is not None:
            poll = link.poll_messages if is_receiving else link.poll
            if not await poll() and self._link is link:
                self._drop_link()
        if self._is_closed:
            raise self._closed_error()
        if self._link is not None:
            return self._link
        # A call that is cancelled meanwhile does not stop the opening for the others.
        if self._opening is None or self._opening.done():
            self._opening = self._start(self._open_new(doing, session_wait_s))
        return await self._result_of(self._opening)

    async def _open_new(self, doing: str, session_wait_s: float) -> SdkReceiverLink:
        is_next = self._session is NEXT_SESSION
        wait_s = max(session_wait_s, SESSION_WAIT_S_MIN) if is_next else None
        link = SdkReceiverLink(self._make(wait_s), prefetch=self._prefetch)
        watch = Watch(link.drop)
        try:
            with watch.until(asyncio.get_running_loop().time() + OPEN_S + (wait_s or 0.0)):
                await link.open()
        except BaseException as error:
            link.drop()
            if not isinstance(error, Exception):
                raise
            raise translate_error(error, doing=doing, path=self.path) from error
        finally:
            watch.stop()
        if link.sdk.session is not None:
            self.session_id = link.sdk.session.session_id
        self._link = link
        return link

    def _failed(self, error: Exception, link: SdkReceiverLink, doing: str) -> ServiceError:
        failure = translate_error(error, doing=doing, path=self.path, link_error=link.link_error)
        is_broken = isinstance(failure, CommunicationError | LinkDetached | SessionLockLost)
        if (is_broken or link.is_dropped) and self._link is link:
            self._drop_link()
        return failure

    def _drop_link(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        link, self._link = self._link, None
        if link is not None:
            link.drop()

    async def close(self) -> None:
        self._is_closed = True
        self._forget(self)
        self._watch.stop()
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        self._drop_link()


def _check_locked(messages: Sequence[ReceivedMessage]) -> None:
    for each in messages:
        if len(each.lock_token) != _TOKEN_BYTES:
            raise MessageRefused(
                "A message without a lock cannot be settled",
                path=each.path,
                hint="Receive it with ReceiveMode.PEEK_LOCK; peeked messages have no lock",
            )
