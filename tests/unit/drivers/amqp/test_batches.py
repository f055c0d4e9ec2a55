"""Batch envelopes, next to what the official SDK makes of them."""

from __future__ import annotations

import pytest
from azure.servicebus._pyamqp._decode import decode_payload
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.parcels import parcel
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.drivers.amqp.batching import FORMAT_BATCH, FORMAT_MESSAGE, encode_delivery
from twinbus.encoding.envelope import split_to_fit
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import MessageRefused


def test_one_message_travels_as_it_is() -> None:
    message = parcel(b"x")
    assert encode_delivery([message]) == (message.encoded, FORMAT_MESSAGE, len(message.encoded))


def test_the_sdk_finds_every_message_in_a_batch() -> None:
    parcels = [parcel(b"%d" % number, message_id=str(number)) for number in range(300)]
    payload, message_format, largest = encode_delivery(parcels)
    envelope = decode_payload(memoryview(payload))
    assert message_format == FORMAT_BATCH
    assert largest == max(len(each.encoded) for each in parcels)
    assert [bytes(section) for section in envelope.data] == [each.encoded for each in parcels]


def test_the_envelope_says_what_the_first_message_says() -> None:
    first = parcel(
        b"x", annotations={"x-opt-partition-key": "p"}, message_id="m", group_id="session"
    )
    envelope = Message.decode(encode_delivery([first, parcel(b"y")])[0])
    assert envelope.properties == Properties(message_id="m", group_id="session")
    assert envelope.message_annotations == {"x-opt-partition-key": "p"}


def test_a_first_message_with_an_id_alone_lends_the_envelope_its_properties() -> None:
    first = Message(properties=Properties(message_id="m-1"), body=b"x").encode()
    payload = encode_delivery([OutgoingMessage(first), parcel(b"y")])[0]
    assert Message.decode(payload).properties == Properties(message_id="m-1")
    assert payload.startswith(first[: first.index(b"m-1") + 3])
    assert len(list(decode_payload(memoryview(payload)).data)) == 2


def test_a_first_message_without_properties_has_an_envelope_too() -> None:
    parcels = [parcel(b"x"), parcel(b"y", message_id="late")]
    envelope = decode_payload(memoryview(encode_delivery(parcels)[0]))
    assert len(list(envelope.data)) == 2


@given(st.lists(st.integers(1, 600), min_size=2, max_size=80), st.integers(3_000, 20_000))
@settings(deadline=None, max_examples=50)
def test_a_batch_that_was_cut_to_fit_fits(sizes: list[int], limit: int) -> None:
    """P13: the arithmetic of the cutter is that of the envelope."""
    longest = "m" * 128
    messages = [parcel(bytes(size), message_id=longest, group_id=longest).encoded for size in sizes]
    for part in split_to_fit(messages, limit):
        load = encode_delivery([OutgoingMessage(each) for each in part])
        assert len(load.payload) <= limit or len(part) == 1


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(MessageRefused):
        encode_delivery([OutgoingMessage(b"\xff\xff"), parcel(b"x")])
