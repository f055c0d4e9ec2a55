"""Lock tokens that somebody computes instead of receiving them (case 156)."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.adversarial.talk import lock_token
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import connected
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message

QUEUE = "orders"
# The state of a Mersenne Twister has 624 words of 32 bits; a run of locks shows two of them.
STATE_WORDS = 624
PREDICTED = 32


def without_right_shift(value: int, bits: int) -> int:
    """The ``x`` of ``x ^ (x >> bits)``."""
    known = value
    for _ in range(32 // bits + 1):
        known = value ^ (known >> bits)
    return known


def without_left_shift(value: int, bits: int, mask: int) -> int:
    """The ``x`` of ``x ^ ((x << bits) & mask)``."""
    known = value
    for _ in range(32 // bits + 1):
        known = value ^ ((known << bits) & mask)
    return known & 0xFFFFFFFF


def state_word(output: int) -> int:
    """The word of the generator's state that an output was made of."""
    value = without_right_shift(output, 18)
    value = without_left_shift(value, 15, 0xEFC60000)
    value = without_left_shift(value, 7, 0x9D2C5680)
    return without_right_shift(value, 11)


def clone(numbers: list[int]) -> Random:
    """The generator that gave these 312 numbers of 64 bits, if it was a Mersenne Twister."""
    halves = [half for number in numbers for half in (number & 0xFFFFFFFF, number >> 32)]
    assert len(halves) == STATE_WORDS
    cloned = Random()
    cloned.setstate((3, (*map(state_word, halves), STATE_WORDS), None))
    return cloned


def test_a_clone_of_the_usual_generator_predicts_it() -> None:
    """The attack itself works: otherwise the case below would prove nothing."""
    usual = Random(5)
    cloned = clone([usual.getrandbits(64) for _ in range(STATE_WORDS // 2)])
    assert [cloned.getrandbits(64) for _ in range(9)] == [usual.getrandbits(64) for _ in range(9)]


def test_case_156_own_lock_tokens_do_not_tell_those_of_others(tmp_path: Path) -> None:
    """M2, M13: 312 of one's own runs of locks do not give away the next one."""
    wanted = STATE_WORDS // 2 + PREDICTED
    with (
        BrokerProcess(tmp_path / "data", queues=(QUEUE,)) as broker,
        connected(broker.port, broker.token()) as client,
    ):
        sender = client.attach_sender(QUEUE)
        for _ in range(wanted):
            assert client.send(sender, Message(body=b"x").encode()) == Accepted()
        receiver = client.attach_receiver(QUEUE)
        run_ids = []
        for _ in range(wanted):
            # One at a time: each of them is a run of its own.
            receiver.grant(1)
            token = lock_token(client.wait_for(DeliveryReceived)).bytes_le
            run_ids.append(int.from_bytes(token[:8], "big"))
    assert len(set(run_ids)) == wanted

    cloned = clone(run_ids[: STATE_WORDS // 2])

    predicted = {cloned.getrandbits(64) for _ in range(4 * PREDICTED)}
    guessed = predicted & set(run_ids[STATE_WORDS // 2 :])
    assert not guessed, f"{len(guessed)} of {PREDICTED} lock tokens were predicted"
