"""The port: what the layers above may ask of a messaging service.

Rule 1: links open when they are first needed and again after the service detached them; an idle
        link that was taken away is no error to the caller.
Rule 2: no call outlives its ``timeout_s``: OperationTimeout is raised instead.
Rule 3: no retry happens here (F6): one call is one attempt, except for reopening an idle link.
Rule 4: every object may be used from many tasks of one event loop at once, and a cancelled call
        leaves it usable.
Rule 5: everything that goes wrong is a ServiceError; nothing of it holds a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage

__all__ = [
    "NEXT_SESSION",
    "Driver",
    "LinkProperties",
    "NamespaceAddress",
    "NextSession",
    "ReceiveMode",
    "Receiver",
    "Sender",
]


class NextSession(Enum):
    """Asks for whichever session is free."""

    NEXT = auto()


NEXT_SESSION: Final = NextSession.NEXT


class ReceiveMode(Enum):
    PEEK_LOCK = auto()
    RECEIVE_AND_DELETE = auto()


@dataclass(frozen=True, slots=True)
class NamespaceAddress:
    """Where a namespace is; two with equal addresses are the same one (P3)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LinkProperties:
    """What the service said when a sending link was attached."""

    message_bytes_max: int
    batch_bytes_max: int | None = None
    """What a batch may have; None: as much as a message. Large messages may be allowed where
    large batches are not."""

    @property
    def batch_limit_bytes(self) -> int:
        return min(self.batch_bytes_max or self.message_bytes_max, self.message_bytes_max)


def note_unsent(cancelled: asyncio.CancelledError) -> None:
    """Say with the end of a cancelled send that nothing of it has left."""
    cancelled.was_sent = False  # type: ignore[attr-defined]


def may_have_left(cancelled: asyncio.CancelledError) -> bool:
    """Whether the service may have got something of a send that was cancelled."""
    return getattr(cancelled, "was_sent", True)


class Sender(Protocol):
    """A way into one queue or topic. Making one touches no network."""

    path: str

    async def send(self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        """Return once the service holds every one of them durably.

        Several parcels are one batch: all are taken or none. A call that is cancelled before
        anything has left says so with note_unsent().
        """

    async def schedule(
        self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float
    ) -> list[int]:
        """Hand in messages that carry their time; their sequence numbers, for cancelling."""

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        """Take scheduled messages back; MessageNotFound if one of them is not there."""

    @property
    def facts(self) -> LinkProperties | None:
        """What the service said when the link was last attached; None: it never was."""

    async def attach(self, *, timeout_s: float) -> LinkProperties:
        """Make sure that the link is open, and send nothing."""

    async def close(self) -> None:
        """Let go of the link; may be called twice."""


class Receiver(Protocol):
    """A way out of one queue, subscription or dead-letter queue."""

    path: str

    @property
    def session_id(self) -> str | None:
        """The session that is held, once the first receive has got one."""

    async def receive(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
        """Up to ``count_max`` messages: returns as soon as some are there (with what is there
        then), or empty after ``wait_s``."""

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Messages that were set aside, by their numbers; all of them, or MessageNotFound when
        one is not there (or locked by somebody else). Settled like every other message."""

    async def complete(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Settle them; returns those that could not be, because their lock was lost."""

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Give them back at once; returns those whose lock was lost."""

    async def defer(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Set them aside, to be asked for by number; returns those whose lock was lost."""

    async def dead_letter(
        self,
        messages: Sequence[ReceivedMessage],
        *,
        reason: str,
        description: str,
        timeout_s: float,
    ) -> list[ReceivedMessage]:
        """Move them to the dead-letter queue; returns those whose lock was lost."""

    async def renew(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Lock them for longer; returns those whose lock was lost."""

    async def peek(
        self, count_max: int, *, from_sequence: int = 1, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Look at messages without taking them; no lock token."""

    async def close(self) -> None:
        """Let go of the link. Unsettled messages keep their locks; received ones that nobody
        has been given go back."""


class Driver(Protocol):
    """One namespace, through one library."""

    address: NamespaceAddress

    def sender(self, path: str) -> Sender:
        """A new sender with a link of its own."""

    def receiver(
        self,
        path: str,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int = 0,
        session: str | NextSession | None = None,
    ) -> Receiver:
        """A new receiver with a link of its own. ``path`` may end with ``/$DeadLetterQueue`` or
        be ``<topic>/Subscriptions/<name>``."""

    async def close(self) -> None:
        """Close every sender and receiver; may be called twice."""
