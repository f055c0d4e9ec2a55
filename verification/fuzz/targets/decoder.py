"""Bytes to values: what a frame or a request becomes before anybody looks at it.

The first byte of an input chooses what it is, and so what of the decoder holds the loop:

    a performative, or a request to a node       decoded in one piece, by a tenant or a stranger
    a message                                    scanned in one piece, its large body in steps
    a value                                      only whether its errors are documented: whoever
                                                 decodes one has a limit of his own
"""

from __future__ import annotations

from enum import IntEnum
from random import Random

from twinbus.amqp.codec.decode import Budget, decode_value, skip_value
from twinbus.amqp.errors import AmqpError
from twinbus.amqp.limits import DEFAULT_LIMITS
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.sections import body_steps, scan_message
from twinbus.amqp.performatives import decode_performative
from verification.fuzz import conversations, grammar
from verification.fuzz.oracle import Meter
from verification.fuzz.targets.base import STRANGERS_SIZE_MAX, BaseTarget


class Kind(IntEnum):
    VALUE = 0
    PERFORMATIVE = 1
    STRANGERS_PERFORMATIVE = 2
    REQUEST = 3
    STRANGERS_REQUEST = 4
    MESSAGE = 5


STRANGERS = (Kind.STRANGERS_PERFORMATIVE, Kind.STRANGERS_REQUEST)


def kind_of(data: bytes) -> Kind:
    return Kind(data[0] % len(Kind)) if data else Kind.VALUE


class DecoderTarget(BaseTarget):
    name = "decoder"
    documented = (AmqpError,)

    def generate(self, random: Random, size: int) -> bytes:
        kind = random.choice(tuple(Kind))
        if kind in STRANGERS:
            size = min(size, STRANGERS_SIZE_MAX)
        return bytes((kind,)) + _generated(random, kind, size)

    def is_stranger(self, data: bytes) -> bool:
        return kind_of(data) in STRANGERS

    def execute(self, data: bytes, meter: Meter) -> None:
        kind, buf = kind_of(data), data[1:]
        limits = DEFAULT_LIMITS.before_token() if kind in STRANGERS else DEFAULT_LIMITS
        meter.begin()
        if kind is Kind.VALUE:
            skip_value(buf, 0, len(buf), Budget())
            decode_value(buf, 0, len(buf), Budget())
        elif kind is Kind.MESSAGE:
            found = meter.call("scan", lambda: scan_message(buf, 0, len(buf), check_body=False))
            steps = body_steps(buf, found)
            while meter.call("step", next, steps, StopIteration) is not StopIteration:
                pass  # Others have their turn.
        elif kind in (Kind.REQUEST, Kind.STRANGERS_REQUEST):
            meter.call("decode request", Message.decode, buf, limits)
        else:
            budget = Budget(limits)
            meter.call("decode_performative", decode_performative, buf, 0, len(buf), budget)


def _generated(random: Random, kind: Kind, size: int) -> bytes:
    if kind is Kind.VALUE:
        return grammar.big_value(random, size)
    if kind is Kind.MESSAGE or (kind in (Kind.REQUEST, Kind.STRANGERS_REQUEST) and size > 9_000):
        return grammar.message(random, size)
    if kind in (Kind.REQUEST, Kind.STRANGERS_REQUEST):
        return conversations.request(random, random.choice((b"$cbs", b"orders/$management")), size)
    frames = conversations.conversation(random, conversations.Who.OPENED, size)
    return random.choice(grammar.split_frames(frames))[8:]


def make() -> DecoderTarget:
    return DecoderTarget()
