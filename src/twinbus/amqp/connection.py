"""The AMQP connection: its state machine and its idle timeout.

Silence on a connection: when to send a heartbeat, and when a peer counts as gone.

One AMQP 1.0 connection, either role, without I/O.

    bytes in  --> feed() --> next_events(), frame by frame   (or receive(): all at once)
    calls     --> write() --> take_output() --> bytes out
    time      --> next_timer_s() / handle_timer()

    header(SASL) -> mechanisms/init/outcome -> header(AMQP) -> open -> sessions -> close

Rule 1: it reads no clock; whoever runs the connection says when something was heard or written.
Rule 2: a peer is told half of the silence that it is given, as AMQP 1.0 section 2.4.5 advises.
        We keep half of the silence that a peer told us, for the same reason.
Rule 3: nothing of AMQP is looked at before the SASL exchange is over, and nothing of a session
        before the open.
Rule 4: whatever the peer sends, next_events() returns events; a violation becomes a close
        frame with a condition and a sentence, and a ConnectionClosed event.
Rule 5: whoever answers the peer acts on the events of one frame before asking for the next, so
        that the engine never runs ahead of its user.
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
    """What one connection knows of its two directions."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._silence_max_s = idle_timeout_s * 2 or None
        self._heartbeat_period_s: float | None = None
        self._heard_at_s: float | None = None
        self._wrote_at_s: float | None = None

    def remote_says(self, idle_time_out_ms: int | None) -> None:
        """The peer's open: what it expects to hear at least. None and 0 mean nothing."""
        if idle_time_out_ms:
            self._heartbeat_period_s = idle_time_out_ms / _MS_PER_S / 2

    def heard(self, now_s: float) -> None:
        """Something came from the peer."""
        self._heard_at_s = now_s

    def wrote(self, now_s: float) -> None:
        """Something was sent to the peer."""
        self._wrote_at_s = now_s

    def next_timer_s(self) -> float | None:
        """When one of the two questions below may change its answer."""
        times = [
            at_s + period_s
            for at_s, period_s in (
                (self._wrote_at_s, self._heartbeat_period_s),
                (self._heard_at_s, self._silence_max_s),
            )
            if at_s is not None and period_s is not None
        ]
        return min(times, default=None)

    def is_peer_gone(self, now_s: float) -> bool:
        """Nothing was heard for too long."""
        if self._silence_max_s is None or self._heard_at_s is None:
            return False
        return now_s - self._heard_at_s >= self._silence_max_s

    def owes_heartbeat(self, now_s: float) -> bool:
        """The peer should hear something now."""
        if self._heartbeat_period_s is None:
            return False
        return self._wrote_at_s is None or now_s - self._wrote_at_s >= self._heartbeat_period_s


# The smallest frame size AMQP allows a peer to ask for, and the largest SASL frame.
FRAME_SIZE_BYTES_MIN = 512

# An open comes before any size was agreed, so 512 bytes would be its limit too. Clients that
# introduce themselves at length (product, platform, user agent) come close to that or pass it.
OPEN_FRAME_BYTES_MAX = 8_192

# A peer that wants to hear from us more often than this only wants to keep us busy.
REMOTE_IDLE_TIMEOUT_MS_MIN = 1_000

# An attach with its filters, a disposition with the reasons of a dead letter; a payload is not
# part of it. It may become twenty times as much in memory.
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
    """How we introduce ourselves."""

    container_id: str
    hostname: str | None = None
    """Client role: the host we think we talk to."""
    limits: AmqpLimits = DEFAULT_LIMITS
    """What the open announces, and what counts unless ``early_limits`` do."""
    early_limits: AmqpLimits | None = None
    """What counts until lift_limits() is called, for a peer that has not shown a token."""
    properties: dict[Any, Any] = field(default_factory=dict)


class Connection:
    """The protocol state of one connection."""

    def __init__(self, role: Role, options: ConnectionOptions) -> None:
        self.role = role
        self.options = options
        self.limits = options.early_limits or options.limits
        """Those that count now."""
        self.phase = ConnectionState.SASL_HEADER
        self.remote_open: Open | None = None
        self.remote_frame_size_bytes_max = FRAME_SIZE_BYTES_MIN
        self.sessions: dict[int, Session] = {}
        """By the channel the peer sends on."""
        self._begun: dict[int, Session] = {}
        """Client role: by our own channel, until the peer has answered."""
        self._ended_channels: set[int] = set()
        self._partial_bytes = 0
        self._frames = FrameBuffer(FRAME_SIZE_BYTES_MIN)
        self._out: list[bytes] = []
        self._last_words: list[bytes] = []
        self._told: list[Session] = []
        """Sessions whose window has to be, or is being, opened again with the next output."""
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
        return bool(self._last_words if self.is_closed else self._out or self._told)

    @property
    def output_count(self) -> int:
        """Frames that wait to be taken."""
        return len(self._out)

    def take_output(self) -> bytes:
        """Everything there is to send now. What was written after the close is not."""
        told, self._told = self._told, []
        for session in told:
            session.update_window()
        out, self._out = self._out, []
        if self.is_closed:
            out, self._last_words = self._last_words, []
        return b"".join(out)

    def schedule_window_update(self, session: Session) -> None:
        """The peer learns of the session's new window when the output is taken, not earlier."""
        self._told.append(session)

    # -- input ----------------------------------------------------------------------------

    @property
    def unfinished_bytes(self) -> int:
        """What was received of a frame, and of deliveries, that have begun and not ended."""
        return self._frames.buffered_bytes + self._partial_bytes

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes from the peer and act on all of them."""
        self.feed(data)
        events: list[Event] = []
        while (more := self.next_events()) is not None:
            events += more
        return events

    def feed(self, data: bytes) -> None:
        """Take bytes from the peer; next_events() acts on them."""
        if self.phase is not ConnectionState.CLOSED:
            self._frames.feed(data)

    def next_events(self) -> list[Event] | None:
        """Act on one frame: what happened; None when no whole frame is left."""
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
            raise AmqpError(Condition.NOT_ALLOWED, "An empty frame came before the open.")
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
        """The session a frame is for; None when it was ended and the frame comes too late."""
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
            # The answer to a wrong header is the right one, then silence.
            self.write(expected)
            self._end()
            events.append(
                ConnectionClosed(
                    Error(Condition.FRAMING_ERROR, "The peer does not speak AMQP 1.0 with SASL.")
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
                "Finish the SASL exchange before AMQP frames, and do not return to it.",
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
        outcome, is_good = sasl.judge(performative)
        self.write(outcome)
        if is_good:
            self.phase = ConnectionState.AMQP_HEADER
            return
        self._end()
        sentence = "The SASL mechanism is not offered. Use ANONYMOUS and put a token to $cbs."
        events.append(ConnectionClosed(Error(Condition.UNAUTHORIZED_ACCESS, sentence)))

    def _on_sasl_of_server(self, performative: Performative) -> None:
        choice = sasl.choose(performative, self.options.hostname)
        if choice is not None:
            self.write(choice)
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
                f"max-frame-size must be at least {FRAME_SIZE_BYTES_MIN}.",
            )
        idle_ms = performative.idle_time_out
        if idle_ms and idle_ms < REMOTE_IDLE_TIMEOUT_MS_MIN:
            raise AmqpError(
                Condition.INVALID_FIELD,
                f"idle-time-out must be 0 or at least {REMOTE_IDLE_TIMEOUT_MS_MIN} ms.",
            )
        self._idle.remote_says(idle_ms)
        self.remote_open = performative
        self.remote_frame_size_bytes_max = min(
            performative.max_frame_size, self.options.limits.frame_size_bytes_max
        )
        self._frames.frame_size_bytes_max = self.limits.frame_size_bytes_max
        self.phase = ConnectionState.RUNNING
        events.append(Opened(performative))

    def lift_limits(self) -> None:
        """The peer has shown who it is: from the next frame on it may use what was announced."""
        limits = self.limits = self._runs.limits = self.options.limits
        if self.phase is ConnectionState.RUNNING:
            self._frames.frame_size_bytes_max = limits.frame_size_bytes_max

    def close(self, error: AmqpError | None = None) -> None:
        """Say goodbye, with a reason if there is one; nothing can be sent afterwards."""
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
        self._last_words, self._out = self._out, []

    def abandon(self) -> None:
        """The transport is gone: give back at once what would wait for the garbage collector."""
        self._end()
        self._last_words = []
        self._told = []
        self._frames.clear()
        for session in self.sessions.values():
            session.abandon()
        self.sessions.clear()

    # -- sessions -------------------------------------------------------------------------

    def begin_session(self, channel: int = 0) -> Session:
        """Client role: start a session; SessionBegun tells when the peer has agreed."""
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
            raise AmqpError(Condition.NOT_ALLOWED, "The begin answers no session of ours.")
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
        """A delivery that has not ended grew by so much."""
        if self._partial_bytes + size > self.limits.partial_bytes_per_connection_max:
            raise AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                "Too many bytes of unfinished deliveries. Finish some before you begin others.",
            )
        self._partial_bytes += size

    def drop_partial(self, size: int) -> None:
        """A delivery ended, or its link did."""
        self._partial_bytes -= size

    # -- time -----------------------------------------------------------------------------

    def heard(self, now_s: float) -> None:
        """Something came from the peer."""
        self._idle.heard(now_s)

    def wrote(self, now_s: float) -> None:
        """Something was sent to the peer."""
        self._idle.wrote(now_s)

    def next_timer_s(self) -> float | None:
        """When handle_timer() wants to be called."""
        return self._idle.next_timer_s() if self.phase is ConnectionState.RUNNING else None

    def handle_timer(self, now_s: float) -> list[Event]:
        """Send a heartbeat, or give up on a silent peer, if it is time."""
        if self.phase is not ConnectionState.RUNNING:
            return []
        if self._idle.is_peer_gone(now_s):
            error = AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED, "The peer was silent for too long."
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
