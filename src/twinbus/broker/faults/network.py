"""Network faults of a namespace: for all clients or for some of them (rules F1 and F5).

    refuse      the listener is closed, and connections are reset
    reset       connections are reset, new ones as soon as they are accepted
    black-hole  nothing is read and nothing is answered
    half-open   one direction is dead, the other works
    slow        bytes are delayed in both directions

To refuse only some clients, or only messages, the common listener cannot be closed: then
``refuse`` means the same as ``reset``.

A connection in a black hole has the slot of an unauthenticated connection
(broker/fairness/connection_slots.py), like every connection without a token. So a fault does not
allow more connections than there are file descriptors.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twinbus.broker.fairness.connection_slots import EVICTED, Slot
from twinbus.broker.faults.degraded_connection import (
    DegradedConnection,
    reset_connection,
    reset_on_close,
)
from twinbus.broker.faults.registry import ActiveFault
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.broker.listener.listeners import ListenerSet
    from twinbus.broker.namespace.namespace import Namespace
    from twinbus.broker.server.connection import ClientConnection

logger = logging.getLogger("twinbus.broker")

# Between two attempts to open a port again that another process may have taken meanwhile.
REOPEN_PAUSE_S: Final = 0.2


class _SilentConnection(NamedTuple):
    """A connection from which nothing has been read."""

    slot: Slot
    must_be_tls: bool


class NetworkFaults:
    """Applies the network faults to the connections of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._listeners: ListenerSet | None = None
        self._is_shut = False
        self._opening: asyncio.Task[None] | None = None
        self._silent: dict[socket.socket, _SilentConnection] = {}
        """Connections in a black hole: accepted, and not read from."""

    def attach(self, listeners: ListenerSet) -> None:
        """From now on check the new connections of these listeners."""
        self._listeners = listeners
        listeners.acceptor.reject_hook = self._reject_hook

    def changed(self) -> None:
        """A fault of this kind began or ended."""
        for peer in list(self._namespace.peers):
            self.apply(peer)
        is_shut = any(_closes_listeners(active) for active in self._faults("data"))
        if is_shut is not self._is_shut:
            self._is_shut = is_shut
            self._adjust_listeners()
        waiting, self._silent = self._silent, {}
        for connection, (slot, must_be_tls) in waiting.items():
            if self._listeners is not None and slot.is_taken:
                slot.leave()  # The acceptor gives the connection another one.
                self._listeners.acceptor.accept(connection, must_be_tls=must_be_tls)

    def close(self) -> None:
        """The namespace stops: its listeners stay closed, also when its faults end."""
        self._listeners = None
        if self._opening is not None:
            self._opening.cancel()
        for connection, silent in self._silent.items():
            silent.slot.leave()
            connection.close()
        self._silent.clear()

    # -- listeners ------------------------------------------------------------------------

    def _adjust_listeners(self) -> None:
        listeners = self._listeners
        if listeners is None:
            return
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._is_shut:
            listeners.close_listeners()
            for pending in list(listeners.acceptor.waiting):
                pending.drop()
        else:
            self._opening = asyncio.get_running_loop().create_task(self._open(listeners))

    async def _open(self, listeners: ListenerSet) -> None:
        while True:
            try:
                await listeners.open()
            except ConfigurationError as error:
                logger.warning("Namespace %s: %s", self._namespace.name, error)
                await asyncio.sleep(REOPEN_PAUSE_S)
            else:
                return

    async def until_open(self) -> None:
        """Return once the listeners are open, if they are being opened."""
        if self._opening is not None:
            await asyncio.wait([self._opening])

    def _reject_hook(self, connection: socket.socket, must_be_tls: bool) -> bool:
        """Whether a fault takes the new connection, for now or for good."""
        if self._namespace.faults.has_no_faults:
            return False
        host = address = ""
        with suppress(OSError):
            host, port = connection.getpeername()[:2]
            address = f"{host}:{port}"
        found = [each for each in self._faults("both") if affects(each, address, "")]
        hows = {active.fault.how for active in found}
        if hows & {"refuse", "reset"}:
            reset_on_close(connection)
            connection.close()
        elif "black-hole" not in hows:
            return False
        else:
            self._hold(connection, host, must_be_tls=must_be_tls)
        for active in found:
            active.hit_count += 1
        return True

    def _hold(self, connection: socket.socket, host: str, *, must_be_tls: bool) -> None:
        if self._listeners is None:
            connection.close()
            return
        evicted = partial(self._evicted, connection, host)
        slot = self._listeners.acceptor.slots.admit(host, evicted)
        self._silent[connection] = _SilentConnection(slot, must_be_tls)

    def _evicted(self, connection: socket.socket, host: str) -> None:
        """A newer connection needs the slot."""
        self._silent.pop(connection, None)
        connection.close()
        if self._listeners is not None:
            self._listeners.acceptor.log_violation(EVICTED, host)

    # -- open connections -----------------------------------------------------------------

    def apply(self, peer: ClientConnection) -> None:
        """Apply the active faults to one connection."""
        found = [
            active
            for active in self._faults("data")
            if affects(active, address_of(peer.transport), _container_id_of(peer))
        ]
        hows = {active.fault.how for active in found}
        for active in found:
            active.hit_count += 1
        if hows & {"refuse", "reset"}:
            reset_connection(peer)
        elif found:
            if peer.line is None:
                peer.line = DegradedConnection(peer)
            peer.line.apply(found)
        elif peer.line is not None:
            line, peer.line = peer.line, None
            line.restore()

    def administration_faults(self, address: str) -> list[ActiveFault]:
        """The faults that affect an administration request from that address."""
        return [each for each in self._faults("management") if affects(each, address, "")]

    def _faults(self, plane: str) -> Iterator[ActiveFault]:
        """The active faults of one plane; "both" are those of both planes."""
        for active in self._namespace.faults.active_of_kind("cannot-contact"):
            if active.fault.plane in ("both", plane) and not (
                plane == "data" and active.fault.how == "gateway-error"
            ):
                yield active


def _closes_listeners(active: ActiveFault) -> bool:
    fault = active.fault
    return fault.how == "refuse" and fault.plane == "both" and not fault.only_clients


def affects(active: ActiveFault, address: str, container_id: str) -> bool:
    """Whether a client is one of those that the fault affects."""
    only = active.fault.only_clients
    return not only or address.startswith(only) or container_id.startswith(only)


def _container_id_of(peer: ClientConnection) -> str:
    """The container id of the client; empty before it has opened the connection."""
    remote = peer.connection.remote_open
    return "" if remote is None else str(remote.container_id)


def address_of(transport: Any) -> str:
    """The client's address of a connection, for example ``127.0.0.1:50312``."""
    found = None if transport is None else transport.get_extra_info("peername")
    return f"{found[0]}:{found[1]}" if isinstance(found, tuple) and len(found) >= 2 else ""
