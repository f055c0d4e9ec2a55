"""A namespace in memory that follows the port: queues, locks, deferred messages, scripted errors.

Nothing happens by itself: locks end when a test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.mover.messages import id_of
from twinbus.amqp.message.message import Message
from twinbus.drivers.interface import LinkProperties, NamespaceAddress, NextSession, ReceiveMode
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.errors import (
    CommunicationError,
    EntityNotFound,
    MessageNotFound,
    OperationTimeout,
    ServiceError,
)

Refusal = Callable[[Sequence[bytes]], ServiceError | None]


@dataclass(slots=True)
class Stored:
    encoded: bytes
    is_deferred: bool = False
    holder: bytes = b""
    """The token of whoever has it locked."""
    delivery_count: int = 0


@dataclass(slots=True)
class FakeQueue:
    messages: dict[int, Stored] = field(default_factory=dict)
    dead: list[tuple[bytes, str, str]] = field(default_factory=list)
    """(message, reason, description)"""
    last_seq: int = 0

    def ids(self) -> list[str]:
        return [id_of(each.encoded) for each in self.messages.values()]


class FakeNamespace:
    """Also the driver to itself."""

    def __init__(self, *queues: str, limit_bytes: int = 1 << 20) -> None:
        self.address = NamespaceAddress("fake", 1)
        self.queues = {path: FakeQueue() for path in queues}
        self.limit_bytes = limit_bytes
        self.refusals: dict[str, Refusal] = {}
        """Errors of sends, by path."""
        self.silent: set[str] = set()
        """Paths that never answer."""
        self.settle_error: ServiceError | None = None
        self.receive_error: ServiceError | None = None
        self.peek_error: ServiceError | None = None
        self.peek_count = 0
        self.patience_s = 0.01
        """How long a receive from an empty queue really waits, at most."""
        self.delay_s = 0.0
        self.log: list[str] = []
        """What was asked, in order: ``send orders 3``."""
        self.tokens = 0

    def put(self, path: str, *messages: bytes) -> None:
        queue = self.queues[path]
        for encoded in messages:
            queue.last_seq += 1
            queue.messages[queue.last_seq] = Stored(encoded)

    def expire_locks(self) -> None:
        for queue in self.queues.values():
            for stored in queue.messages.values():
                stored.holder = b""

    def sender(self, path: str) -> FakeSender:
        return FakeSender(self, path)

    def receiver(
        self,
        path: str,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int = 0,
        session: str | NextSession | None = None,
    ) -> FakeReceiver:
        return FakeReceiver(self, path)

    async def close(self) -> None:
        pass


class FakeSender:
    def __init__(self, namespace: FakeNamespace, path: str) -> None:
        self.path = path
        self._namespace = namespace
        self._is_closed = False

    async def send(self, parcels: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        encoded = [each.encoded for each in parcels]
        self._namespace.log.append(f"send {self.path} {len(encoded)}")
        await asyncio.sleep(self._namespace.delay_s)
        await self._answered(timeout_s)
        self._check(encoded)
        self._namespace.put(self.path, *encoded)

    async def attach(self, *, timeout_s: float) -> LinkProperties:
        await asyncio.sleep(0)
        await self._answered(timeout_s)
        self._check([])
        return LinkProperties(self._namespace.limit_bytes)

    async def _answered(self, timeout_s: float) -> None:
        if self.path in self._namespace.silent:
            await asyncio.sleep(timeout_s)
            raise OperationTimeout(f"{self.path!r} did not answer", path=self.path)

    def _check(self, encoded: Sequence[bytes]) -> None:
        if self._is_closed:
            raise CommunicationError(f"the sender to {self.path!r} is closed", path=self.path)
        refusal = self._namespace.refusals.get(self.path)
        if refusal is not None and (error := refusal(encoded)) is not None:
            raise error
        if self.path not in self._namespace.queues:
            raise EntityNotFound(f"there is no {self.path!r}", path=self.path)

    async def schedule(self, parcels: Sequence[OutgoingMessage], *, timeout_s: float) -> list[int]:
        raise NotImplementedError

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self._is_closed = True
        self._namespace.log.append(f"close {self.path}")


class FakeReceiver:
    session_id: str | None = None

    def __init__(self, namespace: FakeNamespace, path: str) -> None:
        self.path = path
        self._namespace = namespace

    @property
    def _queue(self) -> FakeQueue:
        queue = self._namespace.queues.get(self.path)
        if queue is None:
            raise EntityNotFound(f"there is no {self.path!r}", path=self.path)
        return queue

    async def receive(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
        self._namespace.log.append(f"receive {count_max}")
        if self._namespace.receive_error is not None:
            raise self._namespace.receive_error
        await asyncio.sleep(0)
        if not (found := self._waiting(count_max)):
            await asyncio.sleep(min(wait_s, self._namespace.patience_s))
        return [self._locked(number) for number in found or self._waiting(count_max)]

    def _waiting(self, count_max: int) -> list[int]:
        return [
            number
            for number, each in self._queue.messages.items()
            if not each.is_deferred and not each.holder
        ][:count_max]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        self._namespace.log.append(f"receive-deferred {len(sequence_numbers)}")
        for number in sequence_numbers:
            stored = self._queue.messages.get(number)
            if stored is None or not stored.is_deferred or stored.holder:
                raise MessageNotFound(f"message {number} is not set aside", path=self.path)
        return [self._locked(number) for number in sequence_numbers]

    def _locked(self, number: int) -> ReceivedMessage:
        self._namespace.tokens += 1
        stored = self._queue.messages[number]
        stored.holder = self._namespace.tokens.to_bytes(16, "big")
        delivered = self._shown(number)
        stored.delivery_count += 1
        return delivered._replace(lock_token=stored.holder)

    def _shown(self, number: int) -> ReceivedMessage:
        stored = self._queue.messages[number]
        message = Message.decode(stored.encoded)
        message.message_annotations = {
            **(message.message_annotations or {}),
            "x-opt-sequence-number": number,
            **({"x-opt-message-state": 1} if stored.is_deferred else {}),
        }
        return ReceivedMessage(
            path=self.path,
            encoded=message.encode(),
            sequence_number=number,
            enqueued_at_ms=1_000,
            delivery_count=stored.delivery_count,
        )

    def _held(self, messages: Sequence[ReceivedMessage]) -> tuple[list[int], list[ReceivedMessage]]:
        """(numbers of those that are still ours, the others)."""
        if self._namespace.settle_error is not None:
            raise self._namespace.settle_error
        held, lost = [], []
        for each in messages:
            stored = self._queue.messages.get(each.sequence_number)
            is_ours = stored is not None and stored.holder == each.lock_token
            (held if is_ours else lost).append(each)
        return [each.sequence_number for each in held], lost

    async def complete(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        numbers, lost = self._held(messages)
        self._namespace.log.append(f"complete {len(numbers)}")
        for number in numbers:
            del self._queue.messages[number]
        return lost

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        numbers, lost = self._held(messages)
        for number in numbers:
            self._queue.messages[number].holder = b""
        return lost

    async def defer(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        numbers, lost = self._held(messages)
        self._namespace.log.append(f"defer {len(numbers)}")
        for number in numbers:
            stored = self._queue.messages[number]
            stored.is_deferred, stored.holder = True, b""
        return lost

    async def dead_letter(
        self,
        messages: Sequence[ReceivedMessage],
        *,
        reason: str,
        description: str,
        timeout_s: float,
    ) -> list[ReceivedMessage]:
        numbers, lost = self._held(messages)
        for number in numbers:
            stored = self._queue.messages.pop(number)
            self._queue.dead.append((stored.encoded, reason, description))
        return lost

    async def renew(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        numbers, lost = self._held(messages)
        self._namespace.log.append(f"renew {len(numbers)}")
        return lost

    async def peek(
        self, count_max: int, *, from_sequence: int = 1, timeout_s: float
    ) -> list[ReceivedMessage]:
        self._namespace.peek_count += 1
        if self._namespace.peek_error is not None:
            raise self._namespace.peek_error
        numbers = [number for number in self._queue.messages if number >= from_sequence]
        return [self._shown(number) for number in sorted(numbers)[:count_max]]

    async def close(self) -> None:
        pass
