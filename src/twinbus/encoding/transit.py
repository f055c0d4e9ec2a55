"""A message on its way, in whatever form it came, encoded at most once and only when needed.

Rule 1: what the application handed in is never changed; a diverted copy is a parcel of its own.
Rule 2: a driver that understands ``native`` sends it as it is (the healthy path pays nothing);
        every other driver asks for ``encoded``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class OutgoingMessage:
    """One message to be sent."""

    __slots__ = ("_encode", "_encoded", "native")

    def __init__(
        self,
        encoded: bytes | None = None,
        *,
        native: Any = None,
        encode: Callable[[], bytes] | None = None,
    ) -> None:
        self.native = native
        """The message as the application's library knows it, or None."""
        self._encoded = encoded
        self._encode = encode

    @property
    def encoded(self) -> bytes:
        """The whole message in AMQP's message format 0."""
        if self._encoded is None:
            if self._encode is None:
                raise TypeError("a parcel needs its bytes or a way to make them")
            self._encoded = self._encode()
        return self._encoded


class ReceivedMessage(NamedTuple):
    """A message that a driver received; a tuple, which is made in a fifth of the time of a frozen
    dataclass: a drain makes one for every message."""

    path: str
    """The entity it came from, sub-queue included."""
    encoded: bytes
    """All sections as the service delivered them, its annotations included."""
    sequence_number: int
    enqueued_at_ms: int | None = None
    locked_until_ms: int | None = None
    delivery_count: int = 0
    """Earlier deliveries: 0 the first time."""
    lock_token: bytes = b""
    """16 bytes, as on the wire; empty for receive-and-delete."""
    handle: Any = None
    """The driver's own way to find it again; nobody else looks inside."""
