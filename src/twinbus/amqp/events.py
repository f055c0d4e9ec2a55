"""What a peer did, as values. The engine returns them; its user handles them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from twinbus.amqp.performatives import Error, Open

if TYPE_CHECKING:
    from twinbus.amqp.link import ReceiverLink, SenderLink
    from twinbus.amqp.session import Session


@dataclass(slots=True)
class Opened:
    """The connection is open in both directions."""

    remote: Open


@dataclass(slots=True)
class SessionBegun:
    """A session can be used (client role: the peer has responded)."""

    session: Session


@dataclass(slots=True)
class SessionEnded:
    """A session and all its links have ended."""

    session: Session
    error: Error | None


@dataclass(slots=True)
class LinkAttached:
    """The peer requests a link (respond with accept or refuse), or has responded to ours."""

    link: SenderLink | ReceiverLink


@dataclass(slots=True)
class LinkDetachedEvent:
    """A link was detached."""

    link: SenderLink | ReceiverLink
    error: Error | None


@dataclass(slots=True)
class CreditChanged:
    """The peer updated its credit on a link we send on, or requests to drain it."""

    link: SenderLink


@dataclass(slots=True)
class LinkDrained:
    """The peer has sent all available messages on a link we receive on, and returned the credit."""

    link: ReceiverLink


@dataclass(slots=True)
class WindowOpened:
    """A session that was out of window can send again."""

    session: Session


@dataclass(slots=True)
class DeliveryReceived:
    """A whole delivery has arrived."""

    link: ReceiverLink
    delivery_id: int
    message_format: int
    payload: bytes
    settled: bool
    is_repeat: bool
    """The delivery id is not a new one on this link. The Azure SDK's aio sender, used by several
    tasks at once, repeats an id with the same message and also with another one."""
    tag: bytes = b""


@dataclass(slots=True)
class DeliveriesReceived:
    """Whole deliveries with consecutive ids, none of them a repeat."""

    link: ReceiverLink
    first_id: int
    message_format: int
    payloads: list[bytes]
    settled: bool
    tags: list[bytes]
    """One for each, or none at all when the link does not keep them."""

    def singles(self) -> Iterator[DeliveryReceived]:
        """The same, one by one."""
        tags = self.tags or repeat(b"")
        for offset, (payload, tag) in enumerate(zip(self.payloads, tags, strict=False)):
            delivery_id = (self.first_id + offset) & 0xFFFFFFFF
            yield DeliveryReceived(
                self.link, delivery_id, self.message_format, payload, self.settled, False, tag
            )


@dataclass(slots=True)
class DispositionReceived:
    """The peer reports the outcome of deliveries; ``role`` is True if it received them."""

    session: Session
    role: bool
    first: int
    last: int
    settled: bool
    state: Any


@dataclass(slots=True)
class ConnectionClosed:
    """Nothing more can be sent or received; flush the output and close the transport."""

    error: Error | None
    is_remote: bool = False
    """The peer closed it; the error text is the peer's."""


Event = (
    Opened
    | SessionBegun
    | SessionEnded
    | LinkAttached
    | LinkDetachedEvent
    | CreditChanged
    | LinkDrained
    | WindowOpened
    | DeliveryReceived
    | DeliveriesReceived
    | DispositionReceived
    | ConnectionClosed
)
