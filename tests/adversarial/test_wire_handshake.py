"""Bad bytes from the first one on: not AMQP, not a frame, not in turn (cases 50, 55 to 59, 74).

Before the open there is no AMQP word for an error: the broker answers with its own header or
with nothing, and closes.
"""

from __future__ import annotations

import struct
import time

import pytest

from tests.adversarial.guards import VAULT_QUEUE
from tests.adversarial.raw_peer import (
    DROPPED,
    NOTHING,
    RawPeer,
    Stage,
    Verdict,
    closed,
    detached,
    ended,
    flow,
    frame,
    receiver,
    sasl_frame,
    sender,
    transfer,
)
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.connection import PERFORMATIVE_BYTES_MAX
from twinbus.amqp.frames import HEAD_BYTES, HEARTBEAT, PROTOCOL_AMQP, PROTOCOL_SASL
from twinbus.amqp.message.message import Message
from twinbus.amqp.performatives import (
    Accepted,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Open,
    SaslInit,
    SaslOutcome,
    SaslResponse,
)

FRAMING = "amqp:connection:framing-error"
NOT_ALLOWED = "amqp:not-allowed"
INVALID = "amqp:invalid-field"
UNAUTHORIZED = "amqp:unauthorized-access"


NOT_AMQP = {
    "case-55-ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "case-55-amqp-0-9-1": b"AMQP\x00\x00\x09\x01",
    "case-55-zeros": bytes(1_000),
    "case-55-ones": b"\xff" * 1_000,
    "case-56-major-version-2": b"AMQP\x03\x02\x00\x00",
    "case-56-minor-version-1": b"AMQP\x03\x01\x01\x00",
    "case-56-protocol-id-1": b"AMQP\x01\x01\x00\x00",
    "case-56-protocol-id-tls": b"AMQP\x02\x01\x00\x00",
    "case-50-amqp-without-sasl": PROTOCOL_AMQP,
    "case-50-open-without-sasl": PROTOCOL_AMQP + frame(Open(container_id="sneak")),
}


@pytest.mark.parametrize("said", NOT_AMQP.values(), ids=NOT_AMQP.keys())
def test_what_is_not_amqp_gets_our_header_and_is_closed(peer: RawPeer, said: bytes) -> None:
    with peer:
        peer.say(said)

        assert peer.await_end() == PROTOCOL_SASL


NOT_QUITE_HTTP = {
    "case-55-http": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "case-55-a-method-and-noise": b"POST \x00\xff\r\n\r\n",
    "case-55-a-letter-and-zeros": b"D" + bytes(1_000) + b"\r\n\r\n",
}


@pytest.mark.parametrize("said", NOT_QUITE_HTTP.values(), ids=NOT_QUITE_HTTP.keys())
def test_what_begins_like_http_is_refused_in_http(peer: RawPeer, said: bytes) -> None:
    """M6: on the same port; a stranger gets an error and the connection is closed."""
    with peer:
        peer.say(said)

        assert peer.await_end().startswith(b"HTTP/1.1 4")


def test_case_56_the_header_after_sasl_must_be_the_amqp_one(peer: RawPeer) -> None:
    with peer.to(Stage.SASL_DONE):
        peer.say(PROTOCOL_SASL)

        assert peer.await_end() == PROTOCOL_AMQP


# -- case 50: every performative too early --------------------------------------------------------

PERFORMATIVES = {
    "open": frame(Open(container_id="early")),
    "begin": frame(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)),
    "attach": sender(VAULT_QUEUE, 0),
    "flow": flow(),
    "transfer": transfer(0, 0, Message(body=b"early").encode()),
    "disposition": frame(Disposition(True, 0, 0, True, Accepted())),
    "detach": frame(Detach(0, True)),
    "end": frame(End()),
    "close": frame(Close()),
    "heartbeat": HEARTBEAT,
}
SASL_PERFORMATIVES = {
    "sasl-outcome": sasl_frame(SaslOutcome(0)),
    "sasl-response": sasl_frame(SaslResponse(b"")),
    "sasl-init": sasl_frame(SaslInit(Symbol("ANONYMOUS"))),
}


@pytest.mark.parametrize("name", PERFORMATIVES)
def test_case_50_amqp_before_sasl_is_over_drops_the_connection(peer: RawPeer, name: str) -> None:
    with peer.to(Stage.SASL):
        assert peer.say(PERFORMATIVES[name]).verdict() == DROPPED


@pytest.mark.parametrize("name", ["sasl-outcome", "sasl-response"])
def test_case_50_sasl_frames_of_the_other_side_drop_the_connection(
    peer: RawPeer, name: str
) -> None:
    with peer.to(Stage.SASL):
        assert peer.say(SASL_PERFORMATIVES[name]).verdict() == DROPPED


@pytest.mark.parametrize("name", sorted({*PERFORMATIVES, *SASL_PERFORMATIVES} - {"open"}))
def test_case_50_nothing_comes_before_the_open(peer: RawPeer, name: str) -> None:
    said = {**PERFORMATIVES, **SASL_PERFORMATIVES}[name]
    with peer.to(Stage.HEADER_SENT):
        assert peer.say(said).verdict() == closed(NOT_ALLOWED)


BEFORE_BEGIN = {
    "open": closed(NOT_ALLOWED),
    "attach": closed(NOT_ALLOWED),
    "flow": closed(NOT_ALLOWED),
    "transfer": closed(NOT_ALLOWED),
    "disposition": closed(NOT_ALLOWED),
    "detach": closed(NOT_ALLOWED),
    "sasl-init": closed(NOT_ALLOWED),
}


@pytest.mark.parametrize(("name", "verdict"), BEFORE_BEGIN.items(), ids=BEFORE_BEGIN.keys())
def test_case_50_nothing_of_a_session_comes_before_the_begin(
    peer: RawPeer, name: str, verdict: Verdict
) -> None:
    said = {**PERFORMATIVES, **SASL_PERFORMATIVES}[name]
    with peer.to(Stage.OPENED):
        assert peer.say(said).verdict() == verdict


BEFORE_TOKEN = {
    "send-link": (sender(VAULT_QUEUE, 0), detached(UNAUTHORIZED)),
    "receive-link": (receiver(VAULT_QUEUE, 0), detached(UNAUTHORIZED)),
    "management-requests": (sender(f"{VAULT_QUEUE}/$management", 0), detached(UNAUTHORIZED)),
    "management-replies": (receiver(f"{VAULT_QUEUE}/$management", 0), detached(UNAUTHORIZED)),
    "dead-letters": (receiver(f"{VAULT_QUEUE}/$deadletterqueue", 0), detached(UNAUTHORIZED)),
    "a-queue-that-does-not-exist": (sender("no-such-queue", 0), detached(UNAUTHORIZED)),
    "transfer-with-the-attach": (
        sender(VAULT_QUEUE, 0) + transfer(0, 0, Message(body=b"sneak").encode()),
        detached(UNAUTHORIZED),
    ),
    "credit-with-the-attach": (
        receiver(VAULT_QUEUE, 0) + flow(handle=0, link_credit=100),
        detached(UNAUTHORIZED),
    ),
    "transfer-without-attach": (
        transfer(0, 0, Message(body=b"sneak").encode()),
        ended("amqp:session:unattached-handle"),
    ),
    "credit-without-attach": (
        flow(handle=0, link_credit=100),
        ended("amqp:session:unattached-handle"),
    ),
    "detach-without-attach": (frame(Detach(0, True)), ended("amqp:session:unattached-handle")),
}


@pytest.mark.parametrize(("said", "verdict"), BEFORE_TOKEN.values(), ids=BEFORE_TOKEN.keys())
def test_case_50_without_a_token_no_door_opens_and_none_is_described(
    peer: RawPeer, said: bytes, verdict: Verdict
) -> None:
    """M6: a peer without a token cannot even learn which queues exist."""
    with peer.to(Stage.BEGUN):
        assert peer.say(said).verdict() == verdict


def test_case_50_more_than_64_kib_before_a_token_close_the_connection(peer: RawPeer) -> None:
    with peer.to(Stage.BEGUN):
        assert peer.say(HEARTBEAT * 9_000).verdict() == closed(UNAUTHORIZED)


def test_case_51_an_unknown_mechanism_is_refused_by_sasl(peer: RawPeer) -> None:
    with peer.to(Stage.SASL):
        peer.say(sasl_frame(SaslInit(Symbol("PLAIN"), b"\0guest\0guest")))

        assert peer.wait_for(SaslOutcome).code == 1
        assert peer.verdict() == DROPPED


# -- cases 57 and 58: frames that are none --------------------------------------------------------


def head(size: int, doff: int = 2, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", size, doff, kind, 0)


BAD_FRAMES = {
    **{f"case-57-size-{size}": head(size) for size in range(8)},
    "case-57-doff-0": head(8, doff=0),
    "case-57-doff-1": head(8, doff=1),
    "case-57-doff-beyond-the-frame": head(8, doff=3),
    "case-57-doff-255": head(100, doff=255) + bytes(92),
    "case-57-type-2": head(8, kind=2),
    "case-57-type-255": head(8, kind=255),
    "case-58-size-4-gib": head(0xFFFFFFFF),
    "case-58-size-2-gib": head(0x80000000),
    "case-58-size-2-gib-less-one": head(0x7FFFFFFF),
}
STAGES = {
    Stage.SASL: (DROPPED, 513),
    Stage.HEADER_SENT: (closed(FRAMING), 8_193),
    Stage.OPENED: (closed(FRAMING), (1 << 20) + 1),
}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name.lower())
@pytest.mark.parametrize("said", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_what_is_no_frame_closes_the_connection(peer: RawPeer, stage: Stage, said: bytes) -> None:
    with peer.to(stage):
        assert peer.say(said).verdict() == STAGES[stage][0]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name.lower())
def test_case_58_one_byte_above_the_frame_limit_is_refused_by_its_head_alone(
    peer: RawPeer, stage: Stage
) -> None:
    verdict, size = STAGES[stage]
    with peer.to(stage):
        assert peer.say(head(size)).verdict() == verdict


def test_case_58_a_frame_as_large_as_allowed_is_taken(peer: RawPeer) -> None:
    """The other side of the limit: 64 KiB of flow with a property that fills it."""
    body = encode_big_flow(HEAD_BYTES + PERFORMATIVE_BYTES_MAX)
    with peer.to(Stage.AUTHORIZED):
        peer.timeout_s = 0.3
        assert len(body) == HEAD_BYTES + PERFORMATIVE_BYTES_MAX
        assert peer.say(body).verdict() == NOTHING


def encode_big_flow(size: int) -> bytes:
    """A flow frame of exactly that many bytes."""
    empty = len(flow(properties={Symbol("fill"): bytes(1_000)})) - 1_000
    return flow(properties={Symbol("fill"): bytes(size - empty)})


# -- cases 59 and 74: numbers in the open ---------------------------------------------------------

OPENS = {
    **{
        f"case-59-max-frame-size-{size}": (Open("raw", max_frame_size=size), closed(INVALID))
        for size in (0, 1, 511)
    },
    "case-59-max-frame-size-512": (Open("raw", max_frame_size=512), NOTHING),
    "case-59-max-frame-size-4-gib": (Open("raw", max_frame_size=0xFFFFFFFF), NOTHING),
    "case-74-idle-time-out-1-ms": (Open("raw", idle_time_out=1), closed(INVALID)),
    "case-74-idle-time-out-999-ms": (Open("raw", idle_time_out=999), closed(INVALID)),
    "case-74-idle-time-out-0": (Open("raw", idle_time_out=0), NOTHING),
    "case-74-idle-time-out-49-days": (Open("raw", idle_time_out=0xFFFFFFFF), NOTHING),
    "case-60-channel-max-0": (Open("raw", channel_max=0), NOTHING),
    "case-50-open-twice": (
        frame(Open("raw")) + frame(Open("raw")),
        closed(NOT_ALLOWED),
    ),
}


@pytest.mark.parametrize(("said", "verdict"), OPENS.values(), ids=OPENS.keys())
def test_the_numbers_of_an_open_are_checked(
    peer: RawPeer, said: Open | bytes, verdict: Verdict
) -> None:
    with peer.to(Stage.HEADER_SENT):
        peer.say(said)
        peer.wait_for(Open)
        if verdict == NOTHING:
            # It goes on: the session can be begun.
            peer.say(PERFORMATIVES["begin"])
            peer.wait_for(Begin)
        else:
            assert peer.verdict() == verdict


def test_case_74_a_peer_is_sent_heartbeats_as_often_as_it_asked(peer: RawPeer) -> None:
    with peer.to(Stage.HEADER_SENT):
        peer.say(Open("raw", idle_time_out=1_000))
        peer.wait_for(Open)
        before = len(peer.heard)
        began = time.monotonic()
        while time.monotonic() - began < 1.3:
            peer.next_frame(0.2)

        assert bytes(peer.heard[before:]).count(HEARTBEAT) >= 2
