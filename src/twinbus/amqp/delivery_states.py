"""The error, and the states of a delivery.

Rule 1: every field of these is always written, nulls included. The Azure SDK reads them by
        position, and a send whose error has two fields instead of three waits for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from twinbus.amqp.codec.composites import KINDS, composite, composite_kind, encode_composite


@composite(0x1D, "amqp:error:list", "symbol! string fields")
@dataclass(slots=True)
class Error:
    """Why a delivery, link, session or connection failed."""

    condition: str
    description: str | None = None
    info: dict[Any, Any] | None = None


KINDS["error"] = composite_kind("an error", lambda value: type(value) is Error)


@composite(0x23, "amqp:received:list", "uint! ulong!")
@dataclass(slots=True)
class Received:
    """A delivery that was received up to this point; not an outcome."""

    section_number: int
    section_offset: int


@composite(0x24, "amqp:accepted:list", "")
@dataclass(slots=True)
class Accepted:
    """Stored (a send), or completed (a receive)."""


@composite(0x25, "amqp:rejected:list", "error")
@dataclass(slots=True)
class Rejected:
    """Refused (a send), or dead-lettered (a receive)."""

    error: Error | None = None


@composite(0x26, "amqp:released:list", "")
@dataclass(slots=True)
class Released:
    """Released without an attempt; it does not count as a delivery."""


@composite(0x27, "amqp:modified:list", "boolean boolean fields")
@dataclass(slots=True)
class Modified:
    """Returned after an attempt: abandoned, or deferred when undeliverable here."""

    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: dict[Any, Any] | None = None


Outcome: TypeAlias = Accepted | Rejected | Released | Modified
DeliveryState: TypeAlias = Outcome | Received

_OUTCOMES: Final = frozenset((Accepted, Rejected, Released, Modified))
KINDS["outcome"] = composite_kind("an outcome", lambda value: type(value) in _OUTCOMES)
KINDS["delivery-state"] = composite_kind(
    "a delivery state", lambda value: type(value) in _OUTCOMES or type(value) is Received
)


def encode_state(state: DeliveryState) -> bytes:
    """A delivery state as bytes, for encode_disposition()."""
    out = bytearray()
    encode_composite(out, state)
    return bytes(out)


STATE_ACCEPTED: Final = encode_state(Accepted())
STATE_RELEASED: Final = encode_state(Released())
STATE_REJECTED: Final = encode_state(Rejected())
"""Without an error: the response to dead-lettering, where an error would mean that it failed."""
STATE_ABANDONED: Final = encode_state(Modified(delivery_failed=True, undeliverable_here=False))
STATE_DEFERRED: Final = encode_state(Modified(delivery_failed=True, undeliverable_here=True))
STATE_MODIFIED: Final = STATE_ABANDONED
