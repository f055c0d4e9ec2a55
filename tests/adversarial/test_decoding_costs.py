"""Frames and messages that cost more than their size says (cases 119 to 124, M13).

Keys whose hashes collide, and elements by the ten thousand: what is refused is refused before
anything is built of it, and a prober on another queue does not notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from uuid import UUID

import pytest

from tests.adversarial.guards import Guard
from tests.adversarial.prober import Attack, attacked
from tests.adversarial.raw_peer import (
    FIRST_FREE_HANDLE,
    RawPeer,
    Stage,
    Verdict,
    closed,
    raw_frame,
    rejected,
    sender,
    transfer,
)
from tests.adversarial.talk import BAD_REQUEST, LOCK_LOST, refused, uuids
from tests.support.amqp.worst_inputs import (
    HASH_MODULUS,
    a_list,
    a_map,
    attach_with,
    crowds,
    described,
    double_keys,
    symbol_map,
    uuid_keys,
    walking_keys,
)
from tests.support.broker_process import BrokerProcess
from tests.support.cpu_time import cpu_s
from tests.support.wire_client import connected
from twinbus.amqp.message.message import AmqpValue
from twinbus.drivers.amqp.driver import AmqpDriver
from twinbus.encoding.brokered_message import decode_message

LINK = FIRST_FREE_HANDLE
DECODE_ERROR = "amqp:decode-error"
ATTACK_S = 2.5
PAUSE_S = 0.02
LOG_LINES_MAX = 400
KEYS = 5_000

DATA = b"\x00\x53\x75\xa0\x01x"


def until_over(attack: Attack, strike: Callable[[], None]) -> None:
    """Strike again and again for as long as the attack lasts.

    It is no flood: what counts is how long each strike holds the loop.
    """
    while time.monotonic() < attack.began_s + ATTACK_S:
        strike()
        time.sleep(PAUSE_S)


@pytest.fixture
def loud(guard: Guard) -> Guard:
    """Each refused connection may leave its line in the log."""
    guard.log_lines_max = LOG_LINES_MAX
    return guard


def test_case_119_a_stranger_attaches_with_keys_that_collide(
    broker: BrokerProcess, loud: Guard
) -> None:
    """M13: 61 KB without a token held the loop for half a second, each time."""
    fields = attach_with(properties=a_map(uuid_keys(1_500)))
    inside = attach_with(filter=symbol_map(a_map(uuid_keys(400))))

    with attacked(broker) as attack:

        def strike() -> None:
            for attach in (fields, inside):
                with RawPeer(broker.port, timeout_s=loud.answer_timeout_s) as peer:
                    said = peer.to(Stage.BEGUN).say(raw_frame(attach)).verdict()
                    assert said == closed(DECODE_ERROR)

        until_over(attack, strike)


def test_case_120_a_sender_fills_a_frame_with_keys_that_collide(
    broker: BrokerProcess, loud: Guard
) -> None:
    """M13: 576 KB from a peer that may only send held the loop for 45 s."""
    attach = attach_with(properties=symbol_map(a_map(uuid_keys(30_000))))
    token = broker.token()

    with attacked(broker) as attack:

        def strike() -> None:
            with RawPeer(broker.port, token, timeout_s=loud.answer_timeout_s) as peer:
                said = peer.to(Stage.AUTHORIZED).say(raw_frame(attach)).verdict()
                assert said == closed(DECODE_ERROR)

        until_over(attack, strike)


BODIES = {
    "uuids": described(0x77, a_map(uuid_keys(13_000))),
    "uuids in a sequence": described(0x76, a_list([a_map(uuid_keys(13_000))])),
    "uuids in many maps": described(0x77, a_list([a_map(uuid_keys(60))] * 200)),
}


async def test_case_121_a_stored_body_for_the_client_that_receives_it(
    broker: BrokerProcess, peer: RawPeer
) -> None:
    """M13: a body with colliding keys froze the client for 7.7 s; a handful is no harm."""
    queue = broker.fresh_queue()
    peer.to(Stage.AUTHORIZED).say(sender(queue, LINK))
    for number, body in enumerate(BODIES.values()):
        peer.say(transfer(LINK, number, body))
        assert peer.verdict() == rejected(DECODE_ERROR)
    few = described(0x77, a_map(uuid_keys(64)))
    peer.say(transfer(LINK, 100, few))
    assert peer.verdict() == Verdict("accepted")

    driver = AmqpDriver.from_connection_string(broker.connection_string)
    try:
        (delivered,) = await driver.receiver(queue).receive(1, wait_s=5)
    finally:
        await driver.close()

    assert delivered.encoded.endswith(few)
    body = decode_message(delivered).body
    assert cpu_s(lambda: decode_message(delivered).body) < 0.02
    assert isinstance(body, AmqpValue)
    assert len(body.value) == 64


COLLIDING = {
    "numbers in a body": described(0x77, a_map(walking_keys(2_720))),
    "doubles in a body": described(0x77, a_map(double_keys(KEYS))),
    "uuids in annotations": described(0x72, a_map(uuid_keys(100))) + DATA,
    "uuids inside of an annotation": described(0x72, symbol_map(a_map(uuid_keys(200)))) + DATA,
    "uuids in a footer": DATA + described(0x78, a_map(uuid_keys(100))),
    "uuids in application properties": described(0x74, a_map(uuid_keys(100))) + DATA,
}


def test_case_122_numbers_that_visit_the_same_places_of_a_hash_table(
    broker: BrokerProcess, peer: RawPeer
) -> None:
    """M13: hashes of numbers do not collide, but their ways through a table do."""
    queue = broker.fresh_queue()
    peer.to(Stage.AUTHORIZED).say(sender(queue, LINK))
    with attacked(broker) as attack:
        number = 0

        def strike() -> None:
            nonlocal number
            for message in COLLIDING.values():
                peer.say(transfer(LINK, number, message))
                assert peer.verdict() == rejected(DECODE_ERROR)
                number += 1

        until_over(attack, strike)


def test_case_123_a_management_request_with_tokens_that_collide(
    broker: BrokerProcess, guard: Guard
) -> None:
    """M13: a thousand lock tokens of one hash, and requests with more elements than any needs."""
    queue = broker.fresh_queue()
    tokens = [UUID(int=7 + (number + 1) * HASH_MODULUS) for number in range(1_000)]
    with attacked(broker) as attack, connected(broker.port, broker.token()) as client:

        def strike() -> None:
            body = {"lock-tokens": uuids(*tokens)}
            assert refused(client, queue, "renew-lock", body) == LOCK_LOST
            body = {"lock-tokens": uuids(*tokens, tokens[0])}
            assert refused(client, queue, "renew-lock", body) == BAD_REQUEST

        until_over(attack, strike)


def test_case_124_bodies_properties_and_sections_by_the_ten_thousand(
    broker: BrokerProcess, peer: RawPeer
) -> None:
    """M13: whatever a message is full of, it is taken or refused without holding others up."""
    queue = broker.fresh_queue()
    names = [b"\xa1\x05%05d" % number for number in range(12_000)]
    symbols = [b"\xa3\x05%05d" % number for number in range(12_000)]
    accepted = [described(0x77, value) for _, value in crowds(60_000, 250_000)]
    entries = [described(0x74, a_map(names)) + DATA, described(0x72, a_map(symbols)) + DATA]
    inside = described(0x72, symbol_map(a_list([b"\x40"] * 60_000))) + DATA
    many = [b"\x00\x53\x75\xa0\x00" * 50_000, b"\x00\x53\x76\x45" * 50_000]
    every = [(message, Verdict("accepted")) for message in accepted]
    every += [(inside, rejected(DECODE_ERROR))]
    every += [(each, rejected("com.microsoft:argument-out-of-range")) for each in entries]
    every += [(message, rejected("amqp:link:message-size-exceeded")) for message in many]
    turns = enumerate(cycle(every))
    peer.timeout_s = max(peer.timeout_s, 5.0)  # What is accepted was written to disk.
    peer.to(Stage.AUTHORIZED).say(sender(queue, LINK))
    with attacked(broker) as attack:

        def strike() -> None:
            number, (message, expected) = next(turns)
            peer.say(transfer(LINK, number, message))
            assert peer.verdict() == expected

        until_over(attack, strike)
        for _ in range(len(every)):
            strike()
