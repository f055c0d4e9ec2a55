"""The listening ports of a broker, on which AMQP, HTTP and TLS are detected.

    accept --> PendingConnection: waits for the first byte, and peeks at it
                 0x16              TLS handshake, then TlsPendingConnection: the first byte inside
                 that of a method  HTTP: the application of the namespace
                 anything else     AMQP: a ClientConnection, which refuses other protocols

    namespace        port: AMQP, HTTP and TLS       tls_port, if set: TLS only
    administration   port: HTTP and TLS

Rule 1: a client has a limited time from the accepted connection to the first byte of its protocol,
        TLS handshake included. From then on the protocol has limits of its own.
Rule 2: every connection has a slot from the moment it is accepted
        (broker/fairness/connection_slots.py). Until it has sent a valid token it is
        unauthenticated, whatever its protocol, and may be evicted for another.
Rule 3: once the protocol of a connection is known, this module no longer handles it.
Rule 4: listeners that were closed open again on their previous ports, so that clients can
        reconnect.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from twinbus.broker.fairness.connection_slots import EVICTED, ConnectionSlots, Slot
from twinbus.broker.http.server import HttpServer
from twinbus.broker.listener.certificates import CertificateStore
from twinbus.broker.listener.tarpit import Tarpit, has_unread
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.options import BrokerOptions
from twinbus.broker.server.connection import ClientConnection
from twinbus.broker.violation_log import ViolationLog
from twinbus.errors import ConfigurationError, PortTaken

if TYPE_CHECKING:
    from twinbus.broker.broker import Broker
    from twinbus.broker.running_namespace import RunningNamespace

# Connections that wait to be accepted: enough for many clients that reconnect at once. The kernel
# has a limit of its own (net.core.somaxconn), which is usually this one.
BACKLOG = 4_096
PORT_MAX = 65_535
# Connections accepted in one turn of the loop; then open connections have a turn. A client sends
# its token within ten turns of its own, so that at most two hundred unauthenticated connections
# are accepted behind it until then.
ACCEPTS_PER_TURN = 16
# The same with many unauthenticated connections: each costs half a millisecond until it is evicted,
# and authenticated clients wait only for those of one turn.
ACCEPTS_PER_TURN_PRESSED = 4
# How long new connections wait, at most, because all that could be evicted for them have sent bytes
# that the broker has not handled yet. A busy machine handles all connections late.
BEHIND_S_MAX = 0.05
# How long a listener pauses when there is no file descriptor left for another connection.
PAUSE_S = 0.5
# How long closing a TLS connection waits for the other side.
TLS_CLOSE_S = 2.0

TLS_HANDSHAKE = 0x16
# GET, PUT, POST, PATCH, DELETE, HEAD, OPTIONS, TRACE, CONNECT. AMQP begins with an A.
HTTP_METHOD_LETTERS = frozenset(b"GPDHOTC")

HANDSHAKE_TIMED_OUT = "a client did not finish its handshake in time"

LogViolation = Callable[[str, str], None]
"""Called with a sentence and the address of the client."""


class WireProtocol(enum.Enum):
    """The protocol of a connection."""

    AMQP = enum.auto()
    HTTP = enum.auto()
    TLS = enum.auto()


class ConnectionAcceptor:
    """Accepts the connections of the listeners of one namespace, or of the administration."""

    def __init__(
        self,
        *,
        tls: CertificateStore,
        http: HttpServer,
        amqp: Callable[[Slot], asyncio.Protocol] | None,
        slots: ConnectionSlots,
        log_violation: LogViolation,
        handshake_timeout_s: float,
        tarpit_max: int = 0,
    ) -> None:
        """``amqp`` is None where only HTTP is served."""
        self.tls = tls
        self.http = http
        self.log_violation = log_violation
        self.handshake_timeout_s = handshake_timeout_s
        self.slots = slots
        self.tarpit = Tarpit(tarpit_max)
        slots.keep_open = self.tarpit.keep
        slots.has_unread = has_unread
        self._amqp = amqp
        self.waiting: set[PendingConnection] = set()
        self.reject_hook: Callable[[socket.socket, bool], bool] | None = None
        """Called first: whether a fault takes the connection, and closes it later."""

    @property
    def connection_count(self) -> int:
        """Pending and HTTP connections; those of AMQP are counted by their namespace."""
        return len(self.waiting) + self.http.connection_count

    def accept(self, connection: socket.socket, *, must_be_tls: bool) -> None:
        """A connection was accepted."""
        if self.reject_hook is not None and self.reject_hook(connection, must_be_tls):
            return
        PendingConnection(self, connection, must_be_tls=must_be_tls)

    def detect_protocol(self, first: int, *, is_secure: bool) -> WireProtocol:
        """The protocol that begins with this byte."""
        if first == TLS_HANDSHAKE and not is_secure:
            return WireProtocol.TLS
        if self._amqp is None or first in HTTP_METHOD_LETTERS:
            return WireProtocol.HTTP
        return WireProtocol.AMQP

    async def protocols(self, wire_protocol: WireProtocol) -> Callable[[Slot], asyncio.Protocol]:
        """The factory of connections with that protocol."""
        if wire_protocol is WireProtocol.AMQP and self._amqp is not None:
            return self._amqp
        return await self.http.serving()

    def make_room(self) -> None:
        """No file descriptor is left: close those in the tarpit, or evict a connection."""
        if not self.tarpit.clear():
            self.slots.evict_one()

    async def close(self) -> None:
        """Close pending and HTTP connections."""
        for pending in list(self.waiting):
            pending.drop()
        self.tarpit.clear()
        await self.http.close()


class PendingConnection:
    """A connection whose protocol is not known yet."""

    def __init__(
        self, acceptor: ConnectionAcceptor, connection: socket.socket, *, must_be_tls: bool
    ) -> None:
        self._acceptor = acceptor
        self._connection = connection
        self._must_be_tls = must_be_tls
        self._loop = asyncio.get_running_loop()
        self._entering: asyncio.Task[None] | None = None
        self._has_protocol = False
        """From then on only the protocol leaves the slot."""
        self._is_handed_over = False
        """From then on only the loop closes the connection."""
        self.transport: asyncio.Transport | None = None
        """The connection inside TLS."""
        self.address = _address_of(connection)
        acceptor.waiting.add(self)
        self.slot = acceptor.slots.admit(self.address, self._evicted)
        """Passed on to the protocol of the connection."""
        self.slot.connection = connection
        self._deadline: asyncio.TimerHandle | None = self._loop.call_later(
            acceptor.handshake_timeout_s, self._handshake_timed_out
        )
        self._loop.add_reader(connection, self._peek)

    def _peek(self) -> None:
        try:
            first = self._connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self.drop()
            return
        self.slot.advanced()
        self._loop.remove_reader(self._connection)
        self._entering = self._loop.create_task(self._enter(first[0]))
        # Not at the end of the task itself: a task that is cancelled too early never begins.
        self._entering.add_done_callback(self._entered)

    async def _enter(self, first: int) -> None:
        try:
            await self._connect(self._acceptor.detect_protocol(first, is_secure=False))
        except ConfigurationError as error:
            self._log_violation(f"TLS is not available: {error}")
        except OSError:
            self._log_violation("a handshake failed")

    def _entered(self, entering: asyncio.Task[None]) -> None:
        # A task that failed or was cancelled keeps its frames, and these keep this object.
        self._entering = None
        if self.transport is None:
            self.leave()
        if not self._is_handed_over:
            self._connection.close()
        if not self._has_protocol and self.transport is None:
            self.slot.leave()
        self.check(entering)

    def check(self, entering: asyncio.Task[None]) -> None:
        """Log a defect of the broker as a violation, so that a client cannot fill the log."""
        if not entering.cancelled() and (error := entering.exception()) is not None:
            self._log_violation(f"a connection could not be accepted: {type(error).__name__}")

    async def _connect(self, wire_protocol: WireProtocol) -> None:
        acceptor = self._acceptor
        if wire_protocol is WireProtocol.TLS:
            context = await acceptor.tls.context()
            self._is_handed_over = True
            await self._loop.connect_accepted_socket(
                lambda: TlsPendingConnection(acceptor, self),
                self._connection,
                ssl=context,
                ssl_handshake_timeout=acceptor.handshake_timeout_s,
                ssl_shutdown_timeout=TLS_CLOSE_S,
            )
        elif self._must_be_tls:
            self._log_violation("a connection without TLS was refused")
        else:
            protocols = await acceptor.protocols(wire_protocol)
            self.leave()
            self._is_handed_over = True
            await self._loop.connect_accepted_socket(
                lambda: self.protocol(protocols), self._connection
            )

    def protocol(self, protocols: Callable[[Slot], asyncio.Protocol]) -> asyncio.Protocol:
        """The protocol that handles the connection from now on, and has its slot."""
        self._has_protocol = True
        return protocols(self.slot)

    def _handshake_timed_out(self) -> None:
        self._log_violation(HANDSHAKE_TIMED_OUT)
        self.drop()

    def _evicted(self) -> None:
        self._log_violation(EVICTED)
        self.drop()

    def _log_violation(self, what: str) -> None:
        self._acceptor.log_violation(what, self.address)

    def drop(self) -> None:
        """Close the connection, whatever its state."""
        self.leave()
        if not self._has_protocol:
            self.slot.leave()
        if self.transport is not None:
            self.transport.abort()
        elif self._entering is not None:
            self._entering.cancel()
        else:
            self._loop.remove_reader(self._connection)
            self._connection.close()

    def leave(self) -> None:
        """The protocol of the connection is known, or the connection is closed."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._acceptor.waiting.discard(self)


class TlsPendingConnection(asyncio.Protocol):
    """A TLS connection whose inner protocol is not known yet."""

    def __init__(self, acceptor: ConnectionAcceptor, pending: PendingConnection) -> None:
        self._acceptor = acceptor
        self._pending = pending
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._entering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport, but have its interface.
        self._transport = self._pending.transport = cast(asyncio.Transport, transport)
        self._pending.slot.advanced()
        if self._pending not in self._acceptor.waiting:
            self._transport.abort()  # The handshake ended just after its deadline.

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._entering is None and self._transport is not None:
            self._transport.pause_reading()
            self._entering = asyncio.get_running_loop().create_task(self._enter(self._transport))
            self._entering.add_done_callback(self._entered)

    async def _enter(self, transport: asyncio.Transport) -> None:
        wire_protocol = self._acceptor.detect_protocol(self._received[0], is_secure=True)
        protocols = await self._acceptor.protocols(wire_protocol)
        self._pending.leave()
        if transport.is_closing():
            return
        protocol = self._pending.protocol(protocols)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.resume_reading()
        protocol.data_received(bytes(self._received))

    def _entered(self, entering: asyncio.Task[None]) -> None:
        self._entering = None
        self._pending.check(entering)
        if self._transport is not None and not entering.cancelled() and entering.exception():
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pending.leave()
        self._pending.slot.leave()
        self._transport = self._pending.transport = None


class Listener:
    """One listening port."""

    def __init__(
        self,
        acceptor: ConnectionAcceptor,
        listeners: list[socket.socket],
        *,
        must_be_tls: bool = False,
    ) -> None:
        self._acceptor = acceptor
        self._listeners = listeners
        self._must_be_tls = must_be_tls
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._waits_s: float | None = None
        """Since when new connections wait because others wait for the broker."""
        self.port: int = listeners[0].getsockname()[1]
        self._open()

    def _open(self) -> None:
        self._pause = None
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        slots = self._acceptor.slots
        if slots.is_behind and self._may_wait():
            return
        self._waits_s = None
        is_pressed = slots.is_pressed
        for _ in range(ACCEPTS_PER_TURN_PRESSED if is_pressed else ACCEPTS_PER_TURN):
            try:
                connection, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_failed(error)
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._acceptor.accept(connection, must_be_tls=self._must_be_tls)

    def _may_wait(self) -> bool:
        """Whether unauthenticated connections get another turn before one of them is evicted."""
        now_s = self._loop.time()
        if self._waits_s is None:
            self._waits_s = now_s
        return now_s < self._waits_s + BEHIND_S_MAX

    def _accept_failed(self, error: OSError) -> None:
        """Without a file descriptor the connection keeps waiting, and the listener pauses."""
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            return
        self._acceptor.log_violation("no file descriptor is left for another connection", "")
        self._acceptor.make_room()
        self._stop_accepting()
        self._pause = self._loop.call_later(PAUSE_S, self._open)

    def _stop_accepting(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for listener in self._listeners:
            self._loop.remove_reader(listener)

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        self._stop_accepting()
        for listener in self._listeners:
            listener.close()
        self._listeners = []


def _address_of(connection: socket.socket) -> str:
    """The client's address; empty for a connection that is closed already."""
    try:
        return str(connection.getpeername()[0])
    except (OSError, IndexError):
        return ""


async def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of the host, all on one port; 0 chooses a free one."""
    if not 0 <= port <= PORT_MAX:
        raise ConfigurationError(f"Invalid port: {port}", hint=f"Use a number from 0 to {PORT_MAX}")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listeners: list[socket.socket] = []
        try:
            for family, _kind, _protocol, _name, address in dict.fromkeys(found):
                chosen = listeners[0].getsockname()[1] if listeners else port
                listeners.append(_listen(family, (address[0], chosen, *address[2:])))
        except OSError:
            for listener in listeners:
                listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(host=host, port=port) from error
        raise ConfigurationError(
            f"Port {port} of {host} cannot be opened: {error.strerror}",
            hint="Use another port or another address",
        ) from error
    return listeners


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # IPv4 has a listener of its own.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.setblocking(False)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class ListenerSet:
    """The listeners of one namespace, or of the administration."""

    def __init__(
        self,
        acceptor: ConnectionAcceptor,
        options: BrokerOptions,
        port: int,
        tls_port: int | None = None,
    ) -> None:
        self.acceptor = acceptor
        self._options = options
        self._listeners: list[Listener] = []
        self.port = port
        """0, for a free port, until the listener was opened for the first time."""
        self.tls_port = tls_port

    async def open(self) -> None:
        """Open the listeners; raises ConfigurationError when a port is not available."""
        host, is_tls_only = self._options.host, self._options.tls_only
        listeners = await bind(host, self.port)
        try:
            tls_listeners = [] if self.tls_port is None else await bind(host, self.tls_port)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        self._listeners = [Listener(self.acceptor, listeners, must_be_tls=is_tls_only)]
        self.port = self._listeners[0].port
        if tls_listeners:
            self._listeners.append(Listener(self.acceptor, tls_listeners, must_be_tls=True))
            self.tls_port = self._listeners[1].port

    def close_listeners(self) -> None:
        """Accept no more connections; open ones stay."""
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    async def close(self) -> None:
        """Accept no more connections, and close pending and HTTP ones."""
        self.close_listeners()
        await self.acceptor.close()


def shown_host(host: str) -> str:
    """The host for a connection string that clients on this machine can use."""
    if host in ("127.0.0.1", "::1", "", "0.0.0.0", "::"):
        return "localhost"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def namespace_listeners(
    namespace: Namespace, tls: CertificateStore, port: int, tls_port: int | None
) -> ListenerSet:
    """AMQP and the administration protocol for one namespace."""
    options = namespace.options

    def now_s() -> float:
        return namespace.now().monotonic_s

    note, note_mistake = _notes(namespace.violations, now_s)

    acceptor = ConnectionAcceptor(
        tls=tls,
        http=HttpServer(
            request_timeout_s=options.limits.handshake_timeout_s,
            log_violation=note,
            note_mistake=note_mistake,
            turns=namespace.turns,
        ),
        amqp=lambda slot: ClientConnection(namespace, slot),
        slots=_slots(options),
        log_violation=note,
        handshake_timeout_s=options.limits.handshake_timeout_s,
        tarpit_max=options.tarpit_max,
    )
    listeners = ListenerSet(acceptor, options, port, tls_port)
    namespace.fault_effects.network.attach(listeners)
    return listeners


def _notes(
    violations: ViolationLog, now_s: Callable[[], float]
) -> tuple[Callable[[str, str], None], Callable[[Exception, str, bool], None]]:
    """The callbacks of listeners for violations of clients and for defects of the broker."""

    def note(what: str, address: str) -> None:
        violations.note(what, now_s(), address=address)

    def note_mistake(error: Exception, address: str, is_stranger: bool) -> None:
        violations.note_mistake(
            "an HTTP request could not be handled",
            error,
            now_s(),
            address=address,
            is_stranger=is_stranger,
        )

    return note, note_mistake


def _slots(options: BrokerOptions) -> ConnectionSlots:
    return ConnectionSlots(
        strangers_max=options.strangers_max, connections_max=options.connections_max
    )


def administration_listeners(
    broker: Broker, make_application: Callable[[], Any], port: int
) -> ListenerSet:
    """The administration of a whole broker."""
    options = broker.options
    violations = ViolationLog("administration")

    note, note_mistake = _notes(violations, time.monotonic)
    acceptor = ConnectionAcceptor(
        tls=broker.tls,
        http=HttpServer(
            make_application,
            request_timeout_s=options.limits.handshake_timeout_s,
            log_violation=note,
            note_mistake=note_mistake,
            turns=broker.shared_turns(),
        ),
        amqp=None,
        slots=_slots(options),
        log_violation=note,
        handshake_timeout_s=options.limits.handshake_timeout_s,
        tarpit_max=options.tarpit_max,
    )
    return ListenerSet(acceptor, options, port)


def make_namespace_application(namespace: RunningNamespace) -> Any:
    """The HTTP application on the ports of a namespace; imported for the first request."""
    from twinbus.broker.http.atom.application import namespace_application

    return namespace_application(namespace)


def make_broker_application(broker: Broker) -> Any:
    """The application of the broker's own HTTP port."""
    from twinbus.broker.http.json_api import admin_application

    return admin_application(broker)
