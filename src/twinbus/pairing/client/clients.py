"""Senders, receivers and the clients of queues, topics and subscriptions, for BrokeredMessage.

    MessageSender        sends to a queue or a topic, through PairedSender
    MessageReceiver      receives from a queue, a subscription or a dead-letter queue
    QueueClient          a sender and a receiver of one queue
    TopicClient          a MessageSender; SubscriptionClient a MessageReceiver

Rule 1: a receiver receives only from its own namespace, paired or not (P15).
Rule 2: the link opens with the first call, and a waiting receive ends with its factory.
Rule 3: a received message can be settled through its receiver, or directly:
        ``message.complete()``. A lost lock raises MessageLockLost: the message is received again.
Rule 4: a client adds names, not behaviour: it delegates to the sender or the receiver.
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
"""A receiver could not settle a larger batch before its locks end."""
# An iteration receives again after this time, which only issues new credit (long poll, Y3).
ITERATION_WAIT_S: Final = 900.0


def receiver_path(path: str) -> str:
    """The canonical path of an entity to receive from; raises InvalidEntityPath."""
    address = parse_address(path)
    if address.node != "entity":
        raise ConfigurationError(f"{path!r:.80} cannot be received from")
    return address.path


class MessageReceiver:
    """Receives from one queue, subscription or dead-letter queue."""

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
        """The id of the accepted session; None before the first receive."""
        return None if self._link is None else self._link.session_id

    # -- receiving ------------------------------------------------------------------------------

    async def receive(self, *, max_wait_time: float | None = None) -> BrokeredMessage | None:
        """One message, or None if none arrived within ``max_wait_time`` seconds."""
        found = await self.receive_batch(1, max_wait_time=max_wait_time)
        return found[0] if found else None

    async def receive_batch(
        self, max_message_count: int, *, max_wait_time: float | None = None
    ) -> list[BrokeredMessage]:
        """Receive up to ``max_message_count`` messages: returns as soon as there are some, or an
        empty list after ``max_wait_time``."""
        if not 1 <= max_message_count <= RECEIVE_COUNT_MAX:
            raise ConfigurationError(
                f"Invalid value for max_message_count: {max_message_count}",
                hint=f"Use a number from 1 to {RECEIVE_COUNT_MAX}",
            )
        wait_s = self._timeout_s if max_wait_time is None else max_wait_time
        link = self._open_link()
        return self._to_messages(await self._run(link.receive(max_message_count, wait_s=wait_s)))

    async def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[BrokeredMessage]:
        """Receive deferred messages by their sequence numbers."""
        return self._to_messages(
            await self._run(
                self._open_link().receive_deferred(sequence_numbers, timeout_s=self._timeout_s)
            )
        )

    async def peek(
        self, max_message_count: int = 1, *, from_sequence_number: int = 1
    ) -> list[BrokeredMessage]:
        """Read messages without locking them; they cannot be settled."""
        found = await self._run(
            self._open_link().peek(
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
        """Remove the message from its queue: it was processed."""
        await self._settle(message, self._open_link().complete)

    async def abandon(self, message: BrokeredMessage) -> None:
        """Release the lock, so that it is received again; its delivery count increases."""
        await self._settle(message, self._open_link().abandon)

    async def defer(self, message: BrokeredMessage) -> None:
        """Defer the message; receive_deferred() receives it by its sequence number."""
        await self._settle(message, self._open_link().defer)

    async def dead_letter(
        self, message: BrokeredMessage, *, reason: str = "", description: str = ""
    ) -> None:
        """Move the message to the dead-letter queue, with a reason."""
        link = self._open_link()

        async def move(
            messages: Sequence[ReceivedMessage], *, timeout_s: float
        ) -> list[ReceivedMessage]:
            return await link.dead_letter(
                messages, reason=reason, description=description, timeout_s=timeout_s
            )

        await self._settle(message, move)

    async def renew_lock(self, message: BrokeredMessage) -> None:
        """Extend the lock by the lock duration of the entity."""
        await self._settle(message, self._open_link().renew)

    async def _settle(
        self,
        message: BrokeredMessage,
        verb: Callable[..., Coroutine[Any, Any, list[ReceivedMessage]]],
    ) -> None:
        held = message.held
        if not isinstance(held, LockHandle) or held.receiver.path != self.path:
            raise ConfigurationError(
                f"The message was not received by a receiver of {self.path!r}, so this receiver "
                "cannot settle it",
                hint="Settle it with the receiver that received it, or with message.complete()",
            )
        if await self._run(verb([held.delivered], timeout_s=self._timeout_s)):
            raise MessageLockLost(
                f"Lock lost for message {held.delivered.sequence_number} of {self.path!r}",
                path=self.path,
                hint="Settle messages sooner, or call renew_lock(); the message is received again",
            )

    # -- parts ----------------------------------------------------------------------------------

    def _to_messages(self, found: list[ReceivedMessage]) -> list[BrokeredMessage]:
        messages = []
        for delivered in found:
            message = decode_message(delivered)
            if delivered.lock_token:
                message.held = LockHandle(self, delivered)
            messages.append(message)
        return messages

    def _open_link(self) -> Receiver:
        self._calls.check()
        if self._is_closed:
            raise ConfigurationError(
                f"The receiver of {self.path!r} is closed",
                hint="Create a new receiver with the factory",
            )
        if self._link is None:
            self._link = self._make()
        return self._link

    def _run(self, call: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return self._calls.track(call)

    async def close(self) -> None:
        """Close the link; may be called twice. Locked messages stay locked."""
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
    """The receiver and the delivery of a received message, with which it can be settled."""

    __slots__ = ("delivered", "receiver")

    def __init__(self, receiver: MessageReceiver, delivered: ReceivedMessage) -> None:
        self.receiver, self.delivered = receiver, delivered

    def settle(self, verb: str, message: BrokeredMessage, **reasons: str) -> Any:
        return getattr(self.receiver, verb)(message, **reasons)


class _Closes:
    """``async with`` for classes that have close()."""

    async def close(self) -> None:
        """Close the links; may be called twice."""

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

        An error means that neither is known to have accepted it; if ``is_ambiguous`` is set, one
        of them may have. ``timeout`` is in seconds and includes retries.
        """
        await self._sender.send_outgoing([to_outgoing_message(message)], timeout_s=timeout)

    async def send_batch(
        self, messages: Iterable[BrokeredMessage], *, timeout: float | None = None
    ) -> None:
        """Send several at once: the primary accepts all of them or none.

        A diverted batch that is too large for a backlog queue is sent in parts. If not all parts
        are accepted, BatchPartlySent reports how many messages were.
        """
        await self._sender.send_outgoing(_to_outgoing(messages), timeout_s=timeout)

    async def schedule_message(
        self, message: BrokeredMessage, *, timeout: float | None = None
    ) -> int:
        """Send a message with ``scheduled_enqueue_time_utc``; returns its sequence number, for
        cancelling.

        A negative number stands for a message that was diverted to the backlog: it keeps its
        schedule, and cannot be cancelled with this number.
        """
        return (await self.schedule_batch([message], timeout=timeout))[0]

    async def schedule_batch(
        self, messages: Iterable[BrokeredMessage], *, timeout: float | None = None
    ) -> list[int]:
        """Send several scheduled messages; returns a sequence number for each."""
        return await self._sender.schedule_outgoing(_to_outgoing(messages), timeout_s=timeout)

    async def cancel_scheduled_message(
        self, *sequence_numbers: int, timeout: float | None = None
    ) -> None:
        """Cancel scheduled messages; raises MessageNotFound if one is no longer scheduled, and
        CancelImpossible for diverted messages and while the entity is diverted."""
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

    # -- delegated to the sender----------------------------------------------------------------

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

    # -- delegated to the receiver----------------------------------------------------------------

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
    """The message as a sender accepts it; its times are relative to now."""
    encoded = encode_message(message, now_ms=time.time_ns() // 1_000_000)
    return OutgoingMessage(encoded, native=message)
