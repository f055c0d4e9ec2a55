"""Messages as the client side reads them: into a backlog, home again, and for an application.

The first byte says which: all of them read what somebody else has written and stored.
"""

from __future__ import annotations

from random import Random

from twinbus.drivers.amqp.delivery_metadata import MetadataReader
from twinbus.encoding import envelope
from twinbus.encoding.brokered_message import decode_message
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import TwinbusError
from verification.fuzz import grammar
from verification.fuzz.grammar import described, plain_map, string
from verification.fuzz.oracle import Meter
from verification.fuzz.targets.base import BaseTarget

NOW_MS = 1_800_000_000_000


class EnvelopeTarget(BaseTarget):
    name = "envelope"
    documented = (TwinbusError,)

    def generate(self, random: Random, size: int) -> bytes:
        kind = random.randrange(4)
        if kind == 1 and random.random() < 0.7:
            return b"\x01" + _backlog_message(random, size)
        return bytes((kind,)) + grammar.message(random, size)

    def execute(self, data: bytes, meter: Meter) -> None:
        kind = data[0] % 4 if data else 0
        encoded = data[1:]
        meter.begin()
        if kind == 0:
            meter.call("alias", envelope.alias, encoded, "orders")
        elif kind == 1:
            meter.call("restore", _restore, encoded)
        elif kind == 2:
            delivered = ReceivedMessage("orders", encoded, 1)
            meter.call("decode_message", decode_message, delivered)
        else:
            reader = MetadataReader()
            meter.call("read facts", reader.read, encoded)
            meter.call("read facts", reader.read, encoded)
            meter.call("read_destination", envelope.read_destination, encoded)
            meter.call("check_reserved", envelope.check_reserved, encoded)


def _restore(encoded: bytes) -> None:
    envelope.restore(encoded, now_ms=NOW_MS, enqueued_at_ms=NOW_MS - 1_000)


def _backlog_message(random: Random, size: int) -> bytes:
    """A message with the properties of the envelope, some of them wrong."""
    pairs = [string(b"x-ms-path"), string(random.choice((b"orders", b"", b"a/b", b"x" * 300)))]
    if random.random() < 0.4:
        pairs += [string(b"x-ms-session-id"), random.choice((string(b"s"), grammar.scalar(random)))]
    if random.random() < 0.4:
        pairs += [
            string(b"x-ms-time-to-live"),
            random.choice((b"\x55\x01", grammar.scalar(random))),
        ]
    if random.random() < 0.3:
        pairs += [string(b"X-MS-Path"), string(b"orders")]
    own_size = random.choice((0, 0, min(size, 60_000)))
    for number in range(own_size // 12):
        pairs += [string(b"p%d" % number), b"\x54\x01"]
    parts = [
        grammar.properties(random),
        described(0x74, plain_map(*pairs)),
        grammar.body(random, size),
    ]
    if random.random() < 0.3:
        parts.insert(0, grammar.annotations(random, 0x72, random.choice((0, 50, size))))
    if random.random() < 0.3:
        parts.insert(0, grammar.header(random))
    return b"".join(parts)


def make() -> EnvelopeTarget:
    return EnvelopeTarget()
