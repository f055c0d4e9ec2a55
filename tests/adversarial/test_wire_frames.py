"""Frames whose bytes are not what they claim to be (cases 61 to 66, 76).

What cannot be decoded is a decode-error on the connection: after it nobody knows where the next
value would start.
"""

from __future__ import annotations

import struct

import pytest

from tests.adversarial.raw_peer import (
    NOTHING,
    RawPeer,
    Stage,
    Verdict,
    closed,
    flow,
    frame,
    raw_frame,
    transfer,
)
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Described, Symbol, Timestamp, UInt, ULong
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    encode_performative,
)

DECODE = closed("amqp:decode-error")
FLOW, ATTACH, BEGIN = 0x13, 0x12, 0x11

NULL = b"\x40"
ZERO_WINDOWS = encode_value([UInt(0)] * 4)


def list32(*items: bytes, count: int | None = None) -> bytes:
    body = b"".join(items)
    return (
        b"\xd0" + struct.pack(">II", len(body) + 4, len(items) if count is None else count) + body
    )


def described(descriptor: bytes, value: bytes) -> bytes:
    return b"\x00" + descriptor + value


def by_code(code: int) -> bytes:
    return b"\x53" + bytes((code,))


def by_symbol(name: str) -> bytes:
    return encode_value(Symbol(name))


def flow_with(value: bytes) -> bytes:
    """A session flow that carries any bytes where its properties belong."""
    zero = b"\x43"
    fields = [zero, b"\x70\x00\x00\x08\x00", zero, zero] + [NULL] * 4 + [b"\x42", b"\x42", value]
    return raw_frame(described(by_code(FLOW), list32(*fields)))


def in_map(value: bytes, key: bytes = by_symbol("x")) -> bytes:
    """A map with one entry."""
    body = key + value
    return b"\xd1" + struct.pack(">II", len(body) + 4, 2) + body


def map32(count: int, *items: bytes) -> bytes:
    body = b"".join(items)
    return b"\xd1" + struct.pack(">II", len(body) + 4, count) + body


def nested(levels: int) -> bytes:
    value = b"\x45"
    for _ in range(levels - 1):
        value = list32(value)
    return value


def array32(count: int, constructor: bytes, body: bytes = b"") -> bytes:
    inner = constructor + body
    return b"\xf0" + struct.pack(">II", len(inner) + 4, count) + inner


A = by_symbol("a")

UNDECODABLE = {
    "case-61-unknown-performative": raw_frame(described(by_code(0x19), list32())),
    "case-61-performative-0": raw_frame(described(by_code(0), list32())),
    "case-61-descriptor-of-eight-bytes": raw_frame(described(b"\x80" + b"\xff" * 8, list32())),
    "case-61-symbol-that-is-a-prefix": raw_frame(described(by_symbol("amqp:flow"), ZERO_WINDOWS)),
    "case-61-symbol-that-is-a-longer-prefix": raw_frame(
        described(by_symbol("amqp:flow:lis"), ZERO_WINDOWS)
    ),
    "case-61-symbol-that-goes-on": raw_frame(
        described(by_symbol("amqp:flow:list:more"), ZERO_WINDOWS)
    ),
    "case-61-symbol-in-capitals": raw_frame(described(by_symbol("AMQP:FLOW:LIST"), ZERO_WINDOWS)),
    "case-61-string-instead-of-symbol": raw_frame(
        described(encode_value("amqp:flow:list"), ZERO_WINDOWS)
    ),
    "case-61-source-as-performative": raw_frame(described(by_code(0x28), list32())),
    "case-61-no-descriptor": raw_frame(ZERO_WINDOWS),
    "case-61-fields-in-a-map": raw_frame(described(by_code(FLOW), map32(0))),
    "case-61-fields-in-an-array": raw_frame(described(by_code(FLOW), array32(0, b"\x52"))),
    "case-62-fields-4-gib": raw_frame(
        described(by_code(FLOW), b"\xd0\xff\xff\xff\xff\x00\x00\x00\x01\x40")
    ),
    "case-62-fields-count-4-g": raw_frame(described(by_code(FLOW), list32(NULL, count=0xFFFFFFFF))),
    "case-62-list-count-4-g": flow_with(in_map(list32(NULL, count=0xFFFFFFFF))),
    "case-62-map-count-4-g": flow_with(map32(0xFFFFFFFE, A, NULL)),
    "case-62-array-count-4-g": flow_with(in_map(array32(0xFFFFFFFF, b"\x50", b"\x01"))),
    "case-62-zero-width-array-of-null": flow_with(in_map(array32(0x7FFFFFFF, b"\x40"))),
    "case-62-zero-width-array-of-true": flow_with(in_map(array32(0x7FFFFFFF, b"\x41"))),
    "case-62-zero-width-array-of-empty-lists": flow_with(in_map(array32(0x7FFFFFFF, b"\x45"))),
    "case-62-zero-width-array-small": flow_with(in_map(array32(8, b"\x40"))),
    "case-62-many-allowed-lists-in-one-frame": flow_with(
        in_map(list32(*[list32(*[NULL] * 1_000)] * 70))
    ),
    "case-62-many-allowed-arrays-in-one-frame": flow_with(
        in_map(list32(*[array32(1_000, b"\x50", bytes(1_000))] * 70))
    ),
    "case-62-binary-4-gib": flow_with(in_map(b"\xb0\xff\xff\xff\xff\x01")),
    "case-62-string-longer-than-the-frame": flow_with(in_map(b"\xa1\xffabc")),
    "case-63-nesting-65": flow_with(in_map(nested(65))),
    "case-63-nesting-3000": flow_with(in_map(nested(3_000))),
    "case-63-described-5000-deep": flow_with(in_map(b"\x00\x53\x01" * 5_000 + NULL)),
    "case-64-odd-map": flow_with(map32(1, A)),
    "case-64-same-key-twice": flow_with(map32(4, A, NULL, A, NULL)),
    "case-64-null-key": flow_with(map32(2, NULL, NULL)),
    "case-64-key-of-the-wrong-type": flow_with(map32(2, encode_value("a"), NULL)),
    "case-65-string-not-utf-8": flow_with(in_map(b"\xa1\x02\xc3\x28")),
    "case-65-string-with-a-lone-surrogate": flow_with(in_map(b"\xa1\x03\xed\xa0\x80")),
    "case-65-symbol-not-ascii": flow_with(in_map(b"\xa3\x02\xc3\xa9")),
    "case-65-symbol-key-not-ascii": flow_with(map32(2, b"\xa3\x02\xc3\xa9", NULL)),
    "case-65-link-name-not-utf-8": raw_frame(
        described(by_code(ATTACH), list32(b"\xa1\x01\xff", b"\x43", b"\x42"))
    ),
    "case-66-bytes-after-a-disposition": raw_frame(
        encode_performative(Disposition(True, 0, 0, True, Accepted())) + b"garbage"
    ),
    "case-66-bytes-after-a-begin": raw_frame(
        encode_performative(Begin(None, 0, 1, 1)) + b"\x40", channel=1
    ),
    "case-66-bytes-after-an-end": raw_frame(encode_performative(End()) + b"\x00"),
    "case-66-bytes-after-a-detach": raw_frame(encode_performative(Detach(0, True)) + bytes(100)),
    "case-66-mandatory-field-missing": raw_frame(described(by_code(ATTACH), list32())),
    "case-66-mandatory-field-null": raw_frame(
        described(by_code(ATTACH), list32(NULL, b"\x43", b"\x42"))
    ),
    "case-66-more-fields-than-there-are": raw_frame(described(by_code(0x17), list32(NULL, NULL))),
    "case-66-performative-cut-short": raw_frame(b"\x00\x53\x13\xc0\x20\x04\x43"),
    "case-66-descriptor-cut-short": raw_frame(b"\x00\x53"),
    "case-66-one-byte": raw_frame(b"\x00"),
    "case-76-decimal128-as-a-descriptor": raw_frame(described(b"\x94" + bytes(16), ZERO_WINDOWS)),
    "case-76-list-as-a-descriptor": raw_frame(described(b"\x45", ZERO_WINDOWS)),
    "case-76-described-descriptor": raw_frame(
        described(described(by_code(1), by_code(2)), ZERO_WINDOWS)
    ),
    "case-76-char-beyond-unicode": flow_with(in_map(b"\x73\x00\x11\x00\x00")),
    "case-76-boolean-2": flow_with(in_map(b"\x56\x02")),
    "case-76-unknown-constructor": flow_with(in_map(b"\xff\x00")),
    "case-76-wrong-type-in-a-field": raw_frame(
        described(by_code(FLOW), list32(NULL, b"\xa1\x01a", b"\x43", b"\x43"))
    ),
    "case-76-role-is-a-number": raw_frame(
        described(by_code(ATTACH), list32(b"\xa1\x01a", b"\x43", b"\x50\x01"))
    ),
    "case-76-settle-mode-3": raw_frame(
        described(by_code(ATTACH), list32(b"\xa1\x01a", b"\x43", b"\x42", b"\x50\x03"))
    ),
    "case-76-unknown-delivery-state": raw_frame(
        described(
            by_code(0x15),
            list32(b"\x41", b"\x43", b"\x43", b"\x41", described(by_code(0x99), b"\x45")),
        )
    ),
    "case-76-source-that-is-an-error": raw_frame(
        described(
            by_code(ATTACH),
            list32(b"\xa1\x01a", b"\x43", b"\x41", NULL, NULL, described(by_code(0x1D), list32(A))),
        )
    ),
}


@pytest.mark.parametrize("said", UNDECODABLE.values(), ids=UNDECODABLE.keys())
def test_what_cannot_be_decoded_closes_the_connection(peer: RawPeer, said: bytes) -> None:
    # What is longer than a peer without a token may say needs one first.
    with peer.to(Stage.BEGUN if len(said) < 50_000 else Stage.AUTHORIZED):
        assert peer.say(said).verdict() == DECODE


OPEN_FIELDS = {
    "case-61-prefix-of-open": described(by_symbol("amqp:open:lis"), list32(b"\xa1\x01a")),
    "case-62-count-4-g": described(by_code(0x10), list32(b"\xa1\x01a", count=0xFFFFFFFF)),
    "case-63-nesting-65": described(
        by_code(0x10), list32(b"\xa1\x01a", *[NULL] * 8, in_map(b"\x00\x53\x01" * 65 + NULL))
    ),
    "case-65-container-id-not-utf-8": described(by_code(0x10), list32(b"\xa1\x01\xff")),
    "case-66-no-container-id": described(by_code(0x10), b"\x45"),
    "case-66-bytes-after-the-open": described(by_code(0x10), list32(b"\xa1\x01a")) + b"more",
}


@pytest.mark.parametrize("said", OPEN_FIELDS.values(), ids=OPEN_FIELDS.keys())
def test_an_open_that_cannot_be_decoded_is_answered_with_open_and_close(
    peer: RawPeer, said: bytes
) -> None:
    with peer.to(Stage.HEADER_SENT):
        assert peer.say(raw_frame(said)).verdict() == DECODE


SASL_FIELDS = {
    "case-61-unknown-sasl-performative": described(by_code(0x45), list32()),
    "case-61-open-in-a-sasl-frame": described(by_code(0x10), list32(b"\xa1\x01a")),
    "case-62-count-4-g": described(by_code(0x41), list32(A, count=0xFFFFFFFF)),
    "case-63-nesting": described(by_code(0x41), b"\x00\x53\x01" * 100 + NULL),
    "case-65-mechanism-not-ascii": described(by_code(0x41), list32(b"\xa3\x01\xff")),
    "case-66-no-mechanism": described(by_code(0x41), b"\x45"),
    "case-66-bytes-after-the-init": described(by_code(0x41), list32(by_symbol("ANONYMOUS")))
    + b"more",
}


@pytest.mark.parametrize("said", SASL_FIELDS.values(), ids=SASL_FIELDS.keys())
def test_a_sasl_frame_that_cannot_be_decoded_drops_the_connection(
    peer: RawPeer, said: bytes
) -> None:
    with peer.to(Stage.SASL):
        assert peer.say(raw_frame(said, frame_type=1)).verdict().level == "dropped"


ODD_BUT_RIGHT: dict[str, tuple[bytes, Verdict]] = {
    "case-61-symbolic-descriptor": (
        raw_frame(described(by_symbol("amqp:flow:list"), ZERO_WINDOWS)),
        NOTHING,
    ),
    "case-61-descriptor-of-eight-bytes": (
        raw_frame(described(b"\x80" + bytes(7) + b"\x13", ZERO_WINDOWS)),
        NOTHING,
    ),
    "case-63-nesting-60": (flow_with(in_map(nested(60))), NOTHING),
    "case-66-omitted-trailing-nulls": (
        raw_frame(
            described(by_code(BEGIN), list32(NULL, b"\x43", b"\x52\x0a", b"\x52\x0a")), channel=1
        ),
        NOTHING,
    ),
    "case-66-attach-of-three-fields": (
        raw_frame(described(by_code(ATTACH), list32(b"\xa1\x01a", b"\x43", b"\x42"))),
        Verdict("detach", "amqp:invalid-field"),
    ),
    "case-76-decimal128": (flow_with(in_map(b"\x94" + b"\xff" * 16)), NOTHING),
    "case-76-char-10ffff": (flow_with(in_map(b"\x73\x00\x10\xff\xff")), NOTHING),
    "case-76-first-timestamp": (
        flow(properties={Symbol("x"): Timestamp(-(2**63))}),
        NOTHING,
    ),
    "case-76-last-timestamp": (flow(properties={Symbol("x"): Timestamp(2**63 - 1)}), NOTHING),
    "case-76-described-value": (
        flow(properties={Symbol("x"): Described(ULong(2**64 - 1), None)}),
        NOTHING,
    ),
}


@pytest.mark.parametrize(("said", "verdict"), ODD_BUT_RIGHT.values(), ids=ODD_BUT_RIGHT.keys())
def test_what_is_odd_but_right_is_taken(peer: RawPeer, said: bytes, verdict: Verdict) -> None:
    with peer.to(Stage.BEGUN):
        peer.say(said)
        if verdict == NOTHING:
            # It goes on: another session can be begun.
            peer.say(frame(Begin(None, 0, 1, 1), channel=9))
            peer.wait_for(Begin)
        else:
            assert peer.verdict() == verdict


# Everything that an attach may carry and that is answered with what was asked.
ECHOED = {
    "decimals": b"\x94" + bytes(16),
    "decimal32": b"\x74" + bytes(4),
    "char": b"\x73\x00\x10\xff\xff",
    "array-of-arrays": array32(
        2, b"\xf0", struct.pack(">II", 6, 1) + b"\x50\x01" + struct.pack(">II", 6, 1) + b"\x50\x02"
    ),
    "array-of-described": array32(2, described(by_code(9), b"\x50"), b"\x01\x02"),
    "empty-array-without-constructor": b"\xe0\x01\x00",
    "nan": b"\x82\x7f\xf8\x00\x00\x00\x00\x00\x00",
    "nested-55": nested(55),
    "200-lists": list32(*[b"\x45"] * 200),
    "900-items": list32(*[b"\x43"] * 900),
    "long-string": b"\xb1" + struct.pack(">I", 60_000) + b"x" * 60_000,
}


@pytest.mark.parametrize("value", ECHOED.values(), ids=ECHOED.keys())
def test_case_76_an_attach_full_of_odd_values_can_be_answered(peer: RawPeer, value: bytes) -> None:
    """The answer repeats the source and target: what was decoded must be encodable."""
    target = described(
        by_code(0x29),
        list32(encode_value("$cbs"), NULL, NULL, NULL, NULL, in_map(value)),
    )
    said = raw_frame(
        described(
            by_code(ATTACH),
            list32(b"\xa1\x04odd!", b"\x52\x05", b"\x42", NULL, NULL, NULL, target),
        )
    )
    with peer.to(Stage.AUTHORIZED):
        peer.say(said)

        assert peer.wait_for(Attach).name == "odd!"


def test_case_66_the_payload_of_a_transfer_is_not_garbage(peer: RawPeer) -> None:
    """The one performative that bytes may follow; an unknown handle is what is wrong here."""
    with peer.to(Stage.BEGUN):
        verdict = peer.say(transfer(3, 0, b"anything")).verdict()

    assert verdict == Verdict("end", "amqp:session:unattached-handle")
