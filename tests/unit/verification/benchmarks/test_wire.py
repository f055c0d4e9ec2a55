"""The benchmark's two clients next to independent decoders and to plain arithmetic."""

from __future__ import annotations

import ast
import random
import time
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus._base_handler import _generate_sas_token
from azure.servicebus._pyamqp._decode import decode_frame, decode_payload
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.source import parse
from verification.benchmarks.processes import BenchError
from verification.benchmarks.rabbitmq_wire import (
    DELIVER,
    ConfirmLedger,
    RabbitPublisher,
    count_deliveries,
    encode_publish,
    frame,
    method,
    short_string,
)
from verification.benchmarks.wire import (
    ACCEPTED,
    BATCH_FORMAT,
    RELEASED,
    Address,
    encode_batch,
    encode_message,
    sas_token,
    split_frames,
)
from verification.benchmarks.wire_links import accepted_range, fill_in, template
from verification.benchmarks.wire_values import FALSE, NULL, TRUE, decode, described, listed, uint

BENCH = Path(__file__).parents[4] / "verification" / "benchmarks"


def test_the_sdk_reads_our_message_as_it_was_meant() -> None:
    message = decode_payload(memoryview(encode_message(b"x" * 300)))
    assert b"".join(message.data) == b"x" * 300
    assert message.properties.content_type == b"application/octet-stream"


def test_a_batch_holds_each_message_as_one_data_section() -> None:
    envelope = decode_payload(memoryview(encode_batch(b"y" * 1024, 3)))
    assert [bytes(section) for section in envelope.data] == [encode_message(b"y" * 1024)] * 3


def test_deliveries_from_a_template_carry_their_own_ids_and_tags() -> None:
    # Given a template for a batch delivery that fits one frame
    frames = template(
        handle=2, message_format=BATCH_FORMAT, payload=b"p" * 500, frame_bytes_max=1024
    )

    # When deliveries 7 and 8 are made from it
    data = fill_in(frames, first_id=7, count=2)

    # Then each is one transfer with that id, tag, format and payload
    transfers = [decode_frame(memoryview(data)[start:end]) for start, end in split_frames(data)[0]]
    assert [(kind, f[0], f[1], f[2], f[3], bool(f[5])) for kind, f in transfers] == [
        (0x14, 2, 7, b"\0\0\0\7", BATCH_FORMAT, False),
        (0x14, 2, 8, b"\0\0\0\x08", BATCH_FORMAT, False),
    ]
    assert [bytes(fields[-1]) for _, fields in transfers] == [b"p" * 500] * 2


def test_a_delivery_larger_than_a_frame_is_split_and_says_so() -> None:
    data = fill_in(template(0, 0, bytes(range(250)) * 10, 1024), first_id=5, count=1)
    spans, rest = split_frames(data)
    fields = [decode_frame(memoryview(data)[start:end])[1] for start, end in spans]
    assert rest == b""
    assert all(end - start + 8 <= 1024 for start, end in spans)
    assert [(f[1], f[5]) for f in fields] == [(5, True), (5, True), (5, False)]
    assert b"".join(bytes(f[-1]) for f in fields) == bytes(range(250)) * 10


def test_our_token_is_the_one_that_the_sdk_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    audience = "sb://localhost:5701/orders"
    theirs = _generate_sas_token(audience, "root", "c2VjcmV0", timedelta(seconds=600)).token
    expires_s = int(str(theirs).partition("&se=")[2].partition("&")[0])
    assert sas_token(audience, "root", "c2VjcmV0", expires_s) == theirs


def test_an_address_is_read_from_a_connection_string() -> None:
    text = (
        "Endpoint=sb://localhost:5701/;SharedAccessKeyName=root;SharedAccessKey=a2V5PQ==;"
        "UseDevelopmentEmulator=true;"
    )
    assert Address.from_connection_string(text) == Address("localhost", 5701, "root", "a2V5PQ==")


@settings(deadline=None)  # a busy machine is no counter-example
@given(st.integers(1, 60), st.integers(0, 2**32))
def test_every_publish_is_confirmed_exactly_once_in_whatever_order(total: int, seed: int) -> None:
    # Given single and cumulative confirms that cover all publishes in a random order, some twice
    chance = random.Random(seed)
    confirms = [(tag, chance.random() < 0.3) for tag in range(1, total + 1) for _ in "ab"]
    chance.shuffle(confirms)

    # When the ledger takes them in
    ledger, confirmed = ConfirmLedger(), []
    for tag, multiple in confirms:
        for first, last in ledger.confirm(tag, multiple):
            confirmed += range(first, last + 1)

    # Then each publish was reported once
    assert sorted(confirmed) == list(range(total))
    assert ledger.confirmed_below == total


def test_confirms_that_arrive_in_pieces_are_put_together() -> None:
    # Given two confirms, the second cumulative, and a publisher without a connection
    publisher = RabbitPublisher.__new__(RabbitPublisher)
    publisher._unread, publisher._ledger = b"", ConfirmLedger()
    acks = bytes.fromhex(
        "0100010000000d003c0050000000000000000100ce0100010000000d003c0050000000000000000501ce"
    )

    # When they arrive byte by byte
    ranges = [found for byte in acks for found in publisher.feed(bytes([byte]))]

    # Then all five publishes are confirmed
    assert ranges == [(0, 0), (1, 4)]


def test_a_publish_is_three_frames_that_end_where_they_say() -> None:
    data, at, kinds = encode_publish("orders", b"z" * 250), 0, []
    while at < len(data):
        kinds.append(data[at])
        at += 7 + int.from_bytes(data[at + 3 : at + 7], "big")
        assert data[at] == 0xCE
        at += 1
    assert kinds == [1, 2, 3]


# These measure our clients; the broker's benchmarks have clients of their own.
MEASURE_CLIENTS = {
    "pairing.py",
    "coming_home.py",
    "drain_site.py",
    "cost_job.py",
    "paired_sends.py",
}


def test_the_brokers_benchmarks_do_not_use_the_code_that_they_measure() -> None:
    for path in BENCH.glob("*.py"):
        if path.name in MEASURE_CLIENTS:
            continue
        for node in ast.walk(parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "twinbus"], path.name


@pytest.mark.parametrize(
    "outcome",
    [
        listed(TRUE, uint(4), uint(6), TRUE, described(RELEASED, listed())),
        listed(TRUE, uint(4), uint(6), FALSE, described(ACCEPTED, listed())),
        listed(TRUE, uint(4), NULL, TRUE, NULL),
        listed(TRUE, uint(4), uint(6), TRUE),
    ],
    ids=["released", "accepted but not settled", "no state", "state left out"],
)
def test_only_settled_and_accepted_counts(outcome: bytes) -> None:
    accepted = listed(TRUE, uint(4), uint(6), TRUE, described(ACCEPTED, listed()))
    assert accepted_range(decode(accepted, 0)[0]) == (4, 6)
    with pytest.raises(BenchError, match="did not accept deliveries 4"):
        accepted_range(decode(outcome, 0)[0])


def delivered(tag: int, body: bytes) -> bytes:
    """One message as RabbitMQ delivers it to a consumer named ``c``."""
    arguments = short_string("c") + tag.to_bytes(8, "big") + b"\0" + short_string("") * 2
    header = (60).to_bytes(2, "big") + bytes(12)
    return method(1, DELIVER, arguments) + frame(2, 1, header) + frame(3, 1, body)


def test_deliveries_are_counted_once_wherever_the_bytes_are_cut() -> None:
    data = b"".join(delivered(tag, b"x" * 50) for tag in (1, 2, 3))
    for cut in range(len(data) + 1):
        # When the bytes arrive in two pieces
        first_count, first_tag, rest = count_deliveries(data[:cut])
        second_count, second_tag, rest = count_deliveries(rest + data[cut:])

        # Then three messages are seen, and the last tag is the third one's
        assert (first_count + second_count, second_tag or first_tag, rest) == (3, 3, b"")
