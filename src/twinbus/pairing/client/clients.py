"""Senders, receivers and the clients of queues, topics and subscriptions.

Receiving from one queue, subscription or dead-letter queue.

What an application sends and receives with, for messages of the public model.

    MessageSender    --> PairedSender        a queue or a topic
    MessageReceiver  (clients.py)          a queue, a subscription, a dead-letter queue
    QueueClient      both                    TopicClient, SubscriptionClient: one of them

Rule 1: receiving comes only from the namespace itself, paired or not (P15).
Rule 2: the link opens with the first call, and a receiver that is waiting ends with its factory.
Rule 3: a received message can be settled by its receiver, or by itself: ``message.complete()``.
        A lock that was lost raises MessageLockLost: the message will be received again.
Rule 4: a client adds names, not behaviour: everything is the sender's or the receiver's.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from twinbus.common.entity_path import parse_address
from twinbus.drivers.interface import Receiver
from twinbus.encoding.brokered_message import decode_message, encode_message
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.errors import ConfigurationError, MessageLockLost
from twinbus.message import BrokeredMessage
from twinbus.pairing.client.call_tracker import CallTracker
from twinbus.pairing.paired_sender import PairedSender

__all__ = [
    "LockHandle",
    "MessageReceiver",
    "MessageSender",
    "QueueClient",
    "SubscriptionClient",
    "TopicClient",
    "receiver_path",
]

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


class _Closes:
    """``async with`` for everything that has close()."""

    async def close(self) -> None:
        """Let go of the links; may be called twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class MessageSender(_Closes):
    """Sends to one queue or topic; paired as soon as its factory is."""

    def __init__(self, sender: PairedSender) -> None:
        self.paired_sender = self._sender = sender

    @property
    def path(self) -> str:
        return self._sender.path

    async def send(self, message: BrokeredMessage, *, timeout: float | None = None) -> None:
        """Return once the message is durable, at the entity or in its backlog.

        An error means that no place is known to hold it; ``is_ambiguous`` says where that is
        not certain. ``timeout`` is in seconds and covers everything, retries included.
        """
        await self._sender.send_outgoing([to_outgoing_message(message)], timeout_s=timeout)

    async def send_batch(
        self, messages: Iterable[BrokeredMessage], *, timeout: float | None = None
    ) -> None:
        """Send several at once: the primary takes all of them or none.

        On the way round a batch that outgrows a backlog queue goes in parts: BatchPartlySent
        then says how many are safe, if the others found no place.
        """
        await self._sender.send_outgoing(_to_outgoing(messages), timeout_s=timeout)

    async def schedule_message(
        self, message: BrokeredMessage, *, timeout: float | None = None
    ) -> int:
        """Hand in a message with ``scheduled_enqueue_time_utc``; its number, for cancelling.

        A negative number is that of a message that went to the backlog: it keeps its schedule
        and cannot be cancelled before it has come home.
        """
        return (await self.schedule_batch([message], timeout=timeout))[0]

    async def schedule_batch(
        self, messages: Iterable[BrokeredMessage], *, timeout: float | None = None
    ) -> list[int]:
        """The same for several; a number for each."""
        return await self._sender.schedule_outgoing(_to_outgoing(messages), timeout_s=timeout)

    async def cancel_scheduled_message(
        self, *sequence_numbers: int, timeout: float | None = None
    ) -> None:
        """Take scheduled messages back; MessageNotFound if one is not there any more,
        CancelImpossible for what went to the backlog and while the entity is diverted."""
        await self._sender.cancel_scheduled(sequence_numbers, timeout_s=timeout)

    async def close(self) -> None:
        await self._sender.close()


class TopicClient(MessageSender):
    """Sends to one topic."""


class SubscriptionClient(MessageReceiver):
    """Receives from one subscription."""


class QueueClient(_Closes):
    """Sends to one queue and receives from it."""

    def __init__(self, sender: MessageSender, receiver: MessageReceiver) -> None:
        self.sender = sender
        self.receiver = receiver

    @property
    def path(self) -> str:
        return self.sender.path

    async def close(self) -> None:
        await self.sender.close()
        await self.receiver.close()

    # -- as the sender does ---------------------------------------------------------------------

    async def send(self, message: BrokeredMessage, *, timeout: float | None = None) -> None:
        """See MessageSender."""
        await self.sender.send(message, timeout=timeout)

    async def send_batch(
        self, messages: Iterable[BrokeredMessage], *, timeout: float | None = None
    ) -> None:
        await self.sender.send_batch(messages, timeout=timeout)

    async def schedule_message(
        self, message: BrokeredMessage, *, timeout: float | None = None
    ) -> int:
        return await self.sender.schedule_message(message, timeout=timeout)

    async def schedule_batch(
        self, messages: Iterable[BrokeredMessage], *, timeout: float | None = None
    ) -> list[int]:
        return await self.sender.schedule_batch(messages, timeout=timeout)

    async def cancel_scheduled_message(
        self, *sequence_numbers: int, timeout: float | None = None
    ) -> None:
        await self.sender.cancel_scheduled_message(*sequence_numbers, timeout=timeout)

    # -- as the receiver does -------------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        return self.receiver.session_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BrokeredMessage:
        return await self.receiver.__anext__()

    async def receive(self, *, max_wait_time: float | None = None) -> BrokeredMessage | None:
        """See MessageReceiver."""
        return await self.receiver.receive(max_wait_time=max_wait_time)

    async def receive_batch(
        self, max_message_count: int, *, max_wait_time: float | None = None
    ) -> list[BrokeredMessage]:
        return await self.receiver.receive_batch(max_message_count, max_wait_time=max_wait_time)

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[BrokeredMessage]:
        return await self.receiver.receive_deferred(sequence_numbers)

    async def peek(
        self, max_message_count: int = 1, *, from_sequence_number: int = 1
    ) -> list[BrokeredMessage]:
        return await self.receiver.peek(
            max_message_count, from_sequence_number=from_sequence_number
        )

    async def complete(self, message: BrokeredMessage) -> None:
        await self.receiver.complete(message)

    async def abandon(self, message: BrokeredMessage) -> None:
        await self.receiver.abandon(message)

    async def defer(self, message: BrokeredMessage) -> None:
        await self.receiver.defer(message)

    async def dead_letter(
        self, message: BrokeredMessage, *, reason: str = "", description: str = ""
    ) -> None:
        await self.receiver.dead_letter(message, reason=reason, description=description)

    async def renew_lock(self, message: BrokeredMessage) -> None:
        await self.receiver.renew_lock(message)


def _to_outgoing(messages: Iterable[BrokeredMessage]) -> list[OutgoingMessage]:
    return [to_outgoing_message(message) for message in messages]


def to_outgoing_message(message: BrokeredMessage) -> OutgoingMessage:
    """The message as a sender takes it; its times are counted from now."""
    encoded = encode_message(message, now_ms=time.time_ns() // 1_000_000)
    return OutgoingMessage(encoded, native=message)
