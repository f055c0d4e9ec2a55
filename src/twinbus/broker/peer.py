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
        up; one that does not read what it asked for is given no more, and not listened to.
Rule 4: a peer has the loop for a short turn, however much it sent; then others have theirs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, cast

from twinbus.amqp.connection import Connection, ConnectionOptions, Phase, Role
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.events import (
    ConnectionClosed,
    CreditChanged,
    DeliveriesReceived,
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
from twinbus.broker.access.sas import Grant
from twinbus.broker.admission import Admission
from twinbus.broker.attaching import AnyEnd, not_here, open_end
from twinbus.broker.cbs import TokenDesk
from twinbus.broker.entities.consumer import Allowance
from twinbus.broker.entities.forwarding import target_of
from twinbus.broker.faults.line import Line
from twinbus.broker.input_gate import ASKING, LEAVING, OUTPUT, STORING, InputGate
from twinbus.broker.namespace import Namespace, disk_failed
from twinbus.broker.receiving import DeliveryLedger, ReceivingEnd
from twinbus.broker.replies import ReplyEnd
from twinbus.broker.sending import SendingEnd
from twinbus.broker.settling import settle

logger = logging.getLogger("twinbus.broker")

# A peer with this much waiting for the disk is not read from; reading resumes at the lower mark.
PENDING_BYTES_HIGH = 8 << 20
PENDING_BYTES_LOW = 2 << 20
# Output that waits for the peer; above it, its receivers are given nothing more.
OUTPUT_BYTES_HIGH = 1 << 20
# Frames that are gathered before they are written: one frame of a peer can have many answers.
OUTPUT_FRAMES_HIGH = 512
# Requests whose answers are being looked up; each answer may have a megabyte.
ASKING_COUNT_MAX = 8

# One read can bring thousands of frames of 5 to 100 microseconds each. After this time the
# others have their turn: with ten such peers an honest one still waits only 30 ms for its own.
# An ordinary read of single messages is done within it.
TURN_S = 0.003
# Frames (or runs of frames) after which the clock is looked at.
FRAMES_BETWEEN_LOOKS = 8
# How long a closed connection waits for the peer to read our last words and close its side.
LINGER_S = 2.0

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
        self.token_desk = TokenDesk(self)
        self._loop = asyncio.get_running_loop()
        self.admission = Admission(self, self._loop)
        self.transport: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None
        self._ends: dict[int, AnyEnd] = {}
        self._ready: dict[AnyEnd, None] = {}
        self._is_flushing = False
        self.input = self._input = InputGate(self._loop, self._work)
        self._pending_bytes = 0
        self._asking_count = 0
        self._handed_bytes = 0
        self._is_write_paused = False
        self._pre_auth_bytes = 0
        self.allowance = Allowance(self.limits.unsettled_per_connection_max, self._has_room)
        self._handshake: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._has_noted_refusal = False
        self.line: Line | None = None
        """Between us and the transport while a fault makes the network bad."""

    # -- transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport, but they are such.
        self.transport = self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=OUTPUT_BYTES_HIGH)
        self._input.opened(transport)
        if len(self.namespace.peers) >= self.namespace.options.connections_max:
            self._note_offence("too many connections")
            transport.abort()
            return
        self.namespace.peers.add(self)
        if not self.namespace.faults.is_calm:
            self.namespace.stage.contact.meet(self)
        self._set_handshake_timer(self.limits.handshake_timeout_s)

    def _handshake_timed_out(self) -> None:
        if self.line is not None and self.line.is_frozen:
            self._set_handshake_timer(self.limits.handshake_timeout_s)
            return
        self._note_offence("a peer did not finish its handshake in time")
        if self.connection.phase is Phase.RUNNING:
            self.cut(
                AmqpError(
                    Condition.UNAUTHORIZED_ACCESS, "No token came in time. Put a token to $cbs."
                )
            )
        elif self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.line is not None and self.line.holds(data):
            return
        if not self.admission.has_token:
            self._pre_auth_bytes += len(data)
            if self._pre_auth_bytes > self.limits.pre_auth_bytes_max:
                self.cut(
                    AmqpError(
                        Condition.UNAUTHORIZED_ACCESS,
                        "Too much was sent before a token. Put a token to $cbs first.",
                    )
                )
                return
        self.connection.feed(data)
        self._work()

    def _work(self) -> None:
        """Act on what was received, for a turn."""
        self.now = self.namespace.now()
        self.connection.heard(self.now.monotonic_s)
        try:
            is_done = self._take_turn()
        except Exception:
            # A mistake of ours. The peer that found it loses its connection, nobody else does.
            logger.exception("namespace %s: a frame could not be handled", self.namespace.name)
            sentence = "The broker could not handle this frame. Its log says why."
            self.cut(AmqpError(Condition.INTERNAL_ERROR, sentence))
            return
        self._input.turn_ended(is_done=is_done)
        self.flush()

    def _take_turn(self) -> bool:
        """Act frame by frame, until everything is done (True) or has to wait (False)."""
        stop_s = time.monotonic() + TURN_S
        connection, gate = self.connection, self._input
        frame_count = 0
        while not gate.reasons:
            events = connection.next_events()
            if events is None:
                return True
            for event in events:
                if type(event) is DeliveriesReceived:
                    self._on_deliveries(event)
                elif type(event) is DeliveryReceived:
                    self._on_delivery(event)
                else:
                    self._on_event(event)
            if connection.output_count > OUTPUT_FRAMES_HIGH:
                self.flush()
            frame_count += 1
            if frame_count % FRAMES_BETWEEN_LOOKS == 0 and time.monotonic() > stop_s:
                break
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.namespace.peers.discard(self)
        self.admission.stop()
        for timer in (self._handshake, self._heartbeat, self._linger):
            if timer is not None:
                timer.cancel()
        self._transport = None
        self.allowance.close()
        for end in list(self._ends.values()):
            end.detached()
        self._ends.clear()
        self.connection.abandon()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._input.stop(OUTPUT)
        self._pause_receivers()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._input.go_on(OUTPUT)
        self._resume_receivers()

    def handed_out(self, size: int) -> None:
        """A receiver was given so many bytes; they are written at the end of the turn."""
        self._handed_bytes += size
        if self._handed_bytes > OUTPUT_BYTES_HIGH:
            self._pause_receivers()

    @property
    def is_output_full(self) -> bool:
        return self._is_write_paused or self._handed_bytes > OUTPUT_BYTES_HIGH

    def _pause_receivers(self) -> None:
        for end in self._ends.values():
            if isinstance(end, ReceivingEnd):
                end.pause()

    def _resume_receivers(self) -> None:
        for end in self._ends.values():
            if isinstance(end, ReceivingEnd):
                end.resume()

    def pause_session(self, session: object) -> None:
        """The peer closed the session's window: none of its receivers gets any more."""
        for end in self._ends_of(session):
            if isinstance(end, ReceivingEnd):
                end.pause()

    def _has_room(self) -> None:
        """Messages were settled while this connection held all that it may hold."""
        self._loop.call_soon(self._wake_receivers)

    def _wake_receivers(self) -> None:
        for end in self._ends.values():
            if isinstance(end, ReceivingEnd):
                end.wake()

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
        transport = self._transport
        if transport is None or self._linger is not None or transport.is_closing():
            return
        if self.connection.has_output:
            (self.line or transport).write(self.connection.take_output())
            self.connection.wrote(self.namespace.now().monotonic_s)
        was_full = self._handed_bytes > OUTPUT_BYTES_HIGH
        self._handed_bytes = 0
        if was_full and not self._is_write_paused:
            self._resume_receivers()
        if self.connection.phase is Phase.CLOSED:
            self._begin_to_leave(transport)

    def _begin_to_leave(self, transport: asyncio.Transport) -> None:
        """Everything is said. To close at once could take back what the peer has not read yet."""
        self._linger = self._loop.call_later(LINGER_S, transport.abort)
        self._input.throw_away()
        if not transport.can_write_eof():
            # In TLS to close is to say goodbye and wait for the answer; twice would break abort().
            if not transport.is_closing():
                transport.close()
            return
        try:
            transport.write_eof()
        except OSError:
            transport.abort()  # The peer is gone; nobody is left to hear anything.

    def cut(self, error: AmqpError | None) -> None:
        """Close the connection from our side, with a reason if there is one."""
        self.connection.close(error)
        self.flush()

    def leave(self) -> None:
        """The broker is about to be gone: last words, and no waiting for the peer."""
        self.cut(None)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """What the peer has not read by now it will not hear."""
        if self._transport is not None:
            self._transport.abort()

    def say_goodbye(self) -> None:
        """The broker stops: no more work from this peer; answers under way still go out."""
        self._input.stop(LEAVING)

    # -- back-pressure --------------------------------------------------------------------

    def began_storing(self, size: int) -> None:
        self._pending_bytes += size
        self.namespace.throttle.pending_bytes += size
        if self._pending_bytes > PENDING_BYTES_HIGH:
            self._input.stop(STORING)

    def ended_storing(self, size: int) -> None:
        self._pending_bytes -= size
        self.namespace.throttle.pending_bytes -= size
        if self._pending_bytes < PENDING_BYTES_LOW and self._input.reasons & STORING:
            self._input.go_on(STORING)

    def began_asking(self) -> None:
        """An answer is being looked up."""
        self._asking_count += 1
        if self._asking_count >= ASKING_COUNT_MAX:
            self._input.stop(ASKING)

    def ended_asking(self) -> None:
        self._asking_count -= 1
        self._input.go_on(ASKING)

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

    def _on_deliveries(self, event: DeliveriesReceived) -> None:
        end = event.link.owner
        if isinstance(end, SendingEnd) and end.take_run(event):
            return
        for single in event.singles():
            self._on_delivery(single)

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
        if self.namespace.failure is not None:
            self.cut(disk_failed())
            return
        self._set_handshake_timer(self.limits.token_timeout_s)
        self._watch_silence()
        if not self.namespace.faults.is_calm:
            self.namespace.stage.contact.meet(self)

    def _set_handshake_timer(self, delay_s: float | None) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        if delay_s is not None:
            self._handshake = self._loop.call_later(delay_s, self._handshake_timed_out)

    def clock_moved(self) -> None:
        """A jump of the clock is no silence, but it is the end of tokens."""
        self.connection.heard(self.namespace.now().monotonic_s)
        self.admission.check()

    def _watch_silence(self) -> None:
        now_s = self.namespace.now().monotonic_s
        if self.line is not None and self.line.is_frozen:
            self.connection.heard(now_s)
        for event in self.connection.handle_timer(now_s):
            self._on_event(event)
        self.flush()
        at_s = self.connection.next_timer_s()
        if at_s is not None and self._transport is not None:
            delay_s = max(0.1, at_s - now_s)
            self._heartbeat = self._loop.call_later(delay_s, self._watch_silence)

    def _on_closed(self, event: ConnectionClosed) -> None:
        if event.error is not None and not event.is_remote:
            self._note_offence(f"a connection was closed: {event.error.condition}")

    def _note_offence(self, what: str) -> None:
        self.namespace.offences.note(what, self.namespace.now().monotonic_s)

    # -- ends -----------------------------------------------------------------------------

    def keep(self, link: Any, end: AnyEnd) -> None:
        """A link was accepted; ``end`` is our side of it."""
        self._ends[id(link)] = end
        link.owner = end
        end.opened()
        self.admission.watch(end)

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

    def granted(self, grant: Grant) -> None:
        """A token was shown."""
        self.admission.grant(grant)
        self._set_handshake_timer(None)

    def note_refusal(self, what: str) -> None:
        """One line in the log for a peer that tries its luck, however often it does."""
        if not self._has_noted_refusal:
            self._has_noted_refusal = True
            self._note_offence(what)

    def recheck(self) -> None:
        """Keys, rules or queues changed: detach what is no longer allowed or there."""
        self.admission.drop_unbacked()
        for link, end in self.links_and_ends():
            queue = getattr(end, "queue", None)
            if queue is not None and queue.is_deleted:
                self.detach(link, AmqpError(Condition.NOT_FOUND, "The queue was deleted."))
            elif isinstance(end, ReceivingEnd) and target_of(end.queue) is not None:
                self.detach(link, not_here(end.queue))
        self.flush()

    def links_and_ends(self) -> list[tuple[Any, AnyEnd]]:
        links = [link for s in self.connection.sessions.values() for link in s.links.values()]
        return [(link, self._ends[id(link)]) for link in links if id(link) in self._ends]

    def detach(self, link: Any, error: AmqpError) -> None:
        """End a link from our side."""
        self._forget(link)
        if link.is_attached:
            link.detach(error)
        else:
            link.refuse(error)
