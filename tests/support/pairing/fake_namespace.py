"""A namespace in memory that does what a test says: the port with scripted answers.

namespace.answer("orders", CommunicationError("gone"))   from now on, until answer(..., None)
namespace.held["orders"]                                 what it has taken, as bytes
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from twinbus.common.entity_path import BACKLOG_MARKER
from twinbus.drivers.amqp.batching import check_size, encode_delivery
from twinbus.drivers.interface import LinkProperties, NamespaceAddress, NextSession, ReceiveMode
from twinbus.encoding.batching import BATCH_ENVELOPE_BYTES_MAX
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.errors import (
    AccessRefused,
    CommunicationError,
    EntityNotFound,
    OperationTimeout,
)

HANG = "hang"
"""An answer that never comes."""
SLOW = "slow"
"""A good answer that takes a moment."""
SLOW_S = 0.1
STUBBORN = "stubborn"
"""A good answer that comes when the call is cancelled, which changes nothing."""
STUBBORN_LOSS = "stubborn-loss"
"""The same with an error."""


class FakeNamespace:
    """A driver."""

    def __init__(self, name: str = "contoso", *, message_bytes_max: int = 262_144) -> None:
        self.address = NamespaceAddress(f"{name}.example", 5671)
        self.message_bytes_max = message_bytes_max
        self.limits: dict[str, LinkProperties] = {}
        """What single paths take, where that is something else."""
        self.held: dict[str, list[bytes]] = {}
        self.batches: list[tuple[str, int]] = []
        """Every accepted send: where, how many messages."""
        self.attempts: list[str] = []
        """Every send that was tried, by path."""
        self.attached: list[str] = []
        self.cancelled: list[int] = []
        self.age_s: Callable[[], float] = lambda: 0.0
        """How old all messages are."""
        self.links_open = 0
        self.is_closed = False
        self.refuses_to_listen = False
        """Whether its receivers lack the claim Listen."""
        self._answers: dict[str, BaseException | str | None] = {}
        self._next: dict[str, list[BaseException | str | None]] = {}
        self._sequence = 0

    def answer(self, path: str, answer: BaseException | str | None) -> None:
        """What every call on a path gets from now on; ``"*"`` is every path."""
        self._answers[path] = answer

    def answer_once(self, path: str, *answers: BaseException | str | None) -> None:
        """What the next sends to a path get, one after the other."""
        self._next.setdefault(path, []).extend(answers)

    def messages(self, path: str) -> list[bytes]:
        return self.held.setdefault(path, [])

    def sender(self, path: str) -> FakeSender:
        self.links_open += 1
        return FakeSender(self, path)

    def receiver(
        self,
        path: str,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int = 0,
        session: str | NextSession | None = None,
    ) -> FakeReceiver:
        self.links_open += 1
        return FakeReceiver(self, path)

    async def close(self) -> None:
        self.is_closed = True

    def facts(self, path: str) -> LinkProperties:
        return self.limits.get(path, LinkProperties(self.message_bytes_max))

    async def reach(self, path: str, timeout_s: float, *, is_send: bool = False) -> None:
        """What stands before every answer."""
        await asyncio.sleep(0)
        coming = self._next.get(path) if is_send else None
        answer = coming.pop(0) if coming else self._answers.get(path, self._answers.get("*"))
        if answer == HANG:
            await asyncio.sleep(timeout_s)
            raise OperationTimeout(f"no answer from {path!r}", path=path)
        if answer == SLOW:
            await asyncio.sleep(SLOW_S)
        if answer in (STUBBORN, STUBBORN_LOSS):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(timeout_s)
        if answer == STUBBORN_LOSS:
            raise CommunicationError(f"nobody answers for {path!r}", path=path)
        if isinstance(answer, BaseException):
            raise answer

    def check_exists(self, path: str) -> None:
        """Every entity exists; of backlog queues those that were used."""
        if BACKLOG_MARKER in path and path not in self.held and path not in self.attached:
            raise EntityNotFound(f"there is no queue {path!r}", path=path)

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence


class _Link:
    def __init__(self, namespace: FakeNamespace, path: str) -> None:
        self._namespace = namespace
        self.path = path
        self._is_open = True

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._namespace.links_open -= 1


class FakeSender(_Link):
    facts: LinkProperties | None = None

    async def send(self, parcels: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        self._namespace.attempts.append(self.path)
        await self._namespace.reach(self.path, timeout_s, is_send=True)
        self.facts = self._namespace.facts(self.path)
        size_bytes = sum(len(parcel.encoded) for parcel in parcels)
        if size_bytes + BATCH_ENVELOPE_BYTES_MAX > self.facts.batch_limit_bytes:
            check_size(encode_delivery(parcels), self.facts, self.path)
        self._namespace.batches.append((self.path, len(parcels)))
        self._namespace.messages(self.path).extend(parcel.encoded for parcel in parcels)

    async def schedule(self, parcels: Sequence[OutgoingMessage], *, timeout_s: float) -> list[int]:
        await self.send(parcels, timeout_s=timeout_s)
        return [self._namespace.next_sequence() for _ in parcels]

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        await self._namespace.reach(self.path, timeout_s)
        self._namespace.cancelled += sequence_numbers

    async def attach(self, *, timeout_s: float) -> LinkProperties:
        self._namespace.attached.append(self.path)
        await self._namespace.reach(self.path, timeout_s)
        self.facts = self._namespace.facts(self.path)
        return self.facts


class FakeReceiver(_Link):
    session_id: str | None = None

    def _check_claim(self) -> None:
        if self._namespace.refuses_to_listen:
            raise AccessRefused("the claim Listen is missing", path=self.path)

    async def receive(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
        await self._namespace.reach(self.path, wait_s)
        self._check_claim()
        held = self._namespace.messages(self.path)
        if not held:
            await asyncio.sleep(wait_s)
        taken, held[:] = held[:count_max], held[count_max:]
        return [self._delivered(encoded) for encoded in taken]

    def _delivered(self, encoded: bytes) -> ReceivedMessage:
        number = self._namespace.next_sequence()
        return ReceivedMessage(
            path=self.path,
            encoded=encoded,
            sequence_number=number,
            lock_token=number.to_bytes(16, "big"),
        )

    async def peek(
        self, count_max: int, *, from_sequence: int = 1, timeout_s: float
    ) -> list[ReceivedMessage]:
        await self._namespace.reach(self.path, timeout_s)
        self._namespace.check_exists(self.path)
        self._check_claim()
        held = self._namespace.messages(self.path)[:count_max]
        return [
            ReceivedMessage(
                path=self.path,
                encoded=encoded,
                sequence_number=index,
                enqueued_at_ms=int((time.time() - self._namespace.age_s()) * 1000),
            )
            for index, encoded in enumerate(held, from_sequence)
        ]

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        raise EntityNotFound("no deferred messages here")

    async def complete(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return []

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return []

    async def defer(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return []

    async def dead_letter(
        self,
        messages: Sequence[ReceivedMessage],
        *,
        reason: str,
        description: str,
        timeout_s: float,
    ) -> list[ReceivedMessage]:
        return []

    async def renew(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return []
