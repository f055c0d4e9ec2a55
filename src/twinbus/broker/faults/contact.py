"""Whether the namespace can be reached, and by whom (rules F1 and F5).

    refuse      the listener is closed, and connections are reset
    reset       connections are reset, new ones as soon as they are made
    black-hole  nothing is read and nothing is answered
    half-open   one direction is dead, the other works
    slow        bytes take their time, in both directions

Refusing only some clients, or only messages, cannot be done by closing the listener that
everybody uses: then it means the same as a reset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from twinbus.broker.faults.board import ActiveFault
from twinbus.broker.faults.line import Line, hang_up

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.peer import Peer


class Door(Protocol):
    """What lets clients in."""

    def shut(self) -> None:
        """Listen no more; whoever knocks is refused by the operating system."""

    def open_again(self) -> None:
        """Listen again, on the same port."""


class Contact:
    """The connections of one namespace, as good or bad as the faults say."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.doors: list[Door] = []
        self._is_shut = False

    def changed(self) -> None:
        """A fault of this kind began or ended."""
        for peer in list(self._namespace.peers):
            self.meet(peer)
        is_shut = any(_shuts_doors(active) for active in self._faults("data"))
        if is_shut is not self._is_shut:
            self._is_shut = is_shut
            for door in self.doors:
                door.shut() if is_shut else door.open_again()

    def meet(self, peer: Peer) -> None:
        """Treat one connection as the faults of now demand."""
        found = [
            active
            for active in self._faults("data")
            if is_meant(active, address_of(peer.transport), _container_id_of(peer))
        ]
        hows = {active.fault.how for active in found}
        for active in found:
            active.hit_count += 1
        if hows & {"refuse", "reset"}:
            hang_up(peer)
        elif found:
            if peer.line is None:
                peer.line = Line(peer)
            peer.line.tune(found)
        elif peer.line is not None:
            line, peer.line = peer.line, None
            line.heal()

    def management(self, address: str) -> list[ActiveFault]:
        """The faults that a request for administration from that address meets."""
        return [each for each in self._faults("management") if is_meant(each, address, "")]

    def _faults(self, plane: str) -> Iterator[ActiveFault]:
        for active in self._namespace.faults.on_now("cannot-contact"):
            if active.fault.plane in ("both", plane) and not (
                plane == "data" and active.fault.how == "gateway-error"
            ):
                yield active


def _shuts_doors(active: ActiveFault) -> bool:
    fault = active.fault
    return fault.how == "refuse" and fault.plane == "both" and not fault.only_clients


def is_meant(active: ActiveFault, address: str, container_id: str) -> bool:
    """Whether a client is one of those that the fault cuts off."""
    only = active.fault.only_clients
    return not only or address.startswith(only) or container_id.startswith(only)


def _container_id_of(peer: Peer) -> str:
    """How the client calls itself; nothing before it has opened the connection."""
    remote = peer.connection.remote_open
    return "" if remote is None else str(remote.container_id)


def address_of(transport: Any) -> str:
    """The client's side of a connection, as ``127.0.0.1:50312``."""
    found = None if transport is None else transport.get_extra_info("peername")
    return f"{found[0]}:{found[1]}" if isinstance(found, tuple) and len(found) >= 2 else ""
