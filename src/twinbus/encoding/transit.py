"""Messages that are sent or were received, encoded at most once and only when needed.

Rule 1: the application's message is never changed; a diverted copy is another OutgoingMessage.
Rule 2: a driver that supports ``native`` sends it as it is, so that a healthy send costs nothing
        more; every other driver uses ``encoded``.
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
        """The message as an object of the application's library, or None."""
        self._encoded = encoded
        self._encode = encode

    @property
    def encoded(self) -> bytes:
        """The whole message in AMQP's message format 0."""
        if self._encoded is None:
            if self._encode is None:
                raise TypeError("OutgoingMessage needs encoded or encode")
            self._encoded = self._encode()
        return self._encoded


class ReceivedMessage(NamedTuple):
    """A message that a driver received; a tuple, which is created in a fifth of the time of a
    frozen dataclass: a drain creates one for every message."""

    path: str
    """The entity it was received from, sub-queue included."""
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
    """How the driver finds the message again; opaque to all other code."""
