"""The performatives of AMQP 1.0 (parts 2, 3 and 5) as dataclasses, with the fields in the order
of the specification and its defaults.

    decode_performative(bytes) -> Open | Begin | ... | SaslOutcome
    encode_performative(performative) -> bytes

Rule 1: the performatives in ELIDED are written without trailing nulls, all others in full: the
        Azure SDK reads them by position.
Rule 2: source and target keep every value of their maps with its type, so that the
        response to an attach can repeat them.
Rule 3: transfer and disposition are the most frequent and have their own codec (transfers.py),
        which uses the general one for any unusual shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from twinbus.amqp.codec.composites import (
    KINDS,
    composite,
    composite_kind,
    decode_descriptor,
    decode_fields,
    encode_composite,
)
from twinbus.amqp.codec.types import Array
from twinbus.amqp.delivery_states import (
    STATE_ABANDONED,
    STATE_ACCEPTED,
    STATE_DEFERRED,
    STATE_MODIFIED,
    STATE_REJECTED,
    STATE_RELEASED,
    Accepted,
    DeliveryState,
    Error,
    Modified,
    Outcome,
    Received,
    Rejected,
    Released,
    encode_state,
)
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import PERFORMATIVE_COUNT_MAX, UINT_MAX, Budget
from twinbus.amqp.transfers import (
    Disposition,
    Transfer,
    decode_disposition,
    decode_transfer,
    encode_disposition,
    encode_transfer,
)

__all__ = [
    "ELIDED",
    "ROLE_RECEIVER",
    "ROLE_SENDER",
    "STATE_ABANDONED",
    "STATE_ACCEPTED",
    "STATE_DEFERRED",
    "STATE_MODIFIED",
    "STATE_REJECTED",
    "STATE_RELEASED",
    "Accepted",
    "Attach",
    "Begin",
    "Close",
    "Coordinator",
    "DeliveryState",
    "Detach",
    "Disposition",
    "End",
    "Error",
    "Flow",
    "Modified",
    "Open",
    "Outcome",
    "Performative",
    "Received",
    "Rejected",
    "Released",
    "SaslChallenge",
    "SaslInit",
    "SaslMechanisms",
    "SaslOutcome",
    "SaslResponse",
    "Source",
    "Symbols",
    "Target",
    "Transfer",
    "decode_disposition",
    "decode_performative",
    "decode_transfer",
    "encode_disposition",
    "encode_performative",
    "encode_state",
    "encode_transfer",
]

ROLE_SENDER: Final = False
ROLE_RECEIVER: Final = True

Symbols: TypeAlias = Array | Sequence[str] | None
"""A field of one or many symbols: decoding returns a Symbol or an Array, and a Symbol, an Array or
any sequence of strings can be encoded."""


# --- terminus ----------------------------------------------------------------------------------


@composite(
    0x28,
    "amqp:source:list",
    "string uint symbol uint boolean fields symbol fields outcome symbols symbols",
)
@dataclass(slots=True)
class Source:
    """Where messages of a link come from."""

    address: str | None = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[Any, Any] | None = None
    distribution_mode: str | None = None
    filter: dict[Any, Any] | None = None
    default_outcome: Outcome | None = None
    outcomes: Symbols = None
    capabilities: Symbols = None


@composite(0x29, "amqp:target:list", "string uint symbol uint boolean fields symbols")
@dataclass(slots=True)
class Target:
    """Where messages of a link go to."""

    address: str | None = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[Any, Any] | None = None
    capabilities: Symbols = None


@composite(0x30, "amqp:coordinator:list", "symbols")
@dataclass(slots=True)
class Coordinator:
    """The target of a link that controls transactions."""

    capabilities: Symbols = None


KINDS["source"] = composite_kind("a source", lambda value: type(value) is Source)
KINDS["target"] = composite_kind(
    "a target", lambda value: type(value) is Target or type(value) is Coordinator
)


# --- connection, session, link -------------------------------------------------------------------


@composite(
    0x10,
    "amqp:open:list",
    "string! string uint ushort uint symbols symbols symbols symbols fields",
)
@dataclass(slots=True)
class Open:
    container_id: str
    hostname: str | None = None
    max_frame_size: int = UINT_MAX
    channel_max: int = 0xFFFF
    idle_time_out: int | None = None
    """Milliseconds; None and 0 both mean no time-out."""
    outgoing_locales: Symbols = None
    incoming_locales: Symbols = None
    offered_capabilities: Symbols = None
    desired_capabilities: Symbols = None
    properties: dict[Any, Any] | None = None


@composite(0x11, "amqp:begin:list", "ushort uint! uint! uint! uint symbols symbols fields")
@dataclass(slots=True)
class Begin:
    remote_channel: int | None = None
    next_outgoing_id: int = 0
    incoming_window: int = 0
    outgoing_window: int = 0
    handle_max: int = UINT_MAX
    offered_capabilities: Symbols = None
    desired_capabilities: Symbols = None
    properties: dict[Any, Any] | None = None


@composite(
    0x12,
    "amqp:attach:list",
    "string! uint! boolean! snd-mode rcv-mode source target map boolean uint ulong "
    "symbols symbols fields",
)
@dataclass(slots=True)
class Attach:
    name: str
    handle: int
    role: bool
    """ROLE_SENDER or ROLE_RECEIVER: the role of the peer that sends the frame."""
    snd_settle_mode: int = 2
    rcv_settle_mode: int = 0
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: dict[Any, Any] | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: Symbols = None
    desired_capabilities: Symbols = None
    properties: dict[Any, Any] | None = None


@composite(
    0x13,
    "amqp:flow:list",
    "uint uint! uint! uint! uint uint uint uint boolean boolean fields",
)
@dataclass(slots=True)
class Flow:
    next_incoming_id: int | None = None
    incoming_window: int = 0
    next_outgoing_id: int = 0
    outgoing_window: int = 0
    handle: int | None = None
    """None: the flow is about the session alone."""
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: dict[Any, Any] | None = None


@composite(0x16, "amqp:detach:list", "uint! boolean error")
@dataclass(slots=True)
class Detach:
    handle: int
    closed: bool = False
    error: Error | None = None


@composite(0x17, "amqp:end:list", "error")
@dataclass(slots=True)
class End:
    error: Error | None = None


@composite(0x18, "amqp:close:list", "error")
@dataclass(slots=True)
class Close:
    error: Error | None = None


# --- SASL --------------------------------------------------------------------------------------


@composite(0x40, "amqp:sasl-mechanisms:list", "symbols!")
@dataclass(slots=True)
class SaslMechanisms:
    sasl_server_mechanisms: Symbols


@composite(0x41, "amqp:sasl-init:list", "symbol! binary string")
@dataclass(slots=True)
class SaslInit:
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


@composite(0x42, "amqp:sasl-challenge:list", "binary!")
@dataclass(slots=True)
class SaslChallenge:
    challenge: bytes


@composite(0x43, "amqp:sasl-response:list", "binary!")
@dataclass(slots=True)
class SaslResponse:
    response: bytes


@composite(0x44, "amqp:sasl-outcome:list", "ubyte! binary")
@dataclass(slots=True)
class SaslOutcome:
    code: int
    """0 is success, 1 is a refused credential."""
    additional_data: bytes | None = None


Performative: TypeAlias = (
    Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
    | SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome
)  # fmt: skip

_PERFORMATIVES: Final = frozenset(Performative.__args__)

ELIDED: Final = frozenset(
    (Open, Flow, Transfer, SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome)
)
"""Performatives that are written without their trailing nulls."""


def decode_performative(buf: bytes, pos: int, end: int, budget: Budget) -> tuple[Performative, int]:
    """The performative at ``pos``, and the position of the payload that follows it.

    No performative has many elements, whatever the budget is for messages.
    """
    budget.items = min(budget.items, PERFORMATIVE_COUNT_MAX)
    if buf.startswith(b"\x00\x53\x14", pos, end):
        return decode_transfer(buf, pos, end, budget)
    if buf.startswith(b"\x00\x53\x15", pos, end):
        return decode_disposition(buf, pos, end, budget)
    spec, pos = decode_descriptor(buf, pos, end, budget)
    if spec.cls not in _PERFORMATIVES:
        raise DecodeError(f"The {spec.name} is not a performative. Begin a frame with one.")
    performative: tuple[Performative, int] = decode_fields(spec, buf, pos, end, budget)
    return performative


def encode_performative(performative: Performative) -> bytes:
    """The performative as bytes, ready for encode_frame()."""
    out = bytearray()
    encode_composite(out, performative, elide_trailing_nulls=type(performative) in ELIDED)
    return bytes(out)
