"""Messages that are not what they claim to be (cases 29 to 31, 62 to 66, 71, 76 to 78).

A bad message is a rejected delivery: the sender hears the condition, its link stays up, and
nothing of it reaches the queue.
"""

from __future__ import annotations

import struct

import pytest

from tests.adversarial.guards import VAULT_QUEUE, Guard
from tests.adversarial.raw_peer import (
    FIRST_FREE_HANDLE,
    RawPeer,
    Stage,
    Verdict,
    detached,
    ended,
    rejected,
    sender,
    transfer,
)
from tests.support.broker_process import BrokerProcess
from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.amqp.performatives import Accepted, Attach, Disposition, Flow

LINK = FIRST_FREE_HANDLE
BATCH = 0x80013700
NULL = b"\x40"

DECODE = rejected("amqp:decode-error")


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def list32(*items: bytes, count: int | None = None) -> bytes:
    body = b"".join(items)
    return (
        b"\xd0" + struct.pack(">II", len(body) + 4, len(items) if count is None else count) + body
    )


def map32(*items: bytes, count: int | None = None) -> bytes:
    return b"\xd1" + list32(*items, count=count)[1:]


def array32(count: int, constructor: bytes, body: bytes = b"") -> bytes:
    inner = constructor + body
    return b"\xf0" + struct.pack(">II", len(inner) + 4, count) + inner


def binary(data: bytes) -> bytes:
    return b"\xb0" + struct.pack(">I", len(data)) + data


HEADER = section(0x70, b"\x45")
ANNOTATIONS = section(0x72, map32())
PROPERTIES = section(0x73, b"\x45")
APPLICATION = section(0x74, map32())
DATA = section(0x75, binary(b"body"))
SEQUENCE = section(0x76, b"\x45")
VALUE = section(0x77, NULL)
FOOTER = section(0x78, map32())
KEY = encode_value("key")


def property_of(value: bytes, key: bytes = KEY) -> bytes:
    return section(0x74, map32(key, value)) + DATA


def annotation_of(value: bytes, key: bytes = encode_value(Symbol("x-opt-mine"))) -> bytes:
    return section(0x72, map32(key, value)) + DATA


def nested(levels: int) -> bytes:
    value = b"\x45"
    for _ in range(levels - 1):
        value = list32(value)
    return value


BAD_MESSAGES = {
    "case-29-nothing-at-all": b"",
    "case-62-value-list-count-4-g": section(0x77, list32(NULL, count=0xFFFFFFFF)),
    "case-62-value-zero-width-array": section(0x77, array32(0x7FFFFFFF, b"\x40")),
    "case-62-value-many-lists": section(0x77, list32(*[list32(*[NULL] * 1_000)] * 70)),
    "case-62-data-4-gib": section(0x75, b"\xb0\xff\xff\xff\xff"),
    "case-62-application-properties-count-4-g": section(0x74, map32(KEY, NULL, count=0xFFFFFFFE)),
    "case-63-value-nesting-66": section(0x77, nested(66)),
    "case-63-value-nesting-5000": section(0x77, nested(5_000)),
    "case-63-annotation-nesting-5000": annotation_of(nested(5_000)),
    "case-63-footer-nesting-5000": DATA
    + section(0x78, map32(encode_value(Symbol("f")), nested(5_000))),
    "case-64-application-properties-odd": section(0x74, map32(KEY)) + DATA,
    "case-64-application-properties-twice": section(0x74, map32(KEY, NULL, KEY, NULL)) + DATA,
    "case-64-application-properties-null-key": property_of(NULL, key=NULL),
    "case-64-application-properties-symbol-key": property_of(NULL, key=encode_value(Symbol("a"))),
    "case-64-application-properties-with-a-list": property_of(b"\x45"),
    "case-64-annotations-odd": section(0x72, map32(KEY)) + DATA,
    "case-64-annotations-string-key": annotation_of(NULL, key=KEY),
    "case-65-property-not-utf-8": property_of(b"\xa1\x01\xff"),
    "case-65-property-lone-surrogate": property_of(b"\xa1\x03\xed\xa0\x80"),
    "case-65-property-key-not-utf-8": property_of(NULL, key=b"\xa1\x01\xff"),
    "case-65-subject-not-utf-8": section(0x73, list32(NULL, NULL, NULL, b"\xa1\x01\xff")) + DATA,
    "case-65-value-symbol-not-ascii": section(0x77, b"\xa3\x01\xff"),
    "case-66-garbage": b"garbage",
    "case-66-bytes-after-the-body": DATA + b"more",
    "case-66-section-cut-short": DATA[:-1],
    "case-66-section-without-value": section(0x75, b""),
    "case-66-too-many-properties": section(0x73, list32(*[NULL] * 14)) + DATA,
    "case-66-section-is-not-described": binary(b"body"),
    "case-76-char-beyond-unicode": section(0x77, b"\x73\x00\x11\x00\x00"),
    "case-76-message-id-is-a-list": section(0x73, list32(b"\x45")) + DATA,
    "case-76-ttl-is-a-string": section(0x70, list32(NULL, NULL, b"\xa1\x01a")) + DATA,
    "case-76-priority-is-a-long": section(0x70, list32(NULL, b"\x55\x01")) + DATA,
    "case-76-section-descriptor-is-a-decimal128": b"\x00\x94" + bytes(16) + binary(b"body"),
    "case-76-data-is-a-string": section(0x75, b"\xa1\x01a"),
    "case-77-only-a-header": HEADER,
    "case-77-only-annotations": ANNOTATIONS,
    "case-77-header-and-annotations-alone": HEADER + ANNOTATIONS,
    "case-77-sections-out-of-order": PROPERTIES + HEADER + DATA,
    "case-77-body-before-properties": DATA + PROPERTIES,
    "case-77-two-headers": HEADER + HEADER + DATA,
    "case-77-two-properties-sections": PROPERTIES + PROPERTIES + DATA,
    "case-77-two-application-properties": APPLICATION + APPLICATION + DATA,
    "case-77-two-values": VALUE + VALUE,
    "case-77-two-kinds-of-body": DATA + VALUE,
    "case-77-data-then-sequence": DATA + SEQUENCE,
    "case-77-body-after-the-footer": DATA + FOOTER + DATA,
    "case-77-unknown-section": section(0x79, NULL) + DATA,
    "case-77-symbolic-section-that-is-a-prefix": b"\x00"
    + encode_value(Symbol("amqp:data:bin"))
    + binary(b"x"),
}


@pytest.fixture
def link(peer: RawPeer) -> RawPeer:
    """A hostile peer that may send to the vault, were it not for what it sends."""
    peer.to(Stage.AUTHORIZED).say(sender(VAULT_QUEUE, LINK))
    peer.wait_for(Attach)
    return peer


@pytest.mark.parametrize("payload", BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
def test_a_bad_message_is_rejected(link: RawPeer, payload: bytes) -> None:
    assert link.say(transfer(LINK, 1, payload)).verdict() == DECODE


@pytest.mark.parametrize("payload", BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
def test_a_bad_message_in_a_batch_refuses_the_batch(link: RawPeer, payload: bytes) -> None:
    """Case 30: all or nothing, wherever in the batch the bad one stands."""
    good = section(0x75, binary(DATA))
    batch = good + section(0x75, binary(payload)) + good

    assert link.say(transfer(LINK, 1, batch, message_format=BATCH)).verdict() == DECODE


def in_batch(*messages: bytes) -> bytes:
    return b"".join(section(0x75, binary(message)) for message in messages)


def in_itself(levels: int) -> bytes:
    message = DATA
    for _ in range(levels):
        message = in_batch(message)
    return message


BAD_FORMATS = {
    "case-77-format-1": (DATA, 1, rejected("amqp:not-implemented")),
    "case-77-format-4-g": (DATA, 0xFFFFFFFF, rejected("amqp:not-implemented")),
    "case-77-format-next-to-batch": (DATA, BATCH + 1, rejected("amqp:not-implemented")),
    "case-78-batch-of-a-value": (VALUE, BATCH, DECODE),
    "case-78-batch-of-a-sequence": (SEQUENCE, BATCH, DECODE),
    "case-78-batch-of-nothing": (b"", BATCH, DECODE),
    "case-78-batch-without-messages": (PROPERTIES, BATCH, DECODE),
    "case-78-batch-of-empty-messages": (in_batch(b"", b""), BATCH, DECODE),
}


@pytest.mark.parametrize(
    ("payload", "message_format", "verdict"), BAD_FORMATS.values(), ids=BAD_FORMATS.keys()
)
def test_a_bad_format_is_rejected(
    link: RawPeer, payload: bytes, message_format: int, verdict: Verdict
) -> None:
    assert link.say(transfer(LINK, 1, payload, message_format=message_format)).verdict() == verdict


@pytest.mark.parametrize("levels", [2, 3, 100])
def test_case_78_a_batch_in_a_batch_is_only_a_message_with_a_binary_body(
    broker: BrokerProcess, link: RawPeer, levels: int
) -> None:
    """An envelope is opened once: what is inside is a message like any other, and stays one."""
    queue = broker.fresh_queue()
    link.say(sender(queue, LINK + 1))
    link.wait_for(Attach)

    verdict = link.say(transfer(LINK + 1, 1, in_itself(levels), message_format=BATCH)).verdict()

    assert verdict == Verdict("accepted")
    assert broker.queue(queue)["active_message_count"] == 1


# -- transfers that are wrong in themselves -------------------------------------------------------

GOOD = Message(body=b"good").encode()
INVALID = detached("amqp:invalid-field")

BAD_TRANSFERS = {
    "case-71-tag-33-bytes": (transfer(LINK, 1, GOOD, delivery_tag=b"t" * 33), INVALID),
    "case-71-tag-1-mib": (transfer(LINK, 1, GOOD, delivery_tag=b"t" * 500_000), INVALID),
    "case-71-no-tag": (transfer(LINK, 1, GOOD, delivery_tag=None), INVALID),
    "case-71-no-delivery-id": (transfer(LINK, None, GOOD, delivery_tag=b"t"), INVALID),
    "case-71-second-delivery-before-the-first-is-whole": (
        transfer(LINK, 1, GOOD, more=True) + transfer(LINK, 2, GOOD),
        detached("amqp:not-allowed"),
    ),
    "case-72-transfer-on-an-unknown-handle": (
        transfer(900, 1, GOOD),
        ended("amqp:session:unattached-handle"),
    ),
    "case-72-transfer-on-a-handle-of-4-g": (
        transfer(0xFFFFFFFF, 1, GOOD),
        ended("amqp:session:unattached-handle"),
    ),
    "case-72-transfer-on-the-link-of-replies": (
        transfer(0, 1, GOOD),
        detached("amqp:not-allowed"),
    ),
}


@pytest.mark.parametrize(("said", "verdict"), BAD_TRANSFERS.values(), ids=BAD_TRANSFERS.keys())
def test_a_bad_transfer_ends_its_link(link: RawPeer, said: bytes, verdict: Verdict) -> None:
    assert link.say(said).verdict() == verdict


def test_case_71_a_delivery_id_used_again_loses_nothing(
    broker: BrokerProcess, link: RawPeer
) -> None:
    """The same transfer again is answered and stored once; another one under its id is stored."""
    queue = broker.fresh_queue()
    link.say(sender(queue, LINK + 1))
    link.wait_for(Attach)
    other = Message(body=b"other").encode()
    for payload in (GOOD, GOOD, other, GOOD, other):
        link.say(transfer(LINK + 1, 7, payload))
        assert link.verdict() == Verdict("accepted")

    assert broker.queue(queue)["active_message_count"] == 2


def test_case_71_delivery_ids_that_run_backwards_lose_nothing(
    broker: BrokerProcess, link: RawPeer
) -> None:
    queue = broker.fresh_queue()
    link.say(sender(queue, LINK + 1))
    link.wait_for(Attach)
    for number in (9, 8, 7, 0xFFFFFFFF, 0x80000000, 3):
        payload = Message(body=b"number %d" % number).encode()
        link.say(transfer(LINK + 1, number, payload))
        assert link.verdict() == Verdict("accepted")

    assert broker.queue(queue)["active_message_count"] == 6


def test_case_71_an_id_from_the_middle_of_a_run_used_again_loses_nothing(
    broker: BrokerProcess, link: RawPeer
) -> None:
    """M8: pipelined sends are taken in runs; the odd one out is told from the others."""
    queue = broker.fresh_queue()
    link.say(sender(queue, LINK + 1))
    link.wait_for(Attach)
    # Ids of four bytes each, which is how a busy sender writes them.
    ids = [*range(1_000, 1_040), 1_020, *range(1_040, 1_060), 1_050, 1_050]
    said = [
        transfer(LINK + 1, number, Message(body=b"%d" % place).encode(), delivery_tag=b"four")
        for place, number in enumerate(ids)
    ]
    link.say(b"".join(said))
    answered: set[int] = set()
    while answered < set(ids):
        outcome = link.wait_for(Disposition)
        assert outcome.state == Accepted()
        answered |= set(range(outcome.first, outcome.last + 1))

    assert broker.queue(queue)["active_message_count"] == len(ids)


# -- case 31: deliveries that never end -----------------------------------------------------------

CHUNK = bytes(60_000)


def test_case_31_a_delivery_in_parts_may_not_pass_the_largest_batch(link: RawPeer) -> None:
    parts = [transfer(LINK, 1, CHUNK, more=True)] * 18

    assert link.say(*parts).verdict() == detached("amqp:link:message-size-exceeded")


def test_case_31_one_byte_above_the_largest_batch_is_refused(link: RawPeer) -> None:
    """In two frames, since one frame cannot hold it."""
    half = bytes(1 << 19)
    link.say(transfer(LINK, 1, half, more=True))

    verdict = link.say(transfer(LINK, 1, half + b"x")).verdict()

    assert verdict == detached("amqp:link:message-size-exceeded")


def test_case_31_exactly_the_largest_batch_is_looked_at(link: RawPeer) -> None:
    half = bytes(1 << 19)
    link.say(transfer(LINK, 1, half, more=True, message_format=BATCH))

    assert link.say(transfer(LINK, 1, half)).verdict() == DECODE


def test_case_31_a_thousand_links_with_unfinished_deliveries_stay_bounded(link: RawPeer) -> None:
    """Each link may hold a part of a delivery; all links of a connection share one allowance."""
    count = 200
    link.say(*[sender(VAULT_QUEUE, LINK + number) for number in range(1, count)])
    for _ in range(1, count):
        link.wait_for(Attach)

    for number in range(1, count):
        link.say(*[transfer(LINK + number, number, CHUNK, more=True)] * 16)

    assert link.verdict() == detached("amqp:resource-limit-exceeded")


def test_case_31_a_delivery_of_empty_parts_costs_nothing(link: RawPeer, guard: Guard) -> None:
    """Never finishing, never passing the size limit: 50,000 frames without a byte in them."""
    guard.memory_growth_bytes_max = 4 << 20
    window = transfer(LINK, 1, b"", more=True) * 1_024
    for _ in range(50):
        link.say(window)
        link.wait_for(Flow)

    assert link.say(transfer(LINK, 1, GOOD + b"x")).verdict() == DECODE


# -- what must be taken ---------------------------------------------------------------------------

GOOD_MESSAGES = {
    "case-29-zero-length-body": section(0x75, binary(b"")),
    "case-29-null-body": VALUE,
    "case-29-4500-data-sections": section(0x75, b"\xa0\x01x") * 4_500,
    "case-66-properties-with-omitted-fields": section(0x73, list32(b"\xa1\x02id")) + DATA,
    "case-76-decimal128-in-a-property": property_of(b"\x94" + b"\xff" * 16),
    "case-76-first-timestamp": property_of(b"\x83\x80" + bytes(7)),
    "case-76-char-10ffff": property_of(b"\x73\x00\x10\xff\xff"),
    "case-63-value-nesting-60": section(0x77, nested(60)),
    # The Azure SDK makes this of ServiceBusMessage(None).
    "case-77-properties-and-no-body": PROPERTIES,
    "case-77-every-section": HEADER
    + section(0x71, map32())
    + ANNOTATIONS
    + PROPERTIES
    + APPLICATION
    + DATA
    + FOOTER,
    "case-30-properties": Message(properties=Properties(message_id="x" * 128), body=b"").encode(),
}


@pytest.mark.parametrize("payload", GOOD_MESSAGES.values(), ids=GOOD_MESSAGES.keys())
def test_what_is_odd_but_right_is_stored(
    broker: BrokerProcess, link: RawPeer, payload: bytes
) -> None:
    queue = broker.fresh_queue()
    link.say(sender(queue, LINK + 1))
    link.wait_for(Attach)

    assert link.say(transfer(LINK + 1, 1, payload)).verdict() == Verdict("accepted")
    assert broker.queue(queue)["active_message_count"] == 1


def test_case_30_a_batch_of_4500_tiny_messages_is_stored_whole(
    broker: BrokerProcess, link: RawPeer
) -> None:
    queue = broker.fresh_queue()
    link.say(sender(queue, LINK + 1))
    link.wait_for(Attach)
    batch = in_batch(*[section(0x75, b"\xa0\x01x")] * 4_500)

    verdict = link.say(transfer(LINK + 1, 1, batch, message_format=BATCH)).verdict()

    assert verdict == Verdict("accepted")
    assert broker.queue(queue)["active_message_count"] == 4_500
