"""What a sender must know about the messages that it is given, by the library they come from.

    ENCODED    bytes, and nothing else
    BROKERED   bytes, and beside them the BrokeredMessage that they were made of

Rule 1: a check costs nearly nothing for a small message without properties (P0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.core.envelope import check_fits, check_reserved, check_reserved_names
from twinbus.core.parcel import Parcel

__all__ = ["BROKERED", "ENCODED", "ParcelKind"]


def _one_message(parcel: Parcel) -> list[bytes]:
    return [parcel.encoded]


@dataclass(frozen=True, slots=True)
class ParcelKind:
    """How messages of one library are checked and taken apart."""

    check: Callable[[Sequence[Parcel], str, int, str], None]
    """Refuse, in every state, what could not make the detour: reserved names (P12), and more
    bytes than a backlog queue takes with the aliases (P13). Parcels, path, limit in bytes, mark
    of the pair."""
    unpack: Callable[[Parcel], list[bytes]] = _one_message
    """The encoded messages of a parcel: several, where a library hands in whole batches."""


def _check_encoded(parcels: Sequence[Parcel], path: str, limit_bytes: int, owner: str) -> None:
    for parcel in parcels:
        encoded = parcel.encoded
        check_reserved(encoded)
        check_fits(encoded, path, limit_bytes, owner)


def _check_brokered(parcels: Sequence[Parcel], path: str, limit_bytes: int, owner: str) -> None:
    for parcel in parcels:
        if parcel.native.properties:
            check_reserved_names(parcel.native.properties)
        check_fits(parcel.encoded, path, limit_bytes, owner)


ENCODED: Final = ParcelKind(_check_encoded)
BROKERED: Final = ParcelKind(_check_brokered)
