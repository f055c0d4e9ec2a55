"""Messages recognised by their looks are messages that the full scan takes."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import twinbus.amqp.message.repeated_layout as plain_module
from tests.unit.amqp.message.test_sections import plain_messages, with_long_list
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.message.repeated_layout import RepeatedLayout
from twinbus.amqp.message.sections import is_plain, scan_message

PROPERTIES_BYTES_MAX = 128


def order(name: str, body: bytes = b"x" * 300, subject: str = "order") -> bytes:
    return Message(properties=Properties(message_id=name, subject=subject), body=body).encode()


@settings(max_examples=300, deadline=None)
@given(st.lists(plain_messages, min_size=1, max_size=4), st.data())
def test_what_is_accepted_is_plain(messages: list[bytes], data: st.DataObject) -> None:
    # Given a sender's messages, some of them damaged
    known = RepeatedLayout(PROPERTIES_BYTES_MAX)
    alike, short = order("order-1"), order("order-1", body=b"x" * 30)
    for message in [alike, order("order-2"), *messages, alike, short, short]:
        changed = bytearray(message)
        index = data.draw(st.integers(0, len(changed) - 1))
        changed[index] ^= data.draw(st.sampled_from([0, 0, 0, 1, 0x20, 0x80, 0xFF]))
        candidate = b"?" + bytes(changed) + b"?"

        # When one is accepted
        if known.accepts(candidate, 1, len(candidate) - 1):
            # Then it is a plain message, byte for byte
            assert is_plain(candidate, 1, len(candidate) - 1, PROPERTIES_BYTES_MAX)
            scan_message(candidate, 1, len(candidate) - 1)


@given(st.binary(max_size=3), st.integers(0, 60), st.sampled_from([0, 1, 30, 255, 256, 300]))
@example(b"", 0, 300)
@example(b"", 0, 30)
def test_a_message_that_ends_early_or_late_is_not_accepted(
    more: bytes, less: int, body_bytes: int
) -> None:
    # Given a known shape
    known = RepeatedLayout(PROPERTIES_BYTES_MAX)
    message = order("order-1", body=b"x" * body_bytes)
    assert known.accepts(message, 0, len(message))

    # When the next message is cut off or has something behind it
    cut = (message + more)[: len(message) + len(more) - less]

    # Then only the whole one is accepted
    assert known.accepts(cut, 0, len(cut)) is (cut == message)


def test_every_part_of_the_shape_counts() -> None:
    # Given a known shape
    known = RepeatedLayout(PROPERTIES_BYTES_MAX)
    first = order("order-1")
    assert known.accepts(first, 0, len(first))

    # Then an id that is not UTF-8, another subject of the same length, or a wrong length differ
    bad_id = first.replace(b"order-1", b"order-\xff")
    assert not known.accepts(bad_id, 0, len(bad_id))
    bad_subject = order("order-2", subject="other").replace(b"other", b"othe\xff")
    assert not known.accepts(bad_subject, 0, len(bad_subject))
    for candidate in (bad_id, bad_subject):
        try:
            scan_message(candidate, 0, len(candidate))
        except DecodeError:
            continue
        raise AssertionError("the full scan takes what was not accepted")

    # And good ones of the same or another shape are accepted
    for good in (order("order-3"), order("a"), order("ünïcode"), with_long_list(order("b" * 9))):
        assert known.accepts(good, 0, len(good))
        assert known.accepts(good, 0, len(good))


@pytest.mark.parametrize("body_bytes", [0, 1, 200, 255, 256, 1024])
def test_the_next_message_of_a_kind_is_not_looked_through_again(
    body_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a sender whose first message was looked through
    known = RepeatedLayout(PROPERTIES_BYTES_MAX)
    first = order("order-1", body=b"x" * body_bytes)
    assert known.accepts(first, 0, len(first))

    # When the next one differs in its id and its body, then its looks are enough
    monkeypatch.setattr(plain_module, "is_plain", lambda *_: pytest.fail("looked through"))
    second = order("order-2", body=b"y" * body_bytes)
    assert known.accepts(b"?" + second + b"?", 1, 1 + len(second))


RESERVED = b"application/reserved"


def typed(content_type: str | None, name: str = "order-1", body: bytes = b"x" * 300) -> bytes:
    own = Properties(message_id=name, content_type=content_type)
    return Message(properties=own, body=body).encode()


def test_reserved_bytes_in_the_properties_make_a_message_not_plain() -> None:
    """M7: the content type of a ping is found although bodies are not searched."""
    known = RepeatedLayout(PROPERTIES_BYTES_MAX, RESERVED)
    reserved, other = typed(RESERVED.decode()), typed("application/ordinary")
    assert len(reserved) == len(other)
    for message, is_accepted in [(reserved, False), (other, True), (reserved, False)]:
        assert known.accepts(message, 0, len(message)) is is_accepted


def test_reserved_bytes_in_an_id_or_a_body_are_nothing_special() -> None:
    known = RepeatedLayout(PROPERTIES_BYTES_MAX, RESERVED)
    plain = typed("text/plain")
    assert known.accepts(plain, 0, len(plain))
    for message in (
        typed("text/plain", name="application"),
        typed("text/plain", body=RESERVED),
        typed("text/plain", name="application", body=RESERVED * 10),
    ):
        assert known.accepts(message, 0, len(message))
