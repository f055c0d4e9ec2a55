"""Receiving from one queue, subscription or dead-letter queue.

Rule 1: receiving comes only from the namespace itself, paired or not (P15).
Rule 2: the link opens with the first call, and a receiver that is waiting ends with its factory.
Rule 3: a received message can be settled by its receiver, or by itself: ``message.complete()``.
        A lock that was lost raises MessageLockLost: the message will be received again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from twinbus.core.encoding import decode_message
from twinbus.core.parcel import ReceivedMessage
from twinbus.drivers.port import Receiver
from twinbus.entity_path import parse_address
from twinbus.errors import ConfigurationError
from twinbus.message import BrokeredMessage
from twinbus.pairing.standing import CallTracker
from twinbus.service_errors import MessageLockLost

__all__ = ["LockHandle", "MessageReceiver", "receiver_path"]

T = TypeVar("T")

RECEIVE_COUNT_MAX: Final = 5_000
"""A batch that nobody could settle before its locks end helps nobody."""
# An iteration asks again after this long, with no effect but a new credit (Y3's long poll).
ITERATION_WAIT_S: Final = 900.0


def receiver_path(path: str) -> str:
    """The canonical path of something that messages come from; InvalidEntityPath otherwise."""
    address = parse_address(path)
    if address.node != "entity":
        raise ConfigurationError(f"nobody receives from {path!r:.80}")
    return address.path


class MessageReceiver:
    """Receives from one place."""

    def __init__(
        self,
        make: Callable[[], Receiver],
        path: str,
        calls: CallTracker,
        *,
        timeout_s: float,
        forget: Callable[[MessageReceiver], object],
    ) -> None:
        self.path = path
        self._make = make
        self._calls = calls
        self._timeout_s = timeout_s
        self._forget = forget
        self._link: Receiver | None = None
        self._is_closed = False

    @property
    def session_id(self) -> str | None:
        """The session that is held, once the first receive has got one."""
        return None if self._link is None else self._link.session_id

    # -- receiving ------------------------------------------------------------------------------

    async def receive(self, *, max_wait_time: float | None = None) -> BrokeredMessage | None:
        """One message, or None when there was none for ``max_wait_time`` seconds."""
        found = await self.receive_batch(1, max_wait_time=max_wait_time)
        return found[0] if found else None

    async def receive_batch(
        self, max_message_count: int, *, max_wait_time: float | None = None
    ) -> list[BrokeredMessage]:
        """Up to so many: returns as soon as some are there, or empty after the wait."""
        if not 1 <= max_message_count <= RECEIVE_COUNT_MAX:
            raise ConfigurationError(
                f"max_message_count is {max_message_count}",
                hint=f"Use 1 to {RECEIVE_COUNT_MAX}",
            )
        wait_s = self._timeout_s if max_wait_time is None else max_wait_time
        link = self._opened()
        return self._handed_out(await self._run(link.receive(max_message_count, wait_s=wait_s)))

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[BrokeredMessage]:
        """Messages that were set aside, by their numbers."""
        return self._handed_out(
            await self._run(
                self._opened().receive_deferred(sequence_numbers, timeout_s=self._timeout_s)
            )
        )

    async def peek(
        self, max_message_count: int = 1, *, from_sequence_number: int = 1
    ) -> list[BrokeredMessage]:
        """Look without taking; such messages cannot be settled."""
        found = await self._run(
            self._opened().peek(
                max_message_count, from_sequence=from_sequence_number, timeout_s=self._timeout_s
            )
        )
        return [decode_message(each) for each in found]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BrokeredMessage:
        while not self._is_closed:
            message = await self.receive(max_wait_time=ITERATION_WAIT_S)
            if message is not None:
                return message
        raise StopAsyncIteration

    # -- settling -------------------------------------------------------------------------------

    async def complete(self, message: BrokeredMessage) -> None:
        """It is done: the service forgets it."""
        await self._settle(message, self._opened().complete)

    async def abandon(self, message: BrokeredMessage) -> None:
        """Give it back at once; its delivery count grows."""
        await self._settle(message, self._opened().abandon)

    async def defer(self, message: BrokeredMessage) -> None:
        """Set it aside; receive_deferred() gets it by its number."""
        await self._settle(message, self._opened().defer)

    async def dead_letter(
        self, message: BrokeredMessage, *, reason: str = "", description: str = ""
    ) -> None:
        """Move it to the dead-letter queue, with a reason."""
        link = self._opened()

        async def move(
            messages: Sequence[ReceivedMessage], *, timeout_s: float
        ) -> list[ReceivedMessage]:
            return await link.dead_letter(
                messages, reason=reason, description=description, timeout_s=timeout_s
            )

        await self._settle(message, move)

    async def renew_lock(self, message: BrokeredMessage) -> None:
        """Lock it for as long again."""
        await self._settle(message, self._opened().renew)

    async def _settle(
        self,
        message: BrokeredMessage,
        verb: Callable[..., Coroutine[Any, Any, list[ReceivedMessage]]],
    ) -> None:
        held = message.held
        if not isinstance(held, LockHandle) or held.receiver.path != self.path:
            raise ConfigurationError(
                "this message was not received here, so it cannot be settled here",
                hint="Settle it with the receiver that it came from, or with message.complete()",
            )
        if await self._run(verb([held.delivered], timeout_s=self._timeout_s)):
            raise MessageLockLost(
                f"the lock of message {held.delivered.sequence_number} of {self.path!r} was lost",
                path=self.path,
                hint="It will be received again; settle sooner, or renew the lock",
            )

    # -- parts ----------------------------------------------------------------------------------

    def _handed_out(self, found: list[ReceivedMessage]) -> list[BrokeredMessage]:
        messages = []
        for delivered in found:
            message = decode_message(delivered)
            if delivered.lock_token:
                message.held = LockHandle(self, delivered)
            messages.append(message)
        return messages

    def _opened(self) -> Receiver:
        self._calls.check()
        if self._is_closed:
            raise ConfigurationError(
                f"the receiver of {self.path!r} is closed", hint="Ask the factory for a new one"
            )
        if self._link is None:
            self._link = self._make()
        return self._link

    def _run(self, call: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return self._calls.track(call)

    async def close(self) -> None:
        """Let go of the link; may be called twice. Locked messages stay locked."""
        self._is_closed = True
        self._forget(self)
        if self._link is not None and not self._calls.is_inherited:
            link, self._link = self._link, None
            await link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class LockHandle:
    """What a received message needs to settle itself."""

    __slots__ = ("delivered", "receiver")

    def __init__(self, receiver: MessageReceiver, delivered: ReceivedMessage) -> None:
        self.receiver, self.delivered = receiver, delivered

    def settle(self, verb: str, message: BrokeredMessage, **reasons: str) -> Any:
        return getattr(self.receiver, verb)(message, **reasons)
