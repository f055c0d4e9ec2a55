"""The SASL exchange of both roles: anonymous, because the token is shown over ``$cbs`` later.

    server: mechanisms -->            --> outcome
    client:             <-- init

Rule 1: each function takes what the other side said and returns what to say; a frame that has
        no place in the exchange raises.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.frames import FRAME_SASL, encode_frame
from twinbus.amqp.performatives import (
    Performative,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    encode_performative,
)

_OK: Final = 0
_REFUSED: Final = 1

ANONYMOUS: Final = Symbol("ANONYMOUS")
# The .NET client asks for the same under a name of its own.
MECHANISMS: Final = (Symbol("MSSBCBS"), ANONYMOUS)


def offer() -> bytes:
    """Server: the mechanisms that a client can choose from."""
    return _frame(SaslMechanisms(list(MECHANISMS)))


def judge(said: Performative) -> tuple[bytes, bool]:
    """Server: the outcome for a client's choice, and whether it is a good one."""
    if not isinstance(said, SaslInit):
        raise _unexpected()
    is_good = said.mechanism in MECHANISMS
    return _frame(SaslOutcome(_OK if is_good else _REFUSED)), is_good


def choose(said: Performative, hostname: str | None) -> bytes | None:
    """Client: the choice, or None when the server has accepted it."""
    if isinstance(said, SaslMechanisms):
        return _frame(SaslInit(ANONYMOUS, b"", hostname))
    if not isinstance(said, SaslOutcome):
        raise _unexpected()
    if said.code != _OK:
        raise AmqpError(Condition.UNAUTHORIZED_ACCESS, "The broker refused the SASL exchange.")
    return None


def _frame(performative: Performative) -> bytes:
    return encode_frame(0, encode_performative(performative), frame_type=FRAME_SASL)


def _unexpected() -> AmqpError:
    return AmqpError(Condition.NOT_ALLOWED, "This SASL frame is not expected now.")
