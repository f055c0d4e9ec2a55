"""The connection engine, both roles, without a socket: what comes in, what goes out, what is told.

Whatever a peer sends, the engine answers with events and frames; it raises nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amqp.in_memory import (
    BEGIN,
    GREETING,
    HANDSHAKE,
    Pair,
    Server,
    connection,
    frame,
    frames_in,
    receiving_attach,
    sasl,
    sending_attach,
)
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Symbol, UInt
from twinbus.amqp.connection import Connection, ConnectionState, Role
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.events import (
    ConnectionClosed,
    DeliveryReceived,
    Event,
    LinkAttached,
    LinkDetachedEvent,
    Opened,
    SessionBegun,
    SessionEnded,
)
from twinbus.amqp.frames import HEARTBEAT, PROTOCOL_AMQP, PROTOCOL_SASL, encode_frame
from twinbus.amqp.limits import AmqpLimits
from twinbus.amqp.performatives import (
    Accepted,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
    encode_performative,
)

OPEN = frame(Open(container_id="client"))


# -- handshake ------------------------------------------------------------------------------------


def test_client_and_server_agree() -> None:
    pair = Pair().settle()

    assert [type(event) for event in pair.server_events] == [Opened]
    assert [type(event) for event in pair.client_events] == [Opened]
    assert pair.server.remote_open is not None
    assert pair.server.remote_open.container_id == "client"
    assert pair.client.remote_open is not None
    assert pair.client.remote_open.container_id == "server"


def test_the_handshake_works_in_one_piece_and_byte_by_byte() -> None:
    whole, dribbled = Server(), Server()
    said_at_once = whole.hear(HANDSHAKE + OPEN)
    said_slowly = []
    for byte in HANDSHAKE + OPEN:
        said_slowly += dribbled.hear(bytes((byte,)))

    assert said_at_once == said_slowly
    assert [type(each) for each in said_at_once] == [SaslMechanisms, SaslOutcome, Open]
    assert whole.events == dribbled.events == [Opened(Open(container_id="client"))]


def test_the_open_tells_our_limits() -> None:
    limits = AmqpLimits(frame_size_bytes_max=5_000, channel_max=7, idle_timeout_s=3)
    told = Server(limits).hear(HANDSHAKE + OPEN)[-1]

    assert isinstance(told, Open)
    assert (told.max_frame_size, told.channel_max, told.idle_time_out) == (5_000, 7, 3_000)


@pytest.mark.parametrize("header", [b"HTTP/1.1", PROTOCOL_AMQP, b"AMQP\x03\x01\x00\x01"])
def test_a_wrong_header_is_answered_with_the_right_one(header: bytes) -> None:
    server = Server()
    server.events += server.connection.receive(header)

    assert server.connection.take_output() == PROTOCOL_SASL
    assert [type(event) for event in server.events] == [ConnectionClosed]
    assert server.connection.is_closed


@pytest.mark.parametrize("mechanism", ["PLAIN", "EXTERNAL", "anonymous", "ANONYMOU", ""])
def test_a_mechanism_that_was_not_offered_is_refused(mechanism: str) -> None:
    server = Server()
    said = server.hear(PROTOCOL_SASL + sasl(SaslInit(Symbol(mechanism))))

    assert said[-1] == SaslOutcome(1)
    assert server.connection.is_closed


def test_a_client_that_is_refused_gives_up() -> None:
    client = connection(Role.CLIENT)
    events = client.receive(PROTOCOL_SASL + sasl(SaslOutcome(1)))

    assert [event.error.condition for event in events] == [Condition.UNAUTHORIZED_ACCESS]


TOO_EARLY = {
    "before sasl is over": (PROTOCOL_SASL, OPEN, []),
    "sasl of the other side": (PROTOCOL_SASL, sasl(SaslResponse(b"")), []),
    "a heartbeat in sasl": (PROTOCOL_SASL, HEARTBEAT, []),
    "begin before open": (HANDSHAKE, frame(BEGIN), [Open, Close]),
    "transfer before open": (HANDSHAKE, frame(Transfer(0, 0, b"")), [Open, Close]),
    "close before open": (HANDSHAKE, frame(Close()), [Open, Close]),
    "heartbeat before open": (HANDSHAKE, HEARTBEAT, [Open, Close]),
    "sasl after sasl": (HANDSHAKE, sasl(SaslInit(Symbol("ANONYMOUS"))), [Open, Close]),
    "open twice": (HANDSHAKE + OPEN, OPEN, [Close]),
    "sasl after the open": (HANDSHAKE + OPEN, sasl(SaslOutcome(0)), [Close]),
    "begin in a sasl frame": (
        HANDSHAKE + OPEN,
        encode_frame(0, encode_performative(BEGIN), frame_type=1),
        [Close],
    ),
    "begin twice": (HANDSHAKE + OPEN + frame(BEGIN), frame(BEGIN), [Close]),
    "attach before begin": (HANDSHAKE + OPEN, frame(sending_attach(0)), [Close]),
    "transfer before begin": (HANDSHAKE + OPEN, frame(Transfer(0, 0, b"")), [Close]),
}


@pytest.mark.parametrize(("before", "said", "answered"), TOO_EARLY.values(), ids=TOO_EARLY.keys())
def test_what_comes_too_early_closes_the_connection(
    before: bytes, said: bytes, answered: list[type]
) -> None:
    """Case 50: and before the open there is no frame to say it with."""
    server = Server()
    server.hear(before)
    server.events.clear()

    assert [type(each) for each in server.hear(said)] == answered
    closed = server.take(ConnectionClosed)
    assert closed.error.condition == Condition.NOT_ALLOWED
    assert not closed.is_remote
    assert not server.events


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"max_frame_size": 511}, False),
        ({"max_frame_size": 512}, True),
        ({"max_frame_size": 0}, False),
        ({"idle_time_out": 999}, False),
        ({"idle_time_out": 1_000}, True),
        ({"idle_time_out": 0}, True),
        ({"channel_max": 0}, True),
    ],
)
def test_the_numbers_of_an_open_have_limits(fields: dict[str, int], is_taken: bool) -> None:
    """Cases 59 and 74."""
    server = Server()
    server.hear(HANDSHAKE + frame(Open(container_id="client", **fields)))

    assert isinstance(server.events[0], Opened) is is_taken
    assert server.connection.is_closed is not is_taken


def test_frames_are_small_until_the_open_and_as_large_as_offered_afterwards() -> None:
    """Case 58, at the limit and one byte above it."""
    limits = AmqpLimits(frame_size_bytes_max=1_000)
    for size, is_closed in ((1_000, False), (1_001, True)):
        server = Server(limits).opened()
        server.hear(size.to_bytes(4, "big"))
        server.hear(b"\x02\x00\x00\x00")
        assert server.connection.is_closed is is_closed
    for size, is_closed in ((512, False), (513, True)):
        server = Server(limits)
        server.hear(PROTOCOL_SASL + size.to_bytes(4, "big") + b"\x02\x01\x00\x00")
        assert server.connection.is_closed is is_closed
    for size, is_closed in ((8_192, False), (8_193, True)):
        server = Server(limits)
        server.hear(HANDSHAKE + size.to_bytes(4, "big") + b"\x02\x00\x00\x00")
        assert server.connection.is_closed is is_closed


# -- frames ---------------------------------------------------------------------------------------


def test_bytes_behind_a_performative_are_refused() -> None:
    """Case 66: only a transfer has a payload."""
    server = Server().begun()
    said = server.hear(encode_frame(0, encode_performative(Flow(0, 1, 0, 1)) + b"x"))

    assert isinstance(said[-1], Close) and said[-1].error is not None
    assert said[-1].error.condition == Condition.DECODE_ERROR


@pytest.mark.parametrize(
    "descriptor", [b"\x80" + bytes(7) + b"\x14", encode_value(Symbol("amqp:transfer:list"))]
)
def test_a_transfer_may_write_its_descriptor_in_any_way(descriptor: bytes) -> None:
    server = Server().begun()
    server.incoming_link()
    fields = encode_value([UInt(0), UInt(0), b"tag"])

    server.hear(encode_frame(0, b"\x00" + descriptor + fields, b"payload"))

    assert server.take(DeliveryReceived).payload == b"payload"


@pytest.mark.parametrize("channel", [0, 255])
def test_every_channel_up_to_the_limit_can_be_used(channel: int) -> None:
    server = Server().opened()

    said = server.say(BEGIN, channel)

    assert isinstance(said[0], Begin) and said[0].remote_channel == channel


@pytest.mark.parametrize("channel", [256, 65_535])
def test_a_channel_above_the_limit_closes_the_connection(channel: int) -> None:
    """Case 60."""
    server = Server().opened()
    server.say(BEGIN, channel)

    assert server.take(ConnectionClosed).error.condition == Condition.NOT_ALLOWED


def test_a_channel_is_free_again_after_its_end() -> None:
    server = Server().begun()
    for _ in range(3):
        server.say(End())
        server.say(BEGIN)

    assert [type(event) for event in server.events] == [SessionEnded, SessionBegun] * 3


def test_frames_for_a_session_that_ended_are_ignored() -> None:
    """The Azure SDK detaches its management links after the end."""
    server = Server().begun()
    server.say(End())
    server.events.clear()

    for late in (Detach(0, True), Transfer(0, 0, b"t"), Flow(0, 1, 0, 1), End()):
        assert server.say(late) == []
    assert not server.events and not server.connection.is_closed


def test_the_engine_does_not_run_ahead_of_its_user() -> None:
    """An attach is told before the detach behind it is looked at."""
    server = Server().begun()
    server.connection.feed(frame(sending_attach(0)) + frame(Detach(0, True)))

    attached = server.connection.next_events()
    assert attached is not None and isinstance(attached[0], LinkAttached)
    attached[0].link.accept(source=Source(), target=Target())
    detached = server.connection.next_events()
    assert detached is not None and isinstance(detached[0], LinkDetachedEvent)
    assert server.connection.next_events() is None

    assert [type(each).__name__ for each in server.said()] == ["Attach", "Detach"]


def test_links_are_counted_by_what_there_is() -> None:
    """Whatever order links and sessions end in, the count comes back to nothing."""
    server = Server().begun()
    for handle in range(5):
        server.incoming_link(handle)
    link = server.session.links[0]
    assert server.connection.link_count == 5

    server.say(Detach(4, True))
    assert server.connection.link_count == 4
    server.say(End())
    assert server.connection.link_count == 0
    link.detach()
    assert server.connection.link_count == 0


# -- close ----------------------------------------------------------------------------------------


def test_a_close_is_answered_and_ends_everything() -> None:
    server = Server().begun()
    server.hear(frame(Close()) + frame(BEGIN, 1) + b"garbage that is no frame")

    assert server.events == [ConnectionClosed(None, is_remote=True)]
    assert server.hear(frame(BEGIN, 2)) == []
    assert server.connection.phase is ConnectionState.CLOSED


def test_nothing_is_said_after_a_close() -> None:
    server = Server().begun()
    link = server.outgoing_link()
    link.credit = 5
    server.connection.close(AmqpError(Condition.INTERNAL_ERROR, "It is over."))
    link.send(b"too late", b"t", settled=True)
    server.session.end()
    server.connection.close()

    assert [type(each) for each in server.said()] == [Close]
    assert not server.connection.has_output


def test_the_peers_error_is_known_as_the_peers() -> None:
    server = Server().opened()
    server.say(Close(Error("made-up:condition", "My words.")))

    closed = server.take(ConnectionClosed)
    assert closed.is_remote and closed.error.condition == "made-up:condition"


def test_a_connection_whose_transport_is_gone_keeps_nothing() -> None:
    server = Server().begun()
    link = server.incoming_link()
    link.owner = object()
    server.connection.receive(frame(Transfer(0, 0, b"t", more=True), payload=b"unfinished"))
    server.connection.feed(bytes(7))
    server.connection.abandon()

    assert server.connection.is_closed and server.connection.link_count == 0
    assert link.is_detached and link.owner is None
    assert server.hear(frame(BEGIN)) == [] and not server.connection.has_output
    assert server.connection.next_events() is None


# -- time -----------------------------------------------------------------------------------------


def test_a_peer_hears_a_heartbeat_after_half_of_the_silence_it_allows() -> None:
    """Case 74."""
    server = Server().opened(idle_time_out=10_000)
    server.connection.note_read(100)
    server.connection.note_write(100)

    assert server.connection.next_timer_s() == 105
    server.connection.handle_timer(104.9)
    assert not server.connection.has_output
    server.connection.handle_timer(105)
    assert server.connection.take_output() == HEARTBEAT


def test_a_silent_peer_is_given_up_after_twice_what_it_was_told() -> None:
    """Case 74: no heartbeats."""
    server = Server(AmqpLimits(idle_timeout_s=30)).opened()
    server.connection.note_read(100)

    assert server.connection.next_timer_s() == 160
    assert server.connection.handle_timer(159.9) == []
    (event,) = server.connection.handle_timer(160)
    assert isinstance(event, ConnectionClosed)
    assert [type(each) for each in server.said()] == [Close]
    assert server.connection.next_timer_s() is None


def test_without_any_time_out_nothing_is_waited_for() -> None:
    server = Server(AmqpLimits(idle_timeout_s=0)).opened(idle_time_out=0)
    server.connection.note_read(0)
    server.connection.note_write(0)

    assert server.connection.next_timer_s() is None
    assert server.connection.handle_timer(1e9) == []


# -- any bytes, any order -------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, 1, 2, 3, 99, 100, 101, 2**31 - 1, 2**31, 2**32 - 1])
HANDLES = st.integers(0, 4)
STATES = st.sampled_from([None, Accepted(), Released()])
PERFORMATIVES: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda h: sending_attach(h), HANDLES),
    st.builds(lambda h: receiving_attach(h), HANDLES),
    st.builds(
        Flow,
        next_incoming_id=st.none() | NUMBERS,
        incoming_window=NUMBERS,
        next_outgoing_id=NUMBERS,
        outgoing_window=NUMBERS,
        handle=st.none() | HANDLES,
        delivery_count=st.none() | NUMBERS,
        link_credit=st.none() | NUMBERS,
        drain=st.booleans(),
        echo=st.booleans(),
    ),
    st.builds(
        Transfer,
        handle=HANDLES,
        delivery_id=st.none() | NUMBERS,
        delivery_tag=st.none() | st.binary(max_size=34),
        more=st.booleans(),
        settled=st.none() | st.booleans(),
        aborted=st.booleans(),
    ),
    st.builds(
        Disposition,
        role=st.booleans(),
        first=NUMBERS,
        last=st.none() | NUMBERS,
        settled=st.booleans(),
        state=STATES,
    ),
    st.builds(Detach, handle=HANDLES, closed=st.booleans()),
    st.just(End()),
    st.builds(
        Begin,
        remote_channel=st.none() | st.integers(0, 3),
        next_outgoing_id=NUMBERS,
        incoming_window=NUMBERS,
        outgoing_window=NUMBERS,
    ),
    st.sampled_from([Close(), Open(container_id="again")]),
)
FRAMES = st.one_of(
    st.builds(
        lambda each, channel, payload: frame(
            each, channel, payload if isinstance(each, Transfer) else b""
        ),
        PERFORMATIVES,
        st.sampled_from([0, 0, 0, 1, 300]),
        st.binary(max_size=40),
    ),
    st.just(HEARTBEAT),
)


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A frame in which one byte may have changed."""
    said = draw(FRAMES)
    if draw(st.integers(0, 9)):
        return said
    position = draw(st.integers(0, len(said) - 1))
    return said[:position] + draw(st.binary(min_size=1, max_size=1)) + said[position + 1 :]


ANSWERS = st.sampled_from(["accept", "refuse", "leave", "send", "detach", "end"])


def act_on(event: Event, answer: str) -> None:
    """A user of the engine who does something with every event, wise or not."""
    if isinstance(event, LinkAttached):
        link = event.link
        if answer == "refuse":
            link.refuse(AmqpError(Condition.NOT_FOUND, "There is nothing here."))
        elif answer != "leave":
            link.accept(source=Source(), target=Target())
            if hasattr(link, "grant"):
                link.grant(50)
    link = getattr(event, "link", None)
    if link is None or not link.is_attached:
        return
    if answer == "send" and hasattr(link, "send_as") and link.credit > 0:
        link.send(b"x" * 600, b"tag", settled=False)
    elif answer == "detach":
        link.detach()
    elif answer == "end":
        link.session.end()


def run_anything(engine: Connection, pieces: list[bytes], answers: list[str]) -> None:
    """Feed everything, act on everything, and check what must hold at any moment."""
    is_over = False
    for piece in pieces:
        engine.feed(piece)
        while (events := engine.next_events()) is not None:
            for event in events:
                assert not is_over, "an event came after the end"
                is_over = isinstance(event, ConnectionClosed)
                answers.append(answers.pop(0))
                act_on(event, answers[0])
        frames_in(engine.take_output())
        assert engine.is_closed is is_over
        assert 0 <= engine.link_count <= engine.limits.links_per_connection_max


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(bent(), max_size=30), answers=st.lists(ANSWERS, min_size=1, max_size=8))
def test_a_server_survives_frames_in_any_order(pieces: list[bytes], answers: list[str]) -> None:
    """Sequence fuzz: events, frames or an end, and never an exception."""
    server = Server().begun()

    run_anything(server.connection, pieces, answers)


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(bent(), max_size=30), answers=st.lists(ANSWERS, min_size=1, max_size=8))
def test_a_client_survives_frames_in_any_order(pieces: list[bytes], answers: list[str]) -> None:
    pair = Pair()
    session = pair.begun()
    session.attach_sender(sending_attach(0))
    session.attach_receiver(receiving_attach(1))
    pair.client.take_output()

    run_anything(pair.client, pieces, answers)


@settings(max_examples=200, deadline=None)
@given(
    start=st.sampled_from([b"", PROTOCOL_SASL, GREETING, HANDSHAKE, HANDSHAKE + OPEN]),
    pieces=st.lists(st.binary(max_size=60), max_size=8),
)
def test_a_server_survives_any_bytes(start: bytes, pieces: list[bytes]) -> None:
    run_anything(connection(Role.SERVER), [start, *pieces], ["accept"])


@settings(max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(1, 40), max_size=20), pieces=st.lists(FRAMES, max_size=12))
def test_how_the_bytes_are_cut_makes_no_difference(cuts: list[int], pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    whole, cut = Server().begun(), Server().begun()
    whole.events += whole.connection.receive(data)
    position = 0
    for size in cuts:
        cut.events += cut.connection.receive(data[position : position + size])
        position += size
    cut.events += cut.connection.receive(data[position:])

    assert [type(event) for event in whole.events] == [type(event) for event in cut.events]
    assert whole.connection.take_output() == cut.connection.take_output()
