"""One client connection: protocol events in, queue machines and replies out.

    socket --> Connection (sans I/O) --> events --> the end of a link
                                                      SendingEnd    client sends to a queue
                                                      ReceivingEnd  client receives from a queue
                                                      RequestEnd    client asks $cbs, $management
                                                      ReplyEnd      ... and is answered

Rule 1: whatever one peer does, only that peer hears of it: errors become AMQP errors on its
        own link, session or connection.
Rule 2: a peer is granted nothing before it has shown a token, and only while the token lives.
Rule 3: a peer that sends faster than the disk can write is not read from until it has caught
        up; one that does not read what it asked for is given no more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from twinbus.amqp.connection import Connection, ConnectionOptions, Phase, Role
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.events import (
    ConnectionClosed,
    CreditChanged,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    Opened,
    SessionBegun,
    SessionEnded,
    WindowOpened,
)
from twinbus.broker.access.claims import Claim
from twinbus.broker.access.grants import Grants
from twinbus.broker.access.sas import Audience, Grant
from twinbus.broker.attaching import AnyEnd, open_end
from twinbus.broker.cbs import TokenDesk
from twinbus.broker.receiving import DeliveryLedger, ReceivingEnd
from twinbus.broker.replies import ReplyEnd
from twinbus.broker.settling import settle

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace

logger = logging.getLogger("twinbus.broker")

# A peer with this much waiting for the disk is not read from; reading resumes at the lower mark.
PENDING_BYTES_HIGH = 8 << 20
PENDING_BYTES_LOW = 2 << 20
# Output that waits for the peer; above it, its receivers are given nothing more.
OUTPUT_BYTES_HIGH = 1 << 20

CONTAINER_ID = "twinbus"


class Peer(asyncio.Protocol):
    """The broker's side of one connection."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.limits = namespace.options.limits
        self.connection = Connection(
            Role.SERVER, ConnectionOptions(container_id=CONTAINER_ID, limits=self.limits)
        )
        self.now = namespace.now()
        """When the bytes being worked on arrived: one look at the clock for all of them."""
        self.grants = Grants()
        self._listens_until_s: dict[str, int] = {}
        self.token_desk = TokenDesk(self)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ends: dict[int, AnyEnd] = {}
        self._ready: dict[AnyEnd, None] = {}
        self._is_flushing = False
        self._pending_bytes = 0
        self._is_reading = True
        self._pre_auth_bytes = 0
        self._handshake: asyncio.TimerHandle | None = None
        self._access_timer: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._has_noted_refusal = False

    # -- transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport, but they are such.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=OUTPUT_BYTES_HIGH)
        if len(self.namespace.peers) >= self.namespace.options.connections_max:
            logger.warning("namespace %s has too many connections", self.namespace.name)
            transport.abort()
            return
        self.namespace.peers.add(self)
        timeout_s = self.limits.handshake_timeout_s
        self._handshake = self._loop.call_later(timeout_s, self._handshake_timed_out)

    def _handshake_timed_out(self) -> None:
        if self.connection.phase is not Phase.RUNNING and self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not len(self.grants):
            self._pre_auth_bytes += len(data)
            if self._pre_auth_bytes > self.limits.pre_auth_bytes_max:
                self.cut(
                    AmqpError(
                        Condition.UNAUTHORIZED_ACCESS,
                        "Too much was sent before a token. Put a token to $cbs first.",
                    )
                )
                return
        self.now = self.namespace.now()
        self.connection.heard(self.now.monotonic_s)
        for event in self.connection.receive(data):
            if type(event) is DeliveryReceived:
                self._on_delivery(event)
            else:
                self._on_event(event)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.namespace.peers.discard(self)
        for timer in (self._handshake, self._access_timer, self._heartbeat):
            if timer is not None:
                timer.cancel()
        self._transport = None
        for end in list(self._ends.values()):
            end.detached()
        self._ends.clear()

    def pause_writing(self) -> None:
        for end in self._ends.values():
            if isinstance(end, ReceivingEnd):
                end.pause()

    def resume_writing(self) -> None:
        for end in self._ends.values():
            if isinstance(end, ReceivingEnd):
                end.resume()

    # -- output ---------------------------------------------------------------------------

    def wants_flush(self, end: AnyEnd | None = None) -> None:
        """Something is to be written: at the end of this turn of the loop."""
        if end is not None:
            self._ready[end] = None
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._is_flushing = False
        ready, self._ready = self._ready, {}
        for end in ready:
            end.flush()
        if self._transport is None or self._transport.is_closing():
            return
        if self.connection.has_output:
            self._transport.write(self.connection.take_output())
            self.connection.wrote(self.namespace.now().monotonic_s)
        if self.connection.phase is Phase.CLOSED:
            self._transport.close()

    def cut(self, error: AmqpError | None) -> None:
        """Close the connection from our side, with a reason if there is one."""
        self.connection.close(error)
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def say_goodbye(self) -> None:
        """The broker stops: no more work from this peer; answers under way still go out."""
        if self._transport is not None and self._is_reading:
            self._transport.pause_reading()
            self._is_reading = False

    # -- back-pressure --------------------------------------------------------------------

    def began_storing(self, size: int) -> None:
        self._pending_bytes += size
        self.namespace.throttle.pending_bytes += size
        if self._is_reading and self._pending_bytes > PENDING_BYTES_HIGH and self._transport:
            self._is_reading = False
            self._transport.pause_reading()

    def ended_storing(self, size: int) -> None:
        self._pending_bytes -= size
        self.namespace.throttle.pending_bytes -= size
        if not self._is_reading and self._pending_bytes < PENDING_BYTES_LOW and self._transport:
            self._is_reading = True
            self._transport.resume_reading()

    # -- events ---------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case DeliveryReceived():
                self._on_delivery(event)
            case DispositionReceived():
                if event.role:
                    settle(self.namespace, self.ledger(event.session), event)
            case CreditChanged():
                self._on_credit(event)
            case LinkAttached():
                open_end(self, event.link)
            case LinkDetached():
                self._forget(event.link)
            case WindowOpened():
                for end in self._ends_of(event.session):
                    if isinstance(end, ReceivingEnd | ReplyEnd):
                        end.resume()
            case SessionEnded():
                for link in list(event.session.links.values()):
                    self._forget(link)
            case Opened():
                self._on_opened()
            case SessionBegun():
                event.session.owner = DeliveryLedger()
            case ConnectionClosed():
                self._on_closed(event)

    def _on_delivery(self, event: DeliveryReceived) -> None:
        end = event.link.owner
        if end is None:
            return
        try:
            end.on_delivery(event)
        except AmqpError as error:
            event.link.detach(error)
            self._forget(event.link)

    def _on_credit(self, event: CreditChanged) -> None:
        end = self._ends.get(id(event.link))
        if isinstance(end, ReceivingEnd | ReplyEnd):
            try:
                end.on_credit()
            except AmqpError as error:
                event.link.detach(error)
                self._forget(event.link)

    def _on_opened(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        self._watch_silence()

    def _watch_silence(self) -> None:
        now_s = self.namespace.now().monotonic_s
        for event in self.connection.handle_timer(now_s):
            self._on_event(event)
        self.flush()
        at_s = self.connection.next_timer_s()
        if at_s is not None and self._transport is not None:
            delay_s = max(0.1, at_s - now_s)
            self._heartbeat = self._loop.call_later(delay_s, self._watch_silence)

    def _on_closed(self, event: ConnectionClosed) -> None:
        if event.error is not None:
            logger.info("a connection was closed: %s", event.error.condition)

    # -- ends -----------------------------------------------------------------------------

    def keep(self, link: Any, end: AnyEnd) -> None:
        """A link was accepted; ``end`` is our side of it."""
        self._ends[id(link)] = end
        link.owner = end
        end.opened()
        self._set_access_timer()

    def _forget(self, link: Any) -> None:
        end = self._ends.pop(id(link), None)
        link.owner = None
        if end is not None:
            end.detached()

    def _ends_of(self, session: object) -> list[AnyEnd]:
        links = getattr(session, "links", {})
        return [self._ends[id(link)] for link in links.values() if id(link) in self._ends]

    def ledger(self, session: Any) -> DeliveryLedger:
        ledger: DeliveryLedger = session.owner
        return ledger

    def reply_end(self, session: object, path: str, reply_to: str | None) -> ReplyEnd | None:
        """Where the answer to a request on node ``path`` goes."""
        ends = [end for end in self._ends_of(session) if isinstance(end, ReplyEnd)]
        for wanted in (reply_to, None):
            for end in ends:
                if end.matches(session, path, wanted):
                    return end
        return None

    # -- access ---------------------------------------------------------------------------

    def audience(self) -> Audience:
        """The names a token for this connection may be made out to."""
        remote = self.connection.remote_open
        hostname = remote.hostname if remote is not None else None
        if hostname is not None and hostname.count(":") == 1:
            hostname = hostname.partition(":")[0]
        return self.namespace.audience.known_as(hostname)

    def granted(self, grant: Grant) -> None:
        self._listens_until_s.clear()
        self.grants.add(grant, now_s=self._wall_s())
        self._set_access_timer()

    def demand(self, path: str, claim: Claim) -> None:
        """Raise unless this connection has shown a token that covers it."""
        if not self.grants.allows(path, claim, now_s=self._wall_s()):
            raise AmqpError(
                Condition.UNAUTHORIZED_ACCESS,
                f"The claim {claim.names()[0]} on {path!r} is missing or has expired. "
                "Use a key whose rule has it.",
            )

    def may_listen(self, path: str) -> bool:
        """Whether the claim Listen covers the path now; asked for every settlement."""
        until_s = self._listens_until_s.get(path)
        now_s = self.now.wall_ms / 1000
        if until_s is None:
            until_s = self.grants.allowed_until_s(path, Claim.LISTEN, now_s=now_s) or 0
            self._listens_until_s[path] = until_s
        return until_s > now_s

    def note_refusal(self, what: str) -> None:
        """One line in the log for a peer that tries its luck, however often it does."""
        if not self._has_noted_refusal:
            self._has_noted_refusal = True
            logger.warning("namespace %s: %s", self.namespace.name, what)

    def recheck(self) -> None:
        """Keys, rules or queues changed: detach what is no longer allowed or there."""
        self._listens_until_s.clear()
        self.grants.drop_unbacked(self.namespace.rules_for)
        self._check_access()
        for link in self._links():
            end = self._ends.get(id(link))
            queue = getattr(end, "queue", None)
            if queue is not None and queue.is_deleted:
                self._detach(link, AmqpError(Condition.NOT_FOUND, "The queue was deleted."))
        self.flush()

    def _links(self) -> list[Any]:
        return [link for s in self.connection.sessions.values() for link in s.links.values()]

    def _detach(self, link: Any, error: AmqpError) -> None:
        self._forget(link)
        link.detach(error)

    def _check_access(self) -> None:
        """Detach every link whose token has run out or whose key is gone."""
        for link in self._links():
            end = self._ends.get(id(link))
            if end is None or end.claim is None:
                continue
            if not self.grants.allows(end.path, end.claim, now_s=self._wall_s()):
                error = AmqpError(
                    Condition.UNAUTHORIZED_ACCESS,
                    "The token has expired or its key was changed. Put a new token to $cbs.",
                )
                self._detach(link, error)
        self.flush()
        self._set_access_timer()

    def _set_access_timer(self) -> None:
        if self._access_timer is not None:
            self._access_timer.cancel()
            self._access_timer = None
        now_s = self._wall_s()
        ends = [
            self.grants.allowed_until_s(end.path, end.claim, now_s=now_s) or now_s
            for end in self._ends.values()
            if end.claim is not None
        ]
        if ends:
            delay_s = max(0.0, min(ends) - now_s)
            self._access_timer = self._loop.call_later(delay_s, self._check_access)

    def _wall_s(self) -> float:
        return self.namespace.now().wall_ms / 1000
