"""The SASL exchange of both roles: anonymous, because the token is sent to ``$cbs`` later.

    server: mechanisms -->            --> outcome
    client:             <-- init

Rule 1: each function takes the frame of the other side and returns the frame to send; a frame
        that is not expected raises an error.
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
# The .NET client has another name for the same mechanism.
MECHANISMS: Final = (Symbol("MSSBCBS"), ANONYMOUS)


def offer() -> bytes:
    """Server: the mechanisms that a client can choose from."""
    return _frame(SaslMechanisms(list(MECHANISMS)))


def accept_init(frame: Performative) -> tuple[bytes, bool]:
    """Server: the outcome for a client's mechanism, and whether it is accepted."""
    if not isinstance(frame, SaslInit):
        raise _unexpected()
    is_accepted = frame.mechanism in MECHANISMS
    return _frame(SaslOutcome(_OK if is_accepted else _REFUSED)), is_accepted


def respond(frame: Performative, hostname: str | None) -> bytes | None:
    """Client: the init, or None when the server has accepted it."""
    if isinstance(frame, SaslMechanisms):
        return _frame(SaslInit(ANONYMOUS, b"", hostname))
    if not isinstance(frame, SaslOutcome):
        raise _unexpected()
    if frame.code != _OK:
        raise AmqpError(Condition.UNAUTHORIZED_ACCESS, "The broker refused the SASL exchange.")
    return None


def _frame(performative: Performative) -> bytes:
    return encode_frame(0, encode_performative(performative), frame_type=FRAME_SASL)


def _unexpected() -> AmqpError:
    return AmqpError(Condition.NOT_ALLOWED, "This SASL frame is not expected now.")
