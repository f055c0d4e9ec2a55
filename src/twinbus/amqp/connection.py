"""One AMQP 1.0 connection, in either role, without I/O: its state machine and its idle timeout.

    bytes in  --> feed() --> next_events(), frame by frame   (or receive(): all at once)
    calls     --> write() --> take_output() --> bytes out
    time      --> next_timer_s() / handle_timer()

    header(SASL) -> mechanisms/init/outcome -> header(AMQP) -> open -> sessions -> close

Rule 1: it reads no clock; its user passes the time of each read and write.
Rule 2: the open announces half of the idle timeout that is enforced, as AMQP 1.0 section 2.4.5
        advises. Heartbeats are sent at half of the peer's idle timeout, for the same reason.
Rule 3: no AMQP frame is accepted before the SASL exchange is over, and no frame of a session
        before the open.
Rule 4: for all input, next_events() returns events; a violation becomes a close frame with a
        condition and a description, and a ConnectionClosed event.
Rule 5: the user handles the events of one frame before it requests the next, so that the engine
        is never ahead of its user.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from twinbus.amqp import sasl
from twinbus.amqp.errors import AmqpError, Condition, DecodeError
from twinbus.amqp.events import (
    ConnectionClosed,
    Event,
    Opened,
    SessionBegun,
    SessionEnded,
)
from twinbus.amqp.frames import (
    FRAME_SASL,
    HEARTBEAT,
    PROTOCOL_AMQP,
    PROTOCOL_SASL,
    Frame,
    FrameBuffer,
    encode_frame,
)
from twinbus.amqp.limits import DEFAULT_LIMITS, AmqpLimits, Budget
from twinbus.amqp.link import wire_error
from twinbus.amqp.performatives import (
    Begin,
    Close,
    End,
    Error,
    Open,
    Performative,
    Transfer,
    decode_performative,
    encode_performative,
)
from twinbus.amqp.session import Session
from twinbus.amqp.transfer_runs import TransferRunReader
from twinbus.amqp.transfers import TRANSFER_START, decode_transfer

_MS_PER_S = 1_000


class IdleWatch:
    """When a connection last received and sent bytes, and when it must send or close."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._silence_max_s = idle_timeout_s * 2 or None
        self._heartbeat_period_s: float | None = None
        self._read_at_s: float | None = None
        self._written_at_s: float | None = None

    def set_remote_timeout(self, idle_time_out_ms: int | None) -> None:
        """The idle timeout in the peer's open. None and 0 mean no timeout."""
        if idle_time_out_ms:
            self._heartbeat_period_s = idle_time_out_ms / _MS_PER_S / 2

    def note_read(self, now_s: float) -> None:
        """Bytes were received from the peer."""
        self._read_at_s = now_s

    def note_write(self, now_s: float) -> None:
        """Bytes were sent to the peer."""
        self._written_at_s = now_s

    def next_timer_s(self) -> float | None:
        """When the result of one of the two functions below may change."""
        times = [
            at_s + period_s
            for at_s, period_s in (
                (self._written_at_s, self._heartbeat_period_s),
                (self._read_at_s, self._silence_max_s),
            )
            if at_s is not None and period_s is not None
        ]
        return min(times, default=None)

    def is_peer_gone(self, now_s: float) -> bool:
        """Whether nothing was received for longer than the idle timeout."""
        if self._silence_max_s is None or self._read_at_s is None:
            return False
        return now_s - self._read_at_s >= self._silence_max_s

    def owes_heartbeat(self, now_s: float) -> bool:
        """Whether a heartbeat must be sent now."""
        if self._heartbeat_period_s is None:
            return False
        return self._written_at_s is None or now_s - self._written_at_s >= self._heartbeat_period_s


# The smallest max-frame-size that AMQP allows, and the largest SASL frame.
FRAME_SIZE_BYTES_MIN = 512

# An open is sent before any size is agreed, so 512 bytes would be its limit too. The opens of
# clients with many properties (product, platform, user agent) are close to that or larger.
OPEN_FRAME_BYTES_MAX = 8_192

# A shorter timeout would cost too many heartbeats.
REMOTE_IDLE_TIMEOUT_MS_MIN = 1_000

# An attach with its filters, a disposition with the reasons of a dead letter, without a payload.
# It may take twenty times as many bytes in memory.
PERFORMATIVE_BYTES_MAX = 65_536


class Role(Enum):
    SERVER = auto()
    CLIENT = auto()


class ConnectionState(Enum):
    SASL_HEADER = auto()
    SASL = auto()
    AMQP_HEADER = auto()
    OPEN = auto()
    RUNNING = auto()
    CLOSED = auto()


@dataclass(slots=True, kw_only=True)
class ConnectionOptions:
    """What our open contains, and the limits of the connection."""

    container_id: str
    hostname: str | None = None
    """Client role: the host of the connection."""
    limits: AmqpLimits = DEFAULT_LIMITS
    """What the open announces, and what counts unless ``early_limits`` do."""
    early_limits: AmqpLimits | None = None
    """What counts until lift_limits() is called, for a peer that is not authenticated yet."""
    properties: dict[Any, Any] = field(default_factory=dict)


class Connection:
    """The protocol state of one connection."""

    def __init__(self, role: Role, options: ConnectionOptions) -> None:
        self.role = role
        self.options = options
        self.limits = options.early_limits or options.limits
        """The limits that count now."""
        self.phase = ConnectionState.SASL_HEADER
        self.remote_open: Open | None = None
        self.remote_frame_size_bytes_max = FRAME_SIZE_BYTES_MIN
        self.sessions: dict[int, Session] = {}
        """By the channel the peer sends on."""
        self._begun: dict[int, Session] = {}
        """Client role: by our own channel, until the peer has responded."""
        self._ended_channels: set[int] = set()
        self._partial_bytes = 0
        self._frames = FrameBuffer(FRAME_SIZE_BYTES_MIN)
        self._out: list[bytes] = []
        self._final_output: list[bytes] = []
        self._window_updates: list[Session] = []
        """Sessions whose window is opened again with the next output."""
        self._has_sent_open = False
        self._runs = TransferRunReader(self._frames, self.limits)
        self._idle = IdleWatch(self.limits.idle_timeout_s)
        if role is Role.CLIENT:
            self.write(PROTOCOL_SASL)

    # -- output ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._out.append(data)

    def write_many(self, frames: list[bytes]) -> None:
        self._out.extend(frames)

    @property
    def is_closed(self) -> bool:
        return self.phase is ConnectionState.CLOSED

    @property
    def has_output(self) -> bool:
        return bool(self._final_output if self.is_closed else self._out or self._window_updates)

    @property
    def output_count(self) -> int:
        """Frames that wait to be taken."""
        return len(self._out)

    def take_output(self) -> bytes:
        """Everything that is to be sent now, without what was written after the close."""
        updates, self._window_updates = self._window_updates, []
        for session in updates:
            session.update_window()
        out, self._out = self._out, []
        if self.is_closed:
            out, self._final_output = self._final_output, []
        return b"".join(out)

    def schedule_window_update(self, session: Session) -> None:
        """Send the session's new window when the output is taken, not earlier."""
        self._window_updates.append(session)

    # -- input ----------------------------------------------------------------------------

    @property
    def unfinished_bytes(self) -> int:
        """What was received of a frame, and of deliveries, that have begun and not ended."""
        return self._frames.buffered_bytes + self._partial_bytes

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes from the peer and handle all of them."""
        self.feed(data)
        events: list[Event] = []
        while (more := self.next_events()) is not None:
            events += more
        return events

    def feed(self, data: bytes) -> None:
        """Take bytes from the peer; next_events() handles them."""
        if self.phase is not ConnectionState.CLOSED:
            self._frames.feed(data)

    def next_events(self) -> list[Event] | None:
        """Handle one frame: its events; None when no whole frame is left."""
        if self.phase is ConnectionState.CLOSED:
            return None
        events: list[Event] = []
        try:
            return events if self._step(events) else events or None
        except AmqpError as error:
            self.close(error)
            events.append(ConnectionClosed(wire_error(error)))
            return events

    def _step(self, events: list[Event]) -> bool:
        """Take one header or frame; False when the rest of it has not arrived yet."""
        if self.phase is ConnectionState.RUNNING:
            return self._on_running_frame(events)
        if self.phase in (ConnectionState.SASL_HEADER, ConnectionState.AMQP_HEADER):
            return self._on_header(events)
        frame = self._frames.next_frame()
        if frame is None:
            return False
        if frame.pos == frame.end:
            raise AmqpError(Condition.NOT_ALLOWED, "An empty frame was sent before the open.")
        self._on_handshake_frame(frame, events)
        return True

    def _on_running_frame(self, events: list[Event]) -> bool:
        """The hot path: one frame of an open connection, or a run of transfers."""
        if self._runs.take(events):
            return True
        frame = self._frames.next_frame()
        if frame is None:
            return False
        if frame.pos == frame.end:
            return True
        if frame.type == FRAME_SASL:
            raise AmqpError(Condition.NOT_ALLOWED, "The SASL exchange is over.")
        buf, end = frame.buf, frame.end
        if buf.startswith(TRANSFER_START, frame.pos, end):
            transfer, position = decode_transfer(buf, frame.pos, end)
            session = self._session(frame.channel)
            if session is not None:
                self._runs.learn(session, transfer, frame, position)
                session.receive_transfer(transfer, buf[position:end], events)
            return True
        stop = min(end, frame.pos + PERFORMATIVE_BYTES_MAX)
        performative, position = decode_performative(buf, frame.pos, stop, Budget(self.limits))
        if type(performative) is Transfer:
            # Its descriptor was written in an unusual way.
            session = self._session(frame.channel)
            if session is not None:
                session.receive_transfer(performative, buf[position:end], events)
            return True
        _check_end(performative, end - position)
        self._on_performative(frame.channel, performative, events)
        return True

    def _session(self, channel: int) -> Session | None:
        """The session of a frame; None when the session has ended, so that the frame is ignored."""
        session = self.sessions.get(channel)
        if session is None and channel not in self._ended_channels:
            raise AmqpError(Condition.NOT_ALLOWED, f"No session was begun on channel {channel}.")
        return None if session is None or session.is_ended else session

    def _on_header(self, events: list[Event]) -> bool:
        header = self._frames.next_header()
        if header is None:
            return False
        expected = PROTOCOL_SASL if self.phase is ConnectionState.SASL_HEADER else PROTOCOL_AMQP
        if header != expected:
            # The response to a wrong header is the right one, then the connection ends.
            self.write(expected)
            self._end()
            events.append(
                ConnectionClosed(
                    Error(Condition.FRAMING_ERROR, "The peer does not use AMQP 1.0 with SASL.")
                )
            )
            return False
        if self.phase is ConnectionState.SASL_HEADER:
            self.phase = ConnectionState.SASL
            if self.role is Role.SERVER:
                self.write(PROTOCOL_SASL)
                self.write(sasl.offer())
            return True
        self.phase = ConnectionState.OPEN
        self._frames.frame_size_bytes_max = OPEN_FRAME_BYTES_MAX
        if self.role is Role.SERVER:
            self.write(PROTOCOL_AMQP)
        return True

    def _on_handshake_frame(self, frame: Frame, events: list[Event]) -> None:
        wants_sasl = self.phase is ConnectionState.SASL
        if (frame.type == FRAME_SASL) is not wants_sasl:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                "Finish the SASL exchange before the first AMQP frame, and do not begin it again.",
            )
        budget = Budget(self.limits)
        performative, position = decode_performative(frame.buf, frame.pos, frame.end, budget)
        _check_end(performative, frame.end - position)
        if wants_sasl:
            self._on_sasl(performative, events)
        else:
            self._on_open(performative, events)

    # -- SASL -----------------------------------------------------------------------------

    def _on_sasl(self, performative: Performative, events: list[Event]) -> None:
        if self.role is Role.CLIENT:
            self._on_sasl_of_server(performative)
            return
        outcome, is_accepted = sasl.accept_init(performative)
        self.write(outcome)
        if is_accepted:
            self.phase = ConnectionState.AMQP_HEADER
            return
        self._end()
        sentence = "The SASL mechanism is not offered. Use ANONYMOUS and put a token to $cbs."
        events.append(ConnectionClosed(Error(Condition.UNAUTHORIZED_ACCESS, sentence)))

    def _on_sasl_of_server(self, performative: Performative) -> None:
        init = sasl.respond(performative, self.options.hostname)
        if init is not None:
            self.write(init)
            return
        self.phase = ConnectionState.AMQP_HEADER
        self.write(PROTOCOL_AMQP)
        self._send_open()

    # -- open and close -------------------------------------------------------------------

    def _send_open(self) -> None:
        self._has_sent_open = True
        self._send(
            0,
            Open(
                container_id=self.options.container_id,
                hostname=self.options.hostname,
                max_frame_size=self.options.limits.frame_size_bytes_max,
                channel_max=self.options.limits.channel_max,
                idle_time_out=int(self.options.limits.idle_timeout_s * 1000),
                properties=self.options.properties or None,
            ),
        )

    def _on_open(self, performative: Performative, events: list[Event]) -> None:
        if not isinstance(performative, Open):
            raise AmqpError(Condition.NOT_ALLOWED, "The first frame must be an open.")
        if not self._has_sent_open:
            self._send_open()
        if performative.max_frame_size < FRAME_SIZE_BYTES_MIN:
            raise AmqpError(
                Condition.INVALID_FIELD,
                f"max-frame-size must be at least {FRAME_SIZE_BYTES_MIN}, "
                f"got {performative.max_frame_size}.",
            )
        idle_ms = performative.idle_time_out
        if idle_ms and idle_ms < REMOTE_IDLE_TIMEOUT_MS_MIN:
            raise AmqpError(
                Condition.INVALID_FIELD,
                f"idle-time-out must be 0 or at least {REMOTE_IDLE_TIMEOUT_MS_MIN} ms, "
                f"got {idle_ms}.",
            )
        self._idle.set_remote_timeout(idle_ms)
        self.remote_open = performative
        self.remote_frame_size_bytes_max = min(
            performative.max_frame_size, self.options.limits.frame_size_bytes_max
        )
        self._frames.frame_size_bytes_max = self.limits.frame_size_bytes_max
        self.phase = ConnectionState.RUNNING
        events.append(Opened(performative))

    def lift_limits(self) -> None:
        """The peer is authenticated: from the next frame on the announced limits count."""
        limits = self.limits = self._runs.limits = self.options.limits
        if self.phase is ConnectionState.RUNNING:
            self._frames.frame_size_bytes_max = limits.frame_size_bytes_max

    def close(self, error: AmqpError | None = None) -> None:
        """Send a close, with an error if there is one; nothing can be sent afterwards."""
        if self.phase is ConnectionState.CLOSED:
            return
        if self.phase in (ConnectionState.OPEN, ConnectionState.RUNNING):
            if not self._has_sent_open:
                # A close may only follow an open.
                self._send_open()
            self._send(0, Close(error=None if error is None else wire_error(error)))
        self._end()

    def _end(self) -> None:
        self.phase = ConnectionState.CLOSED
        self._final_output, self._out = self._out, []

    def abandon(self) -> None:
        """The transport is closed: release at once what would wait for the garbage collector."""
        self._end()
        self._final_output = []
        self._window_updates = []
        self._frames.clear()
        for session in self.sessions.values():
            session.abandon()
        self.sessions.clear()

    # -- sessions -------------------------------------------------------------------------

    def begin_session(self, channel: int = 0) -> Session:
        """Client role: begin a session; SessionBegun is returned when the peer has responded."""
        session = self._begun[channel] = Session(self, channel)
        session.begin(None)
        return session

    def _send(self, channel: int, performative: Performative) -> None:
        self.write(encode_frame(channel, encode_performative(performative)))

    def _on_performative(
        self, channel: int, performative: Performative, events: list[Event]
    ) -> None:
        match performative:
            case Begin():
                self._on_begin(channel, performative, events)
            case End():
                self._on_end(channel, performative, events)
            case Close():
                self.close()
                events.append(ConnectionClosed(performative.error, is_remote=True))
            case Open():
                raise AmqpError(Condition.NOT_ALLOWED, "The connection is open already.")
            case _:
                session = self._session(channel)
                if session is not None:
                    session.receive(performative, events)

    def _on_begin(self, channel: int, begin: Begin, events: list[Event]) -> None:
        if channel > self.limits.channel_max:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                f"Channel {channel} is above the agreed channel-max of {self.limits.channel_max}.",
            )
        if self.role is Role.CLIENT:
            self._on_begin_answered(channel, begin, events)
            return
        if channel in self.sessions:
            raise AmqpError(Condition.NOT_ALLOWED, f"Channel {channel} has a session already.")
        if len(self.sessions) >= self.limits.sessions_per_connection_max:
            raise AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"A connection may have {self.limits.sessions_per_connection_max} sessions now. "
                "End one of them, or put a token to $cbs first.",
            )
        self._ended_channels.discard(channel)
        session = self.sessions[channel] = Session(self, channel)
        session.on_begin(begin)
        session.begin(channel)
        events.append(SessionBegun(session))

    def _on_begin_answered(self, channel: int, begin: Begin, events: list[Event]) -> None:
        session = self._begun.pop(
            -1 if begin.remote_channel is None else begin.remote_channel, None
        )
        if session is None:
            raise AmqpError(
                Condition.NOT_ALLOWED, "The begin is not a response to a begin of this side."
            )
        self.sessions[channel] = session
        session.on_begin(begin)
        events.append(SessionBegun(session))

    def _on_end(self, channel: int, end: End, events: list[Event]) -> None:
        session = self.sessions.pop(channel, None)
        if session is None:
            return
        self._ended_channels.add(channel)
        if not session.is_ended:
            session.end()
            events.append(SessionEnded(session, end.error))

    @property
    def link_count(self) -> int:
        return sum(len(session.links) for session in self.sessions.values())

    def keep_partial(self, size: int) -> None:
        """A delivery that has not ended grew by ``size`` bytes."""
        if self._partial_bytes + size > self.limits.partial_bytes_per_connection_max:
            raise AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                "Unfinished deliveries have too many bytes. Finish some before you begin others.",
            )
        self._partial_bytes += size

    def drop_partial(self, size: int) -> None:
        """A delivery ended, or its link did."""
        self._partial_bytes -= size

    # -- time -----------------------------------------------------------------------------

    def note_read(self, now_s: float) -> None:
        """Bytes were received from the peer."""
        self._idle.note_read(now_s)

    def note_write(self, now_s: float) -> None:
        """Bytes were sent to the peer."""
        self._idle.note_write(now_s)

    def next_timer_s(self) -> float | None:
        """When handle_timer() must be called."""
        return self._idle.next_timer_s() if self.phase is ConnectionState.RUNNING else None

    def handle_timer(self, now_s: float) -> list[Event]:
        """Send a heartbeat, or close the connection of a silent peer, if it is time."""
        if self.phase is not ConnectionState.RUNNING:
            return []
        if self._idle.is_peer_gone(now_s):
            error = AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED, "The peer sent nothing within the idle timeout."
            )
            self.close(error)
            return [ConnectionClosed(wire_error(error))]
        if self._idle.owes_heartbeat(now_s):
            self.write(HEARTBEAT)
        return []


def _check_end(performative: Performative, size_left: int) -> None:
    if size_left and not isinstance(performative, Transfer):
        name = type(performative).__name__.lower()
        raise DecodeError(f"{size_left} bytes follow the {name}. Only a transfer has a payload.")
