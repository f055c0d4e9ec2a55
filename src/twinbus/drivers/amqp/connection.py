"""One connection to a namespace: the engine of twinbus.amqp on a socket of asyncio.

    socket -----> data_received() --> engine --> events --> endpoints that own sessions and links
    endpoints --> engine --> wants_flush() --> one write for all frames of a turn of the loop

Rule 1: every endpoint is notified exactly once when the connection is lost, with a ConnectionLoss.
Rule 2: ``flush_count`` counts writes, so that an endpoint can distinguish what was written to the
        socket from what was not.
Rule 3: a connection that received nothing during a whole call is retired: calls that wait on it
        may go on waiting, new calls get a new one. In the end AMQP's idle timeout decides.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.connection import Connection, ConnectionOptions, Role
from twinbus.amqp.delivery_states import Error
from twinbus.amqp.events import (
    ConnectionClosed,
    CreditChanged,
    DeliveriesReceived,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetachedEvent,
    LinkDrained,
    Opened,
    SessionBegun,
    SessionEnded,
    WindowOpened,
)
from twinbus.amqp.session import Session
from twinbus.drivers.amqp.errors import ConnectionLoss, closed_loss, quote
from twinbus.drivers.amqp.options import AmqpOptions, Endpoint
from twinbus.errors import CommunicationError

if TYPE_CHECKING:
    from twinbus.drivers.amqp.link_endpoint import LinkEndpoint

# Links on one connection; the broker and Service Bus both allow more sessions than that, and some
# are left for requests.
LINKS_PER_CONNECTION_MAX: Final = 200
SHARE_FOR_LINKS: Final = 0.75
# Bytes that wait in the socket's buffer before senders are asked to wait: some batches' worth.
WRITE_BUFFER_BYTES_MAX: Final = 1 << 20
# A connection that received nothing for this long may have been closed by the service.
IDLE_S: Final = 0.5
# For the closing frames to be sent; a peer that does not read gets no more time.
CLOSE_TIMEOUT_S: Final = 1.0

_PRODUCT: Final = {Symbol("product"): "twinbus"}


class AmqpConnection(asyncio.Protocol):
    """One connection. Created by open_connection()."""

    def __init__(self, endpoint: Endpoint, options: AmqpOptions) -> None:
        self.endpoint = endpoint
        self.flush_count = 0
        self.received_at_s = 0.0
        self.is_retired = False
        self.can_write = True
        self.loss: ConnectionLoss | None = None
        self.ends: set[LinkEndpoint] = set()
        self.on_loss: Callable[[], None] | None = None
        """Called when the connection is lost."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._engine = Connection(
            Role.CLIENT,
            ConnectionOptions(
                container_id=f"twinbus-{uuid4()}",
                hostname=endpoint.host,
                limits=options.limits,
                properties=dict(_PRODUCT),
            ),
        )
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._begun_channels: set[int] = set()
        self._is_flush_due = False
        self._timer: asyncio.TimerHandle | None = None

    # -- for the endpoints ----------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """Whether new calls should go here."""
        return self.loss is None and not self.is_retired

    @property
    def is_gone(self) -> bool:
        """Whether its socket is closed, too."""
        return self.loss is not None and self._transport is None

    @property
    def has_room(self) -> bool:
        """Whether one more link may be attached here."""
        # One for tokens and one for a link, however few the peer allows: see begin().
        allowed = max(2, int(self._channel_count_max * SHARE_FOR_LINKS))
        return len(self._channels_in_use()) < min(LINKS_PER_CONNECTION_MAX, allowed)

    @property
    def _channel_count_max(self) -> int:
        remote = self._engine.remote_open
        return 1 if remote is None else remote.channel_max + 1

    def _channels_in_use(self) -> set[int]:
        # A session that we ended uses its channel until the peer has ended it too.
        known = {session.channel for session in self._engine.sessions.values()}
        return known | self._begun_channels

    def begin(self, end: LinkEndpoint) -> Session:
        """A session for an endpoint, which gets its events from now on."""
        if self.loss is not None:
            raise self.loss.error(end.path, was_sent=False)
        used = self._channels_in_use()
        if len(used) >= self._channel_count_max:
            raise CommunicationError(
                f"{self.endpoint.address} allows no more AMQP sessions on this connection",
                path=end.path,
                was_sent=False,
            )
        channel = next(number for number in range(len(used) + 1) if number not in used)
        session = self._engine.begin_session(channel)
        self._begun_channels.add(channel)
        session.owner = end
        self.ends.add(end)
        self.wants_flush()
        return session

    def leave(self, end: LinkEndpoint) -> None:
        """An endpoint no longer needs the connection."""
        self.ends.discard(end)
        if self.is_retired and not any(each.holds_connection for each in self.ends):
            self._lose(closed_loss("The connection"))

    def write(self, frame: bytes) -> None:
        self._engine.write(frame)
        self.wants_flush()

    def wants_flush(self) -> None:
        """There is output: write it at the end of this turn of the loop, with all the rest."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        data = self._engine.take_output()
        if data and self._transport is not None:
            self.flush_count += 1
            self._engine.note_write(self._loop.time())
            self._transport.write(data)

    async def poll_if_idle(self) -> None:
        """Let the loop read what arrived on a connection that was idle, for example a close."""
        if self._loop.time() - self.received_at_s > IDLE_S:
            # The first turn detects that data can be read, the second reads it.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def suspect(self, since_s: float) -> None:
        """A call timed out: retire the connection if it received nothing since."""
        if self.received_at_s < since_s:
            self.is_retired = True

    # -- the socket -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: the transports of uvloop are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.received_at_s = now_s = self._loop.time()
        engine = self._engine
        engine.note_read(now_s)
        engine.feed(data)
        while (events := engine.next_events()) is not None:
            for event in events:
                self._on_event(event)
        self._flush()

    def pause_writing(self) -> None:
        self.can_write = False

    def resume_writing(self) -> None:
        self.can_write = True
        for end in list(self.ends):
            end.on_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed.done():
            self._closed.set_result(None)
        address = self.endpoint.address
        self._lose(
            ConnectionLoss(CommunicationError, f"The connection to {address} was lost", cause=exc)
        )

    def _lose(self, loss: ConnectionLoss) -> None:
        if self.loss is not None:
            return
        self.loss = loss
        if self._timer is not None:
            self._timer.cancel()
        if not self.opened.done():
            self.opened.set_exception(loss.error("", was_sent=False))
            self.opened.exception()  # The caller that opens it may have been cancelled.
        ends, self.ends = self.ends, set()
        for end in ends:
            end.lost(loss)
        if self.on_loss is not None:
            self.on_loss()
        self._engine.close()
        self._flush()
        if self._transport is not None:
            self._transport.close()
            # With a peer that does not read, the closing frames would wait forever.
            self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self.abort)

    # -- events of the peer ---------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case DeliveriesReceived() | DeliveryReceived() | LinkAttached() | LinkDetachedEvent():
                if event.link.owner is not None:
                    event.link.owner.on_event(event)
            case CreditChanged() | LinkDrained():
                if event.link.owner is not None:
                    event.link.owner.on_event(event)
            case DispositionReceived() | SessionEnded():
                self._notify_owner(event.session, event)
            case SessionBegun():
                self._begun_channels.discard(event.session.channel)
                self._notify_owner(event.session, event)
            case WindowOpened():
                self._notify_owner(event.session, event)
            case Opened():
                self._arm_timer()
                if not self.opened.done():
                    self.opened.set_result(None)
            case ConnectionClosed():
                self._lose(self._loss_of(event.error))

    @staticmethod
    def _notify_owner(session: Session, event: Any) -> None:
        owner: Any = session.owner
        if owner is not None:
            owner.on_event(event)

    def _loss_of(self, error: Error | None) -> ConnectionLoss:
        sentence = f"The connection to {self.endpoint.address} was closed"
        if error is None:
            return ConnectionLoss(CommunicationError, sentence)
        reason = quote(error.description or error.condition)
        return ConnectionLoss(CommunicationError, f"{sentence}: {reason}", str(error.condition))

    # -- time -----------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        at_s = self._engine.next_timer_s()
        if at_s is not None and self.loss is None:
            self._timer = self._loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        for event in self._engine.handle_timer(self._loop.time()):
            self._on_event(event)
        self._flush()
        self._arm_timer()

    # -- the end --------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connection; its socket is closed when this returns."""
        self._lose(closed_loss("The connection"))
        if self._transport is not None:
            await asyncio.shield(self._closed)

    def abort(self) -> None:
        """Close the socket immediately."""
        if self._transport is not None:
            self._transport.abort()


async def open_connection(
    endpoint: Endpoint, options: AmqpOptions, context: ssl.SSLContext | None
) -> AmqpConnection:
    """Connect and exchange opens; raises CommunicationError. The caller limits the time."""
    loop = asyncio.get_running_loop()
    connection = AmqpConnection(endpoint, options)
    address = endpoint.address
    try:
        await loop.create_connection(
            lambda: connection,
            address.host,
            address.port,
            ssl=context,
            server_hostname=address.host if context is not None else None,
        )
        await asyncio.shield(connection.opened)
    except ssl.SSLCertVerificationError as error:
        raise CommunicationError(
            f"The certificate of {address} is not trusted: {quote(error.verify_message)}",
            hint="Set ca_file to the authority that signed it, and check the host name",
            was_sent=False,
        ).mark_final() from error
    except OSError as error:
        raise CommunicationError(
            f"Connection to {address} failed: {quote(error)}",
            hint="Check the address, the network and that the service is running",
            was_sent=False,
        ) from error
    except asyncio.CancelledError:
        connection.abort()
        raise
    return connection
