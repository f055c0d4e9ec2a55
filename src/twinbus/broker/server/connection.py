"""One client connection: protocol events to the handlers of its links, and their replies.

    socket --> Connection (sans I/O) --> events --> the handler of a link
                                                      IncomingLink   client sends to a queue
                                                      OutgoingLink   client receives from a queue
                                                      RequestLink    requests to $cbs, $management
                                                      ReplyLink      ... and their replies

Rule 1: whatever one client does, only that client is affected: errors become AMQP errors on its
        own link, session or connection.
Rule 2: a client is granted nothing before it has sent a token, and only while the token is valid.
Rule 3: a client that sends faster than the disk can write is not read from until its messages are
        stored; one that does not read its messages gets no more, and is not read from.
Rule 4: a client has the loop for a short turn, however much it sent; then others have theirs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import islice
from typing import Any, cast

from twinbus.amqp.connection import Connection, ConnectionOptions, ConnectionState, Role
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.events import (
    ConnectionClosed,
    CreditChanged,
    DeliveriesReceived,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetachedEvent,
    Opened,
    SessionBegun,
    SessionEnded,
    WindowOpened,
)
from twinbus.broker.access.sas import AccessGrant
from twinbus.broker.engine.forwarding import target_of
from twinbus.broker.fairness.buffered_bytes import (
    OUTPUT_BYTES_COUNTED,
    OUTPUT_BYTES_HIGH,
    BufferedInput,
    BufferedOutput,
)
from twinbus.broker.fairness.connection_slots import EVICTED, Slot
from twinbus.broker.fairness.loop_turns import TURN_S
from twinbus.broker.faults.degraded_connection import DegradedConnection
from twinbus.broker.faults.network import address_of
from twinbus.broker.namespace.namespace import Namespace, disk_failed
from twinbus.broker.read_gate import ASKING, LEAVING, OUTPUT, STORING, ReadGate
from twinbus.broker.server.attach import AnyLinkHandler, forwarded_error, handle_attach
from twinbus.broker.server.authorization import CbsNode, ConnectionAuthorization
from twinbus.broker.server.incoming_link import IncomingLink
from twinbus.broker.server.outgoing_link import (
    OutgoingLink,
    SharedUnsettledQuota,
    UnsettledDeliveries,
)
from twinbus.broker.server.request_reply import ReplyLink
from twinbus.broker.server.settlement import settle

# A client with this much waiting for the disk is not read from; reading resumes at the lower mark.
PENDING_BYTES_HIGH = 8 << 20
PENDING_BYTES_LOW = 2 << 20
# Frames that are collected before they are written: one frame of a client can have many answers.
OUTPUT_FRAMES_HIGH = 512
# Requests whose replies are being read; each reply may have a megabyte.
ASKING_COUNT_MAX = 8

# Before its first token a client has a shorter turn, and the clock is read after each frame.
STRANGER_TURN_S = 0.0005
# Small frames (or runs of them) after which the clock is read.
FRAMES_BETWEEN_CLOCK_READS = 8
# A frame counts as one more for this many bytes of its payload: as short annotations they take a
# sixth of a millisecond.
FRAME_BYTES = 512
# How long a closed connection waits for the client to read the last frames and close its side.
LINGER_S = 2.0

CONTAINER_ID = "twinbus"


class ClientConnection(asyncio.Protocol):
    """The broker's side of one connection."""

    def __init__(self, namespace: Namespace, slot: Slot | None = None) -> None:
        """``slot`` is the connection's slot; None where connections are not counted."""
        self.namespace = namespace
        self.limits = namespace.options.limits
        self.connection = Connection(
            Role.SERVER,
            ConnectionOptions(
                container_id=CONTAINER_ID,
                limits=self.limits,
                early_limits=self.limits.before_token(),
            ),
        )
        self._slot = slot
        self.now = namespace.now()
        """When the bytes of this turn are handled: the clock is read once for all of them."""
        self.cbs_node = CbsNode(self)
        self._loop = asyncio.get_running_loop()
        self.authorization = ConnectionAuthorization(self, self._loop)
        self.transport: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None
        self._ends: dict[int, AnyLinkHandler] = {}
        self._ready: dict[AnyLinkHandler, None] = {}
        self._is_flushing = False
        self.turns = namespace.turns.join()
        self.input = self._input = ReadGate(self.turns, self._work)
        self.pending = namespace.throttle.pending.join()
        """The bytes that it sent and that are not on disk yet."""
        self._stored_bytes = 0
        """The bytes that it sent in this turn and that are to be stored."""
        self._has_its_share = False
        """Its key may store no more for the moment."""
        self.turn_ends_s = math.inf
        """When interruptible work should stop; never, outside of a turn."""
        self.unfinished: Callable[[float], bool] | None = None
        """Continues a delivery that takes longer than a turn; nothing else is done before."""
        self._rest: Iterator[DeliveryReceived] | None = None
        """Deliveries that were received together and have to be checked one by one."""
        self._buffered = BufferedInput(
            namespace.input, self._input, self._loop, self._has_no_room_left
        )
        self.output = BufferedOutput(namespace.output)
        self._is_counting_output = False
        """The transport has so many bytes to write that they are counted."""
        self.reader_place = namespace.reader_turns.join(self._may_have_more)
        self._rights_version = namespace.rights_version
        self._checks: Iterator[None] | None = None
        """Links that are still to be checked, because rights, queues or tokens have changed."""
        self._asking_count = 0
        self._handed_bytes = 0
        self._is_write_paused = False
        self._pre_auth_bytes = 0
        self.allowance = SharedUnsettledQuota(
            self.limits.unsettled_per_connection_max, self._has_room, namespace.unsettled
        )
        self.links = namespace.links.join()
        self._handshake: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._has_noted_refusal = False
        self._had_grants = False
        self._is_authenticated = False
        self.address = ""
        """The address of the client, for the log."""
        self.line: DegradedConnection | None = None
        """Between this and the transport while there is a network fault."""

    # -- transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport, but have its interface.
        self.transport = self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=OUTPUT_BYTES_COUNTED)
        self._input.opened(transport)
        self.address = address_of(transport).rpartition(":")[0]
        if self._slot is not None:
            if not self._slot.is_taken:
                transport.abort()  # It was evicted just before this.
                return
            self._slot.evict = self._evicted
            self._slot.is_owed = self._has_backlog
        self.namespace.peers.add(self)
        if not self.namespace.faults.has_no_faults:
            self.namespace.fault_effects.network.apply(self)
        self._set_handshake_timer(self.limits.handshake_timeout_s)

    def _evicted(self) -> None:
        """Another connection needs the slot: close this one without a close frame."""
        self._log_violation(EVICTED)
        self.abort()

    def _has_backlog(self) -> bool:
        return self._input.has_backlog

    def _handshake_timed_out(self) -> None:
        if self.line is not None and self.line.is_frozen:
            self._set_handshake_timer(self.limits.handshake_timeout_s)
            return
        self._log_violation("a client did not finish its handshake in time")
        if self.connection.phase is ConnectionState.RUNNING:
            self.cut(_no_token_in_time(had_one=self._had_grants))
        elif self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.line is not None and self.line.holds(data):
            return
        if not self.authorization.has_token:
            self._pre_auth_bytes += len(data)
            if self._pre_auth_bytes > self.limits.pre_auth_bytes_max:
                self.cut(
                    AmqpError(
                        Condition.UNAUTHORIZED_ACCESS,
                        "Too many bytes were sent before a token. Send a token to $cbs first.",
                    )
                )
                return
        self.connection.feed(data)
        if self.turns.is_free:
            self._work()
        else:
            self._input.wait()

    def _work(self) -> None:
        """Act on what was received, for a turn."""
        self.now = self.namespace.now()
        self.connection.note_read(self.now.monotonic_s)
        is_outdated = self._rights_version != self.namespace.rights_version
        if (is_outdated or self._checks) and not self.recheck(time.monotonic() + TURN_S):
            # No operation uses a claim that may have been removed.
            self._input.turn_ended(is_done=False)
            return
        try:
            is_done = self._take_turn()
        except Exception as error:
            # A defect of the broker. Only the client that caused it loses its connection.
            self.namespace.violations.note_mistake(
                "a frame could not be handled",
                error,
                self.now.monotonic_s,
                address=self.address,
                is_stranger=not self._is_authenticated,
            )
            sentence = "The broker could not handle this frame. See the log of the broker."
            self.cut(AmqpError(Condition.INTERNAL_ERROR, sentence))
            return
        self._input.turn_ended(is_done=is_done)
        if is_done:
            # Complete frames that wait for their turn are one read at most, and do not count.
            unfinished = self.connection.unfinished_bytes
            if unfinished or self._buffered.holder.used:
                self._buffered.holds(unfinished)
        self.flush()

    def _has_no_room_left(self) -> None:
        self._log_violation("a client has too many unfinished frames and deliveries")
        self.cut(
            AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                "Too many bytes of unfinished frames and deliveries are held for your key. "
                "Finish them first.",
            )
        )

    def _take_turn(self) -> bool:
        """Act frame by frame, until everything is done (True) or has to wait (False)."""
        began_s = time.monotonic()
        try:
            turn_s = min(TURN_S, self.turns.turn_s) if self._is_authenticated else STRANGER_TURN_S
            return self._act(began_s + turn_s)
        finally:
            self.turn_ends_s = math.inf
            scarce_bytes = 0.0
            if self._stored_bytes:
                scarce_bytes = self._stored_bytes * self.namespace.throttle.pending.scarcity
                self._stored_bytes = 0
            self.turns.spent(time.monotonic() - began_s, scarce_bytes)

    def _act(self, stop_s: float) -> bool:
        connection, gate = self.connection, self._input
        self.turn_ends_s = stop_s
        self._has_its_share = False
        weight, weight_max = 0, FRAMES_BETWEEN_CLOCK_READS if self._is_authenticated else 1
        while not gate.reasons and not self._has_its_share:
            if (self._rest is not None or self.unfinished is not None) and not self._go_on():
                break
            events = connection.next_events()
            if events is None:
                return True
            weight += 1
            for event in events:
                if type(event) is DeliveriesReceived:
                    self._on_deliveries(event)
                elif type(event) is DeliveryReceived:
                    self._on_delivery(event)
                    weight += len(event.payload) // FRAME_BYTES
                else:
                    self._on_event(event)
                    weight += 1
            if connection.output_count > OUTPUT_FRAMES_HIGH:
                self.flush()
            if weight >= weight_max:
                weight = 0
                if time.monotonic() > stop_s:
                    break
        return False

    def _go_on(self) -> bool:
        """Continue unfinished work; whether all of it is done."""
        stop_s = self.turn_ends_s
        while True:
            if self.unfinished is not None:
                if not self.unfinished(stop_s):
                    return False
                self.unfinished = None
            single = None if self._rest is None else next(self._rest, None)
            if single is None:
                self._rest = None
                return True
            self._on_delivery(single)
            if self._input.reasons or self._has_its_share or time.monotonic() > stop_s:
                return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.namespace.peers.discard(self)
        if self._slot is not None:
            self._slot.leave()
        self.authorization.stop()
        for timer in (self._handshake, self._heartbeat, self._linger):
            if timer is not None:
                timer.cancel()
        self._transport = None
        self.unfinished = self._rest = self._checks = None
        self.turns.leave()
        self.namespace.throttle.pending.leave(self.pending)
        self._buffered.close()
        self.allowance.close()
        for end in list(self._ends.values()):
            self.namespace.note_link(end.path, -1)
            end.detached()
        self.namespace.links.give_back(self.links, len(self._ends))
        self.namespace.links.leave(self.links)
        self._ends.clear()
        self.output.close()
        self.reader_place.close()
        self.connection.abandon()
        self._release()

    def _release(self) -> None:
        """Break the reference cycles of this connection: pending callbacks need none of this, and
        objects in cycles would wait for the garbage collector."""
        self._handshake = self._heartbeat = self._linger = None
        self._input.close()
        self.transport = self.line = None
        del self.authorization, self.cbs_node, self.allowance, self._buffered

    def pause_writing(self) -> None:
        self._is_counting_output = True
        self._count_output()

    def resume_writing(self) -> None:
        self._is_counting_output = False
        self.output.wrote(0)
        if self._is_write_paused:
            self._is_write_paused = False
            if self._transport is not None:
                # The bytes that still wait are counted again, and may be too many for its key.
                self._transport.set_write_buffer_limits(high=OUTPUT_BYTES_COUNTED)
            if not self._is_write_paused:
                self._input.go_on(OUTPUT)
                self._resume_receivers()
        self.reader_place.start_waiting()

    def _count_output(self) -> None:
        """Count the bytes that the client has not read yet; above a limit its receivers pause."""
        transport = self._transport
        if transport is None:
            return
        size = transport.get_write_buffer_size()
        if not self.output.wrote(size) and not self._is_write_paused:
            self._is_write_paused = True
            if size >= OUTPUT_BYTES_HIGH:
                # Only fast receivers reach this: they resume before all of it is read.
                transport.set_write_buffer_limits(high=OUTPUT_BYTES_HIGH)
            self._input.stop(OUTPUT)
            self._pause_receivers()

    def handed_out(self, size: int) -> None:
        """``size`` bytes were delivered; they are written at the end of the turn."""
        self._handed_bytes += size
        if self._handed_bytes > OUTPUT_BYTES_COUNTED and self._has_enough:
            self._pause_receivers()

    @property
    def _has_enough(self) -> bool:
        """The delivered bytes that are not written yet have reached the limit."""
        handed = self._handed_bytes
        return handed > OUTPUT_BYTES_HIGH or (
            handed > OUTPUT_BYTES_COUNTED and not self.output.has_room
        )

    @property
    def is_output_full(self) -> bool:
        return self._is_write_paused or self._has_enough

    def _may_have_more(self) -> bool:
        """Whether the client reads its replies."""
        return not self._is_counting_output and self.output.may_keep_replies

    def _pause_receivers(self) -> None:
        for end in self._ends.values():
            if isinstance(end, OutgoingLink):
                end.pause()

    def _resume_receivers(self) -> None:
        for end in self._ends.values():
            if isinstance(end, OutgoingLink):
                end.resume()

    def pause_session(self, session: object) -> None:
        """The client closed the session's window: its receivers get no more messages."""
        for end in self._ends_of(session):
            if isinstance(end, OutgoingLink):
                end.pause()

    def _has_room(self) -> None:
        """Messages were settled while this connection was at its limit."""
        self._loop.call_soon(self._wake_receivers)

    def _wake_receivers(self) -> None:
        for end in self._ends.values():
            if isinstance(end, OutgoingLink):
                end.credit_available()

    # -- output ---------------------------------------------------------------------------

    def wants_flush(self, end: AnyLinkHandler | None = None) -> None:
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
            self.connection.note_write(self.namespace.now().monotonic_s)
            if self._is_counting_output:
                self._count_output()
        was_handed_much = self._handed_bytes > OUTPUT_BYTES_COUNTED
        self._handed_bytes = 0
        if was_handed_much and not self._is_write_paused:
            self._resume_receivers()
        if self.connection.phase is ConnectionState.CLOSED:
            self._begin_to_leave(transport)

    def _begin_to_leave(self, transport: asyncio.Transport) -> None:
        """All frames are written. To close at once could discard bytes that are not read yet."""
        self._linger = self._loop.call_later(LINGER_S, transport.abort)
        self._input.throw_away()
        if not transport.can_write_eof():
            # In TLS a close waits for the other side; a second one would break abort().
            if not transport.is_closing():
                transport.close()
            return
        try:
            transport.write_eof()
        except OSError:
            transport.abort()  # The client has disconnected.

    def cut(self, error: AmqpError | None) -> None:
        """Close the connection from the broker's side, with an error if there is one."""
        self.connection.close(error)
        self.flush()

    def leave(self) -> None:
        """The broker closes: send a close frame, and do not wait for the client."""
        self.cut(None)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Close the transport at once; bytes that are not sent are lost."""
        if self._transport is not None:
            self._transport.abort()

    def stop_reading(self) -> None:
        """The broker stops: read no more from this client; pending answers are still sent."""
        self._input.stop(LEAVING)

    # -- back-pressure --------------------------------------------------------------------

    def began_storing(self, load: int) -> None:
        """``load`` bytes wait for the disk; see MESSAGE_OVERHEAD_BYTES."""
        holder, shared = self.pending, self.namespace.throttle.pending
        shared.take(holder, load)
        self._stored_bytes += load
        if holder.used > PENDING_BYTES_HIGH:
            self._input.stop(STORING)
        elif shared.used >= shared.capacity:
            self._has_its_share = not shared.has_room(holder.account)

    def ended_storing(self, load: int) -> None:
        holder = self.pending
        self.namespace.throttle.pending.give_back(holder, load)
        if holder.used < PENDING_BYTES_LOW and self._input.reasons & STORING:
            self._input.go_on(STORING)
        self.namespace.turns.release()

    def began_asking(self) -> None:
        """The reply to a request is being read."""
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
                    ledger = self.ledger(event.session)
                    self.unfinished = settle(self.namespace, ledger, event, self.turn_ends_s)
            case CreditChanged():
                self._on_credit(event)
            case LinkAttached():
                self._advanced()
                handle_attach(self, event.link)
            case LinkDetachedEvent():
                self._forget(event.link)
            case WindowOpened():
                for end in self._ends_of(event.session):
                    if isinstance(end, OutgoingLink | ReplyLink):
                        end.resume()
            case SessionEnded():
                for link in list(event.session.links.values()):
                    self._forget(link)
            case Opened():
                self._advanced()
                self._on_opened()
            case SessionBegun():
                self._advanced()
                if self._slot is not None:
                    self._slot.has_session = True
                event.session.owner = UnsettledDeliveries()
            case ConnectionClosed():
                self._on_closed(event)

    def _advanced(self) -> None:
        """A connection that continues its handshake is evicted later than one that waits."""
        if not self._is_authenticated and self._slot is not None:
            self._slot.advanced()

    def _on_deliveries(self, event: DeliveriesReceived) -> None:
        end = event.link.owner
        taken = end.take_run(event) if isinstance(end, IncomingLink) else 0
        if taken < len(event.payloads):
            # Each of them may be a batch that needs a turn of its own.
            self._rest = islice(event.singles(), taken, None)

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
        if isinstance(end, OutgoingLink | ReplyLink):
            try:
                end.on_credit()
            except AmqpError as error:
                event.link.detach(error)
                self._forget(event.link)

    def _on_opened(self) -> None:
        if self.namespace.failure is not None:
            self.cut(disk_failed())
            return
        self._set_handshake_timer(self._token_timeout_s())
        self._watch_silence()
        if not self.namespace.faults.has_no_faults:
            self.namespace.fault_effects.network.apply(self)

    def _set_handshake_timer(self, delay_s: float | None) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        if delay_s is not None:
            self._handshake = self._loop.call_later(delay_s, self._handshake_timed_out)

    def _token_timeout_s(self) -> float:
        """When slots are scarce, the deadline of the token is that of the open."""
        if self._slot is not None and self._slot.is_pressed:
            return min(self.limits.handshake_timeout_s, self.limits.token_timeout_s)
        return self.limits.token_timeout_s

    def clock_moved(self) -> None:
        """A jump of the clock does not count as idle time, but tokens may have expired."""
        self.connection.note_read(self.namespace.now().monotonic_s)
        self.check()

    def _watch_silence(self) -> None:
        now_s = self.namespace.now().monotonic_s
        if self.line is not None and self.line.is_frozen:
            self.connection.note_read(now_s)
        for event in self.connection.handle_timer(now_s):
            self._on_event(event)
        self.flush()
        at_s = self.connection.next_timer_s()
        if at_s is not None and self._transport is not None:
            delay_s = max(0.1, at_s - now_s)
            self._heartbeat = self._loop.call_later(delay_s, self._watch_silence)

    def _on_closed(self, event: ConnectionClosed) -> None:
        if event.error is not None and not event.is_remote:
            self._log_violation(f"a connection was closed: {event.error.condition}")

    def _log_violation(self, what: str) -> None:
        now_s = self.namespace.now().monotonic_s
        self.namespace.violations.note(what, now_s, address=self.address)

    # -- links ----------------------------------------------------------------------------

    def keep(self, link: Any, end: AnyLinkHandler) -> None:
        """A link was accepted; ``end`` is its handler."""
        if id(link) not in self._ends:
            self.namespace.links.take(self.links, 1)
            self.namespace.note_link(end.path, 1)
        self._ends[id(link)] = end
        link.owner = end
        end.opened()
        self.authorization.watch(end)

    def _forget(self, link: Any) -> None:
        end = self._ends.pop(id(link), None)
        link.owner = None
        if end is not None:
            self.namespace.links.give_back(self.links, 1)
            self.namespace.note_link(end.path, -1)
            end.detached()

    def _ends_of(self, session: object) -> list[AnyLinkHandler]:
        links = getattr(session, "links", {})
        return [self._ends[id(link)] for link in links.values() if id(link) in self._ends]

    def ledger(self, session: Any) -> UnsettledDeliveries:
        ledger: UnsettledDeliveries = session.owner
        return ledger

    def reply_end(self, session: object, path: str, reply_to: str | None) -> ReplyLink | None:
        """The link for the reply to a request on node ``path``."""
        ends = [end for end in self._ends_of(session) if isinstance(end, ReplyLink)]
        for wanted in (reply_to, None):
            for end in ends:
                if end.matches(session, path, wanted):
                    return end
        return None

    # -- access ---------------------------------------------------------------------------

    def granted(self, grant: AccessGrant) -> bool:
        """A token was verified; False when the connection limit is reached."""
        if not self._is_authenticated and not self._authenticate(grant):
            return False
        if not self.authorization.has_token:
            self._use_key((self.namespace.name, grant.scope, grant.rule_name))
        self.authorization.grant(grant)
        self._set_handshake_timer(None)
        return True

    def _authenticate(self, grant: AccessGrant) -> bool:
        """With its first token a connection is authenticated."""
        key = grant.scope, grant.rule_name
        if self._slot is not None and not self._slot.authenticate(key):
            self._log_violation("too many connections")
            self.cut(
                AmqpError(
                    Condition.RESOURCE_LIMIT_EXCEEDED,
                    "The connection limit is reached: "
                    f"{self.namespace.options.connections_max} in the namespace, of which each "
                    "key has a share. Close other connections.",
                )
            )
            return False
        self._is_authenticated = True
        self.connection.lift_limits()
        return True

    def lost_all_grants(self) -> None:
        """Nothing is granted any more: the deadline and the byte limit for a token restart."""
        if self._handshake is None and self.connection.phase is ConnectionState.RUNNING:
            self._pre_auth_bytes, self._had_grants = 0, True
            self._set_handshake_timer(self.limits.token_timeout_s)

    def _use_key(self, key: Hashable) -> None:
        """From now on its usage counts for the key of its first token."""
        namespace, pending = self.namespace, self.namespace.throttle.pending
        pending.move(self.pending, key)
        namespace.links.move(self.links, key)
        namespace.unsettled.move(self.allowance.holder, key)
        namespace.input.move(self._buffered.holder, key)
        namespace.output.move(self.output.holder, key)
        namespace.reader_turns.shared.move(self.reader_place.holder, key)
        self.turns.use_key(key, partial(pending.has_room, self.pending.account))

    def note_refusal(self, what: str) -> None:
        """Write one line to the log for a client with refused tokens, however many they are."""
        if not self._has_noted_refusal:
            self._has_noted_refusal = True
            self._log_violation(what)

    def recheck(self, stop_s: float = math.inf) -> bool:
        """Keys, rules or queues changed: detach links that are no longer allowed.

        Returns whether all links were checked before the monotonic clock reached ``stop_s``.
        """
        if self._transport is None:
            return True
        if self._rights_version != self.namespace.rights_version:
            self._rights_version = self.namespace.rights_version
            self._checks = self._all_checks()
        if self._checks is None:
            return True
        for _step in self._checks:
            if time.monotonic() > stop_s:
                self.flush()
                return False
        self._checks = None
        self.flush()
        return True

    def check(self) -> None:
        """Check all links again, a few at a time: tokens may have expired."""
        if self._transport is None:
            return
        if self._checks is None:
            self._checks = self._all_checks()
        if not self.recheck(time.monotonic() + TURN_S):
            self._loop.call_soon(self.check)

    def _all_checks(self) -> Iterator[None]:
        self.authorization.drop_unbacked()
        yield from self.authorization.checks()
        for link, end in self.links_and_ends():
            yield
            queue = getattr(end, "queue", None)
            if not self.has_end(link, end):
                continue
            if queue is not None and queue.is_deleted:
                self.detach(link, AmqpError(Condition.NOT_FOUND, "The queue was deleted."))
            elif isinstance(end, OutgoingLink) and target_of(end.queue) is not None:
                self.detach(link, forwarded_error(end.queue))

    def has_end(self, link: Any, end: AnyLinkHandler) -> bool:
        """Whether ``end`` is still the handler of the link."""
        return self._ends.get(id(link)) is end

    def links_and_ends(self) -> list[tuple[Any, AnyLinkHandler]]:
        links = [link for s in self.connection.sessions.values() for link in s.links.values()]
        return [(link, self._ends[id(link)]) for link in links if id(link) in self._ends]

    def detach(self, link: Any, error: AmqpError) -> None:
        """Detach a link from the broker's side. Its pending frames are written first: a message may
        have been stored by the same transaction that deleted its queue."""
        end = self._ends.get(id(link))
        if end in self._ready:
            del self._ready[end]
            end.flush()
        self._forget(link)
        if link.is_attached:
            link.detach(error)
        else:
            link.refuse(error)


def _no_token_in_time(*, had_one: bool) -> AmqpError:
    """A client whose token has expired treats this as a lost connection, and opens another one."""
    if had_one:
        return AmqpError(
            Condition.CONNECTION_FORCED,
            "The last token expired or lost its access rule, and no other was sent in time. "
            "Connect again with a new token.",
        )
    return AmqpError(
        Condition.UNAUTHORIZED_ACCESS, "No token was sent in time. Send a token to $cbs."
    )
