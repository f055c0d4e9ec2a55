"""The blocking senders, receivers and NamespaceManager: the async ones, called through the portal.

Rule 1: a class here has its async counterpart (its twin), whose documentation holds, and adds the
        call through the portal only. A busy sender of a healthy entity does not need the portal:
        it sends on the caller's thread (``twinbus.pairing.direct_sender``).
Rule 2: tests/unit/sync/test_facade.py keeps names and signatures equal.
Rule 3: a forked child gets another twin with its first call. Links of the parent are not closed
        there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple, Self, TypeAlias

from twinbus import aio
from twinbus.drivers.administration import (
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from twinbus.drivers.credentials import Credential, IdentityCredential
from twinbus.drivers.interface import NamespaceAddress
from twinbus.encoding.transit import OutgoingMessage
from twinbus.message import BrokeredMessage
from twinbus.pairing.client.clients import LockHandle, to_outgoing_message
from twinbus.pairing.client.namespace_manager import DEFAULT_TIMEOUT_S
from twinbus.pairing.direct_sender import DirectSender
from twinbus.sync.blocking_portal import PORTAL, Twin

__all__ = [
    "MessageReceiver",
    "MessageSender",
    "NamespaceManager",
    "QueueClient",
    "SubscriptionClient",
    "TopicClient",
]


class _Closes:
    """``with`` for everything that has close()."""

    def close(self) -> None:
        """Close the links; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class SenderEnds(NamedTuple):
    """The two ways in which a sender sends."""

    sender: aio.MessageSender
    direct: DirectSender[OutgoingMessage] | None
    """Sends on the caller's thread, where that is possible; None where it never is."""


MakeSender: TypeAlias = Callable[[], SenderEnds]
MakeReceiver: TypeAlias = Callable[[], aio.MessageReceiver]


class MessageSender(_Closes):
    """Sends to one queue or topic; paired as soon as its factory is."""

    def __init__(self, make: MakeSender) -> None:
        self._ends = Twin(make)
        self._path = self._ends().sender.path

    @property
    def path(self) -> str:
        return self._path

    @property
    def _sender(self) -> aio.MessageSender:
        return self._ends().sender

    def send(self, message: BrokeredMessage, *, timeout: float | None = None) -> None:
        """Return when the message is stored durably, in the entity or in its backlog."""
        sender, direct = self._ends()
        if direct is None:
            PORTAL.call(sender.send(message, timeout=timeout))
            return
        outgoing_message = to_outgoing_message(message)
        if get_ident() == PORTAL.thread_id or not direct.send(outgoing_message, timeout):
            PORTAL.call(sender.paired_sender.send_outgoing([outgoing_message], timeout_s=timeout))
            direct.sent_by_loop(outgoing_message)

    def send_batch(
        self, messages: Iterable[BrokeredMessage], *, timeout: float | None = None
    ) -> None:
        """Send several messages as one batch: the primary accepts all of them or none."""
        PORTAL.call(self._sender.send_batch(messages, timeout=timeout))

    def schedule_message(self, message: BrokeredMessage, *, timeout: float | None = None) -> int:
        """Schedule a message that has an enqueue time; its sequence number, for cancelling."""
        return PORTAL.call(self._sender.schedule_message(message, timeout=timeout))

    def schedule_batch(
        self, messages: Iterable[BrokeredMessage], *, timeout: float | None = None
    ) -> list[int]:
        """Schedule several messages; a sequence number for each."""
        return PORTAL.call(self._sender.schedule_batch(messages, timeout=timeout))

    def cancel_scheduled_message(
        self, *sequence_numbers: int, timeout: float | None = None
    ) -> None:
        """Cancel scheduled messages that are not enqueued yet."""
        PORTAL.call(self._sender.cancel_scheduled_message(*sequence_numbers, timeout=timeout))

    def close(self) -> None:
        if self._ends.is_inherited:
            return
        sender, direct = self._ends()
        if direct is not None:
            direct.close()
        PORTAL.call(sender.close())


class TopicClient(MessageSender):
    """Sends to one topic."""


class MessageReceiver(_Closes):
    """Receives from one queue, subscription or dead-letter queue."""

    def __init__(self, make: MakeReceiver) -> None:
        self._receiving_end = Twin(make)
        self._path = self._receiving_end().path

    @property
    def path(self) -> str:
        return self._path

    @property
    def _receiver(self) -> aio.MessageReceiver:
        return self._receiving_end()

    @property
    def session_id(self) -> str | None:
        """The session that this receiver has locked, after its first receive."""
        return self._receiver.session_id

    def receive(self, *, max_wait_time: float | None = None) -> BrokeredMessage | None:
        """One message, or None if none arrived within ``max_wait_time`` seconds."""
        message = PORTAL.call(self._receiver.receive(max_wait_time=max_wait_time))
        return None if message is None else _blocking(message)

    def receive_batch(
        self, max_message_count: int, *, max_wait_time: float | None = None
    ) -> list[BrokeredMessage]:
        """Up to ``max_message_count`` messages that are available; none after the wait."""
        found = PORTAL.call(
            self._receiver.receive_batch(max_message_count, max_wait_time=max_wait_time)
        )
        return [_blocking(message) for message in found]

    def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[BrokeredMessage]:
        """Deferred messages, by their sequence numbers."""
        found = PORTAL.call(self._receiver.receive_deferred(sequence_numbers))
        return [_blocking(message) for message in found]

    def peek(
        self, max_message_count: int = 1, *, from_sequence_number: int = 1
    ) -> list[BrokeredMessage]:
        """Read messages without locking or removing them; they cannot be settled."""
        return PORTAL.call(
            self._receiver.peek(max_message_count, from_sequence_number=from_sequence_number)
        )

    def __iter__(self) -> Iterator[BrokeredMessage]:
        """Messages as they arrive, until the receiver is closed."""
        for message in PORTAL.iterate(self._receiver.__aiter__()):
            yield _blocking(message)

    def complete(self, message: BrokeredMessage) -> None:
        """Remove the message from its queue: it was processed."""
        PORTAL.call(self._receiver.complete(message))

    def abandon(self, message: BrokeredMessage) -> None:
        """End the lock at once: the message is delivered again, with a higher delivery count."""
        PORTAL.call(self._receiver.abandon(message))

    def defer(self, message: BrokeredMessage) -> None:
        """Defer the message; receive_deferred() receives it by its sequence number."""
        PORTAL.call(self._receiver.defer(message))

    def dead_letter(
        self, message: BrokeredMessage, *, reason: str = "", description: str = ""
    ) -> None:
        """Move the message to the dead-letter queue, with a reason."""
        PORTAL.call(self._receiver.dead_letter(message, reason=reason, description=description))

    def renew_lock(self, message: BrokeredMessage) -> None:
        """Renew the lock for another lock duration."""
        PORTAL.call(self._receiver.renew_lock(message))

    def close(self) -> None:
        if not self._receiving_end.is_inherited:
            PORTAL.call(self._receiver.close())


class SubscriptionClient(MessageReceiver):
    """Receives from one subscription."""


class QueueClient(MessageSender, MessageReceiver):
    """Sends to one queue and receives from it."""

    def __init__(self, make_sender: MakeSender, make_receiver: MakeReceiver) -> None:
        MessageSender.__init__(self, make_sender)
        MessageReceiver.__init__(self, make_receiver)

    def close(self) -> None:
        MessageSender.close(self)
        MessageReceiver.close(self)


class _BlockingLockHandle(LockHandle):
    """Settles a received message without an ``await``."""

    __slots__ = ()

    def settle(self, verb: str, message: BrokeredMessage, **reasons: str) -> Any:
        return PORTAL.call(getattr(self.receiver, verb)(message, **reasons))


def _blocking(message: BrokeredMessage) -> BrokeredMessage:
    if isinstance(message.held, LockHandle):
        message.held = _BlockingLockHandle(message.held.receiver, message.held.delivered)
    return message


class NamespaceManager:
    """The entities of one namespace. Every call requires the Manage claim."""

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Credential | IdentityCredential,
        *,
        namespace_name: str | None = None,
        administration_port: int | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.twin = aio.NamespaceManager(
            fully_qualified_namespace,
            credential,
            namespace_name=namespace_name,
            administration_port=administration_port,
            ca_file=ca_file,
            timeout_s=timeout_s,
        )

    @classmethod
    def wrap(cls, twin: aio.NamespaceManager) -> Self:
        """The blocking manager around an async one."""
        manager = cls.__new__(cls)
        manager.twin = twin
        return manager

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str,
        *,
        namespace_name: str | None = None,
        administration_port: int | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Self:
        """A manager with the key or the signature of a connection string."""
        return cls.wrap(
            aio.NamespaceManager.from_connection_string(
                connection_string,
                namespace_name=namespace_name,
                administration_port=administration_port,
                ca_file=ca_file,
                timeout_s=timeout_s,
            )
        )

    @property
    def address(self) -> NamespaceAddress:
        return self.twin.address

    def namespace_name(self) -> str:
        """The name of the namespace, as the service returns it."""
        return PORTAL.call(self.twin.namespace_name())

    # -- queues -------------------------------------------------------------------------------

    def get_queue(self, path: str) -> QueueProperties:
        return PORTAL.call(self.twin.get_queue(path))

    def queue_exists(self, path: str) -> bool:
        return PORTAL.call(self.twin.queue_exists(path))

    def create_queue(self, queue: str | QueueProperties) -> QueueProperties:
        return PORTAL.call(self.twin.create_queue(queue))

    def delete_queue(self, path: str) -> None:
        PORTAL.call(self.twin.delete_queue(path))

    def get_queues(self, prefix: str = "") -> Iterator[QueueProperties]:
        return PORTAL.iterate(self.twin.get_queues(prefix))

    # -- topics and subscriptions -------------------------------------------------------------

    def get_topic(self, path: str) -> TopicProperties:
        return PORTAL.call(self.twin.get_topic(path))

    def topic_exists(self, path: str) -> bool:
        return PORTAL.call(self.twin.topic_exists(path))

    def create_topic(self, topic: str | TopicProperties) -> TopicProperties:
        return PORTAL.call(self.twin.create_topic(topic))

    def delete_topic(self, path: str) -> None:
        PORTAL.call(self.twin.delete_topic(path))

    def get_topics(self, prefix: str = "") -> Iterator[TopicProperties]:
        return PORTAL.iterate(self.twin.get_topics(prefix))

    def get_subscription(self, topic: str, name: str) -> SubscriptionProperties:
        return PORTAL.call(self.twin.get_subscription(topic, name))

    def subscription_exists(self, topic: str, name: str) -> bool:
        return PORTAL.call(self.twin.subscription_exists(topic, name))

    def create_subscription(
        self, topic: str | SubscriptionProperties, name: str = ""
    ) -> SubscriptionProperties:
        return PORTAL.call(self.twin.create_subscription(topic, name))

    def delete_subscription(self, topic: str, name: str) -> None:
        PORTAL.call(self.twin.delete_subscription(topic, name))

    def get_subscriptions(self, topic: str) -> Iterator[SubscriptionProperties]:
        return PORTAL.iterate(self.twin.get_subscriptions(topic))

    def close(self) -> None:
        PORTAL.call(self.twin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
