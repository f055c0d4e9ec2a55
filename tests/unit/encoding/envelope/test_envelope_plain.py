"""The short way through the envelope gives what the general way gives."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.roundtrip import as_delivered
from twinbus.amqp.message.message import AmqpValue, Message
from twinbus.amqp.message.properties import Properties
from twinbus.encoding.envelope import (
    RestoredMessage,
    TtlPolicy,
    alias,
    backlog_copy,
    fast_path,
    restore,
    restored_message,
)
from twinbus.encoding.envelope.fast_path import alias_plain, bare_message_start, restore_plain
from twinbus.errors import EnvelopeError

PLAIN = Message(properties=Properties(message_id="m" * 36), body=b"x" * 1_024).encode()

near_plain = st.builds(
    lambda message_id, subject, body: Message(
        properties=Properties(message_id=message_id, subject=subject), body=body
    ).encode(),
    st.sampled_from(["m-1", "é", "@@@", "", "m" * 128, None, b"\x40"]),
    st.sampled_from([None, None, "about"]),
    st.binary(max_size=300) | st.just(AmqpValue("text")),
)
paths = st.sampled_from(["o", "orders", "p" * 236, "p" * 237, "p" * 255, "p" * 256, "@"])


owners = st.sampled_from(["", "0123456789ab contoso.example", "é", "0123456789ab " + "h" * 243])


def generally_aliased(encoded: bytes, path: str, owner: str) -> bytes:
    buf, stops, front = backlog_copy._build_alias(encoded, path, owner)
    return b"".join((*front, buf[stops[4] :]))


def generally_restored(encoded: bytes) -> RestoredMessage:
    return restored_message._restored(encoded, 0, 0, None, TtlPolicy.RESTART)


def outcome(encoded: bytes) -> RestoredMessage | None:
    try:
        return restore(encoded, now_ms=0)
    except EnvelopeError:
        return None


def test_a_plain_message_takes_the_short_way() -> None:
    """P12: otherwise the tests below prove nothing."""
    for owner in ("", "0123456789ab contoso.example"):
        assert alias_plain(PLAIN, "orders", owner) is not None
        delivered = as_delivered(alias(PLAIN, "orders", owner))
        assert restore_plain(delivered, bare_message_start(delivered)) is not None


def test_the_usual_front_is_recognised_without_the_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """P12: what the pattern says of it, in half the time."""
    delivered = as_delivered(alias(PLAIN, "orders"))
    told = fast_path._FRONT.match(delivered)
    assert told is not None
    monkeypatch.setattr(fast_path, "_FRONT", re.compile(b"nothing looks like this"))
    assert bare_message_start(delivered) == told.end()
    assert bare_message_start(b"\x01" + delivered[1:]) == 0


@settings(deadline=None)
@given(message=near_plain, path=paths, owner=owners)
def test_both_ways_agree(message: bytes, path: str, owner: str) -> None:
    """P12, P21: short or general, the copy and the restored message are the same."""
    aliased = alias(message, path, owner)
    assert aliased == generally_aliased(message, path, owner)

    delivered = as_delivered(aliased)
    assert restore(delivered, now_ms=0) == generally_restored(delivered)


@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_both_ways_agree_about_damage(data: st.DataObject) -> None:
    """Y4: what the general way refuses does not slip through the short one."""
    owner = data.draw(st.sampled_from(["", "0123456789ab contoso.example"]))
    delivered = as_delivered(alias(PLAIN, "orders", owner))
    bare_at = bare_message_start(delivered)
    place = data.draw(st.integers(bare_at, bare_at + 90))
    byte = data.draw(st.integers(0, 255))
    damaged = delivered[:place] + bytes((byte,)) + delivered[place + 1 :]

    try:
        expected = generally_restored(damaged)
    except Exception:
        assert outcome(damaged) is None
    else:
        assert outcome(damaged) == expected


@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_whatever_the_bytes_are_there_is_a_message_or_a_reason(data: st.DataObject) -> None:
    """Y4: no damage raises anything but an EnvelopeError."""
    delivered = bytearray(as_delivered(alias(PLAIN, "orders"))[: data.draw(st.integers(0, 300))])
    for _ in range(data.draw(st.integers(0, 6))):
        if delivered:
            place = data.draw(st.integers(0, len(delivered) - 1))
            delivered[place] = data.draw(st.sampled_from(b"\x00\x40\x45\x53\x74\xa1\xc1\xd1\xff"))

    outcome(bytes(delivered))
