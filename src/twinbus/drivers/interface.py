"""The interface of a driver: what the layers above may ask of a messaging service.

Rule 1: links open when they are first needed and again after the service detached them; an idle
        link that the service detached is not an error for the caller.
Rule 2: no call outlives its ``timeout_s``: OperationTimeout is raised instead.
Rule 3: no retry happens here (F6): one call is one attempt, except for reopening an idle link.
Rule 4: every object may be used from many tasks of one event loop at once, and a cancelled call
        leaves it usable.
Rule 5: every failure is a ServiceError; none of them contains a secret.
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
    """Selects any session that is free."""

    NEXT = auto()


NEXT_SESSION: Final = NextSession.NEXT


class ReceiveMode(Enum):
    PEEK_LOCK = auto()
    RECEIVE_AND_DELETE = auto()


@dataclass(frozen=True, slots=True)
class NamespaceAddress:
    """The host and port of a namespace; equal addresses are the same namespace (P3)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LinkProperties:
    """The limits that the service reported when a sender link was attached."""

    message_bytes_max: int
    batch_bytes_max: int | None = None
    """Maximum size of a batch; None: that of a message. A service may allow large messages and
    no large batches."""

    @property
    def batch_limit_bytes(self) -> int:
        return min(self.batch_bytes_max or self.message_bytes_max, self.message_bytes_max)


def note_unsent(cancelled: asyncio.CancelledError) -> None:
    """Mark a cancelled send as one of which nothing was sent."""
    cancelled.was_sent = False  # type: ignore[attr-defined]


def may_have_left(cancelled: asyncio.CancelledError) -> bool:
    """Whether the service may have received something of a cancelled send."""
    return getattr(cancelled, "was_sent", True)


class Sender(Protocol):
    """Sends to one queue or topic. Creating one uses no network."""

    path: str

    async def send(self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float) -> None:
        """Return once the service has stored all of them durably.

        Several messages are one batch: the service accepts all or none. A call that is cancelled
        before anything was sent marks its cancellation with note_unsent().
        """

    async def schedule(
        self, outgoing_messages: Sequence[OutgoingMessage], *, timeout_s: float
    ) -> list[int]:
        """Schedule messages that carry their time; returns their sequence numbers."""

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        """Cancel scheduled messages; raises MessageNotFound if one of them does not exist."""

    @property
    def facts(self) -> LinkProperties | None:
        """What the service reported when the link was last attached; None: it never was."""

    async def attach(self, *, timeout_s: float) -> LinkProperties:
        """Open the link if it is not open, and send nothing."""

    async def close(self) -> None:
        """Close the link; may be called twice."""


class Receiver(Protocol):
    """Receives from one queue, subscription or dead-letter queue."""

    path: str

    @property
    def session_id(self) -> str | None:
        """The locked session, after the first receive has locked one."""

    async def receive(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
        """Up to ``count_max`` messages: returns as soon as some are available (with those that are
        then), or an empty list after ``wait_s``."""

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Deferred messages by their sequence numbers; all of them, or MessageNotFound when one
        does not exist or another receiver has locked it. Settled like every other message."""

    async def complete(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Settle them; returns those that could not be, because their lock was lost."""

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Unlock them immediately; returns those whose lock was lost."""

    async def defer(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Defer them, to be received by sequence number; returns those whose lock was lost."""

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
        """Read messages without locking them; they have no lock token."""

    async def close(self) -> None:
        """Close the link. Unsettled messages keep their locks; prefetched ones that no caller
        received are released."""


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
