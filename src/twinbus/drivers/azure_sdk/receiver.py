"""A way out of one queue, subscription or dead-letter queue, through a receiver of the SDK.

Rule 1: one receive at a time, and one of everything else; a settlement does not wait for a receive
        that waits for messages.
Rule 2: a cancelled call loses nothing: what was received for it is there for the next one. After
        a timeout the SDK's receiver is dropped; messages are settled through ``$management`` then.
Rule 3: a lock that is lost is told in the result, never raised.
Rule 4: what came by the open link is settled on it, many messages at once; what came by another
        link, or to another process, by its lock token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from azure.servicebus import ServiceBusReceivedMessage

from twinbus.drivers.azure_sdk.errors import closed, translated
from twinbus.drivers.azure_sdk.sdk_link import (
    ABANDONED,
    ACCEPTED,
    DEFERRED,
    SdkReceiverLink,
    Watch,
    encoded_of,
    note_renewed,
)
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

# A receive may be asked to wait for less than a link takes to open, half a second with this SDK.
# A service that has not answered by then is not going to.
OPEN_S: Final = 20.0
# As the lean client: the service's own limit is not written down, the broker's is 1,000.
TOKENS_PER_REQUEST_MAX: Final = 100
_TOKEN_BYTES: Final = 16
# The service takes no shorter wait for a free session.
SESSION_WAIT_S_MIN: Final = 0.1


class SdkReceiver:
    """The port's Receiver."""

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
        self._line: SdkReceiverLink | None = None
        self._opening: asyncio.Future[SdkReceiverLink] | None = None
        self._receiving = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._watch = Watch(self._let_go)
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
            return await self._received(count_max, wait_s, until_s)
        finally:
            self._receiving.release()

    async def _received(
        self, count_max: int, wait_s: float, until_s: float
    ) -> list[ReceivedMessage]:
        was_open = self._line is not None
        try:
            return await self._received_once(count_max, wait_s)
        except (CommunicationError, LinkDetached):
            # Nothing was handed out by this call, so a link that was lost is only a link.
            if not was_open or self._is_closed:
                raise
        left_s = until_s - asyncio.get_running_loop().time()
        return await self._received_once(count_max, max(0.0, left_s))

    async def _received_once(self, count_max: int, wait_s: float) -> list[ReceivedMessage]:
        doing = "receiving from"
        try:
            line = await self._open(doing, session_wait_s=wait_s, is_receiving=True)
        except OperationTimeout as error:
            # No session was free; the service itself says so.
            if self._session is NEXT_SESSION and error.condition:
                return []
            raise
        until_s = asyncio.get_running_loop().time() + wait_s
        try:
            messages = await line.take(count_max, until_s=until_s)
        except Exception as error:
            raise self._failed(error, line, doing) from error
        return [self._delivered(message) for message in messages]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        numbers = list(sequence_numbers)
        if not numbers:
            return []
        messages = await self._call(
            lambda line: line.sdk.receive_deferred_messages(numbers, timeout=timeout_s),
            "receiving from",
            timeout_s=timeout_s,
        )
        if len(messages) < len(numbers):
            raise MessageNotFound(
                f"{len(numbers) - len(messages)} of {len(numbers)} messages are not in "
                f"{self.path!r}",
                path=self.path,
            )
        return [self._delivered(message) for message in messages]

    async def peek(
        self, count_max: int, *, from_sequence: int = 1, timeout_s: float
    ) -> list[ReceivedMessage]:
        messages = await self._call(
            lambda line: line.sdk.peek_messages(
                count_max, sequence_number=max(1, from_sequence), timeout=timeout_s
            ),
            "peeking into",
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
            encoded=encoded_of(message),
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
        """Those that came by the open link are settled on it, the others by their tokens."""

        async def settle(line: SdkReceiverLink) -> list[ReceivedMessage]:
            on_link = [each for each in messages if line.holds(each.handle)]
            lost = await self._settled_on(line, on_link, state)
            here = set(map(id, on_link))
            others = [each for each in messages if id(each) not in here]

            def by_token(tokens: Sequence[UUID]) -> Awaitable[None]:
                return line.settle_by_token(tokens, status)

            return lost + await self._by_token(others, by_token)

        _check_locked(messages)
        return await self._call(settle, "settling in", timeout_s=timeout_s) if messages else []

    async def _settled_on(
        self, line: SdkReceiverLink, messages: Sequence[ReceivedMessage], state: Any
    ) -> list[ReceivedMessage]:
        if not messages:
            return []
        refused = await line.settle([each.handle for each in messages], state)
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
        async def dead_letter(line: SdkReceiverLink) -> list[ReceivedMessage]:
            lost: list[ReceivedMessage] = []
            others = [each for each in messages if each.handle is None]
            for message in messages:
                if message.handle is None:
                    continue
                try:
                    await line.sdk.dead_letter_message(
                        message.handle, reason=reason, error_description=description
                    )
                except Exception as error:
                    if not self._is_loss(error):
                        raise
                    lost.append(message)

            def by_token(tokens: Sequence[UUID]) -> Awaitable[None]:
                return line.settle_by_token(
                    tokens,
                    "suspended",
                    deadletter_reason=reason,
                    deadletter_description=description,
                )

            return lost + await self._by_token(others, by_token)

        _check_locked(messages)
        return await self._call(dead_letter, "settling in", timeout_s=timeout_s) if messages else []

    async def renew(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        async def renew(line: SdkReceiverLink) -> list[ReceivedMessage]:
            if self._session is None:
                return await self._renewed(line, messages, timeout_s)
            # One lock covers all messages of a session.
            try:
                await line.sdk.session.renew_lock(timeout=timeout_s)
            except Exception as error:
                if not self._is_loss(error):
                    raise
                return list(messages)
            return []

        _check_locked(messages)
        return await self._call(renew, "renewing in", timeout_s=timeout_s) if messages else []

    async def _renewed(
        self, line: SdkReceiverLink, messages: Sequence[ReceivedMessage], timeout_s: float
    ) -> list[ReceivedMessage]:
        by_token = {each.lock_token: each.handle for each in messages}

        async def renew(tokens: Sequence[UUID]) -> None:
            until = await line.renew(tokens, timeout_s=timeout_s)
            for token, until_ms in zip(tokens, until, strict=False):
                if (handle := by_token[token.bytes_le]) is not None:
                    note_renewed(handle, until_ms)

        return await self._by_token(messages, renew)

    async def _by_token(
        self, messages: Sequence[ReceivedMessage], ask: Callable[[Sequence[UUID]], Awaitable[Any]]
    ) -> list[ReceivedMessage]:
        """Ask for many at once, and one by one where the service refused all because of one;
        those whose lock was lost. One request at a time: the SDK reads one answer at a time."""

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
        failure = translated(error, doing="settling in", path=self.path)
        return isinstance(failure, MessageLockLost | SessionLockLost | MessageNotFound)

    # -- one call ---------------------------------------------------------------------------

    async def _call(
        self, operation: Callable[[SdkReceiverLink], Awaitable[T]], doing: str, *, timeout_s: float
    ) -> T:
        """Carry something out to its end, also when the caller is cancelled: what the SDK reads
        meanwhile may be a message for somebody else."""
        return await self._result_of(self._started(self._carried_out(operation, doing, timeout_s)))

    def _started(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        call = asyncio.ensure_future(work)
        self._calls.add(call)
        call.add_done_callback(self._ended)
        return call

    async def _result_of(self, call: asyncio.Future[T]) -> T:
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not call.cancelled():
                raise
            # Not we but the work was cancelled, with everything of this receiver.
            raise self._given_up() from error

    def _given_up(self) -> ServiceError:
        if self._is_closed:
            return closed(f"the receiver of {self.path!r}", self.path)
        return CommunicationError(
            f"the connection to {self.path!r} was given up", path=self.path, was_sent=False
        )

    def _ended(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # Nobody may be left to be told.

    async def _carried_out(
        self, operation: Callable[[SdkReceiverLink], Awaitable[T]], doing: str, timeout_s: float
    ) -> T:
        until_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(until_s):
                await self._settling.acquire()
            try:
                with self._watch.until(until_s):
                    line = await self._open(doing, session_wait_s=timeout_s)
                    try:
                        return await operation(line)
                    except Exception as error:
                        raise self._failed(error, line, doing) from error
            finally:
                self._settling.release()
        except ServiceError:
            raise  # The service's own answer, which can be an OperationTimeout.
        except TimeoutError as error:
            raise OperationTimeout(
                f"{doing} {self.path!r} had no answer within {timeout_s:g} s", path=self.path
            ) from error

    async def _open(
        self, doing: str, *, session_wait_s: float, is_receiving: bool = False
    ) -> SdkReceiverLink:
        """A line that can be used, opened again if the service took it away."""
        line = self._line
        if line is not None:
            looks = line.poll_messages if is_receiving else line.look
            if not await looks() and self._line is line:
                self._let_go()
        if self._is_closed:
            raise self._given_up()
        if self._line is not None:
            return self._line
        # Whoever is cancelled meanwhile leaves the others, and the next call, an open line.
        if self._opening is None or self._opening.done():
            self._opening = self._started(self._opened(doing, session_wait_s))
        return await self._result_of(self._opening)

    async def _opened(self, doing: str, session_wait_s: float) -> SdkReceiverLink:
        is_next = self._session is NEXT_SESSION
        wait_s = max(session_wait_s, SESSION_WAIT_S_MIN) if is_next else None
        line = SdkReceiverLink(self._make(wait_s), prefetch=self._prefetch)
        watch = Watch(line.drop)
        try:
            with watch.until(asyncio.get_running_loop().time() + OPEN_S + (wait_s or 0.0)):
                await line.open()
        except BaseException as error:
            line.drop()
            if not isinstance(error, Exception):
                raise
            raise translated(error, doing=doing, path=self.path) from error
        finally:
            watch.stop()
        if line.sdk.session is not None:
            self.session_id = line.sdk.session.session_id
        self._line = line
        return line

    def _failed(self, error: Exception, line: SdkReceiverLink, doing: str) -> ServiceError:
        failure = translated(error, doing=doing, path=self.path, link_error=line.link_error)
        is_broken = isinstance(failure, CommunicationError | LinkDetached | SessionLockLost)
        if (is_broken or line.is_dropped) and self._line is line:
            self._let_go()
        return failure

    def _let_go(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        line, self._line = self._line, None
        if line is not None:
            line.drop()

    async def close(self) -> None:
        self._is_closed = True
        self._forget(self)
        self._watch.stop()
        line, self._line = self._line, None
        if line is not None:
            await line.close()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        self._let_go()


def _check_locked(messages: Sequence[ReceivedMessage]) -> None:
    for each in messages:
        if len(each.lock_token) != _TOKEN_BYTES:
            raise MessageRefused(
                "a message without a lock cannot be settled",
                path=each.path,
                hint="Receive it with ReceiveMode.PEEK_LOCK: peeking only looks",
            )
