"""The entrance of a namespace, or of the administration: which doors it has and where they lead.

    namespace        port: AMQP, HTTP and TLS       tls_port, if wanted: TLS and nothing else
    administration   port: HTTP and TLS

Rule 1: doors that were shut open again on the ports they had, so that clients find back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twinbus.broker.connection_slots import ConnectionSlots
from twinbus.broker.doors import ConnectionAcceptor, Listener, bind
from twinbus.broker.http_side import HttpServer
from twinbus.broker.namespace import Namespace
from twinbus.broker.offences import ViolationLog
from twinbus.broker.options import BrokerOptions
from twinbus.broker.peer import ClientConnection
from twinbus.broker.tls.keeper import CertificateStore

if TYPE_CHECKING:
    from twinbus.broker.broker import Broker, RunningNamespace


class ListenerSet:
    """Some doors that lead to one place."""

    def __init__(
        self,
        reception: ConnectionAcceptor,
        options: BrokerOptions,
        port: int,
        tls_port: int | None = None,
    ) -> None:
        self.reception = reception
        self._options = options
        self._doors: list[Listener] = []
        self.port = port
        """0 until it was opened for the first time, if a free one is wanted."""
        self.tls_port = tls_port

    async def open(self) -> None:
        """Let people in; raises ConfigurationError when a port cannot be had."""
        host, is_tls_only = self._options.host, self._options.tls_only
        listeners = await bind(host, self.port)
        try:
            tls_listeners = [] if self.tls_port is None else await bind(host, self.tls_port)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        self._doors = [Listener(self.reception, listeners, must_be_tls=is_tls_only)]
        self.port = self._doors[0].port
        if tls_listeners:
            self._doors.append(Listener(self.reception, tls_listeners, must_be_tls=True))
            self.tls_port = self._doors[1].port

    def close_listeners(self) -> None:
        """Let nobody in any more; who is inside stays."""
        for door in self._doors:
            door.close()
        self._doors = []

    async def close(self) -> None:
        """Let nobody in, and send away who waits or speaks HTTP."""
        self.close_listeners()
        await self.reception.close()


def shown_host(host: str) -> str:
    """The name of a host in a connection string: one that clients on this machine can use."""
    if host in ("127.0.0.1", "::1", "", "0.0.0.0", "::"):
        return "localhost"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def entrance_of_namespace(
    namespace: Namespace, tls: CertificateStore, port: int, tls_port: int | None
) -> ListenerSet:
    """AMQP and the administration protocol for one namespace."""
    options = namespace.options

    def now_s() -> float:
        return namespace.now().monotonic_s

    note, note_mistake = _notes(namespace.offences, now_s)

    reception = ConnectionAcceptor(
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
    entrance = ListenerSet(reception, options, port, tls_port)
    namespace.stage.contact.guard(entrance)
    return entrance


def _notes(
    offences: ViolationLog, now_s: Callable[[], float]
) -> tuple[Callable[[str, str], None], Callable[[Exception, str, bool], None]]:
    """How an entrance tells its log what peers do wrong, and what they make go wrong."""

    def note(what: str, address: str) -> None:
        offences.note(what, now_s(), address=address)

    def note_mistake(error: Exception, address: str, is_stranger: bool) -> None:
        offences.note_mistake(
            "a request could not be handled",
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


def entrance_of_administration(
    broker: Broker, make_application: Callable[[], Any], port: int
) -> ListenerSet:
    """The HTTP side of a whole broker."""
    options = broker.options
    offences = ViolationLog("administration")

    note, note_mistake = _notes(offences, time.monotonic)
    reception = ConnectionAcceptor(
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
    return ListenerSet(reception, options, port)


def application_of(namespace: RunningNamespace) -> Any:
    """What answers to HTTP on the ports of a namespace; imported when somebody speaks it."""
    from twinbus.broker.administration.application import namespace_application

    return namespace_application(namespace)


def application_of_broker(broker: Broker) -> Any:
    """What answers on the broker's own HTTP port."""
    from twinbus.broker.admin import admin_application

    return admin_application(broker)
