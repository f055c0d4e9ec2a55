"""How often a broker forwarded a message into a backlog queue: rings of pairs come to an end (Y6).

    a sender  --> backlog queue                  not counted: home again byte for byte
    an entity --forward_to--> backlog queue      x-opt-twinbus-hops, one more each time

A restored message has no destination, so it cannot go round by itself. But a rule's action on a
primary can write ``x-ms-path`` again, and its subscription forward to a backlog queue of the
opposite pair: then two syphons would carry it round for ever.

Rule 1: only what was forwarded is counted. Brokers tell that by x-opt-enqueue-sequence-number, and
        take the word of nobody else for it. Everything else is brought home unchanged (P12), and
        no sender has to leave room for a counter (P13).
Rule 2: the counter is an annotation. Brokers hand it on, rule actions cannot change it, and
        applications that send a received message anew begin anew: a message that honestly makes
        many detours in its life is never stopped by an old count.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.encode import encode_value
from twinbus.amqp.types import Symbol, UByte
from twinbus.core.envelope_layout import pairs_of, value_at
from twinbus.core.envelope_values import HOPS, Reason, read_hops
from twinbus.service_errors import EnvelopeError

# As many namespaces as nobody has paired in a ring on purpose.
HOPS_MAX: Final = 8

HOPS_ANNOTATION: Final = HOPS.encode()
_FORWARDED: Final = b"x-opt-enqueue-sequence-number"
_HOPS_KEY: Final = encode_value(Symbol(HOPS))


def hops_pair(buf: bytes, start: int, stop: int) -> bytes:
    """The counter for a message with the annotations in ``buf[start:stop]``; mostly nothing.

    Raises EnvelopeError when it was forwarded too often.
    """
    if _FORWARDED not in buf[start:stop]:
        return b""
    values = {
        key: value_at(buf, first, after)
        for key, _, first, after in pairs_of(buf, start, stop)
        if key in (_FORWARDED, HOPS_ANNOTATION)
    }
    if not values.get(_FORWARDED):
        return b""
    hops = read_hops(values[HOPS_ANNOTATION]) if HOPS_ANNOTATION in values else 0
    if hops >= HOPS_MAX:
        raise EnvelopeError(
            reason=Reason.TOO_MANY_HOPS,
            description=f"The message was forwarded to backlog queues {hops} times before: "
            "it goes round in a ring.",
        )
    return _HOPS_KEY + encode_value(UByte(hops + 1))
