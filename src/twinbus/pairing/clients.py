"""What an application sends and receives with, for messages of the public model.

    MessageSender    --> PairedSender        a queue or a topic
    MessageReceiver  (receiving.py)          a queue, a subscription, a dead-letter queue
    QueueClient      both                    TopicClient, SubscriptionClient: one of them

Rule 1: a client adds names, not behaviour: everything is the sender's or the receiver's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from twinbus.core.encoding import encode_message
from twinbus.core.parcel import OutgoingMessage
from twinbus.message import BrokeredMessage
from twinbus.pairing.receiving import MessageReceiver
from twinbus.pairing.sending import PairedSender

__all__ = ["MessageSender", "QueueClient", "SubscriptionClient", "TopicClient"]


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
