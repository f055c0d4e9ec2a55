"""What a sender must know about the messages that it is given, by the library they come from.

    ENCODED_BYTES    bytes, and nothing else
    BROKERED_MESSAGE   bytes, and beside them the BrokeredMessage that they were made of

Rule 1: a check costs nearly nothing for a small message without properties (P0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.core.envelope import check_fits, check_reserved, check_reserved_names
from twinbus.core.parcel import OutgoingMessage

__all__ = ["BROKERED_MESSAGE", "ENCODED_BYTES", "MessageAdapter"]


def _one_message(message: OutgoingMessage) -> list[bytes]:
    return [message.encoded]


@dataclass(frozen=True, slots=True)
class MessageAdapter:
    """How messages of one library are checked and taken apart."""

    check: Callable[[Sequence[OutgoingMessage], str, int, str], None]
    """Refuse, in every state, what could not make the detour: reserved names (P12), and more
    bytes than a backlog queue takes with the aliases (P13). Parcels, path, limit in bytes, mark
    of the pair."""
    unpack: Callable[[OutgoingMessage], list[bytes]] = _one_message
    """The encoded messages of a parcel: several, where a library hands in whole batches."""


def _check_encoded(
    messages: Sequence[OutgoingMessage], path: str, limit_bytes: int, owner: str
) -> None:
    for message in messages:
        encoded = message.encoded
        check_reserved(encoded)
        check_fits(encoded, path, limit_bytes, owner)


def _check_brokered(
    messages: Sequence[OutgoingMessage], path: str, limit_bytes: int, owner: str
) -> None:
    for message in messages:
        if message.native.properties:
            check_reserved_names(message.native.properties)
        check_fits(message.encoded, path, limit_bytes, owner)


ENCODED_BYTES: Final = MessageAdapter(_check_encoded)
BROKERED_MESSAGE: Final = MessageAdapter(_check_brokered)
