"""How findings name what they are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twinbus.pairing.preflight.facts import NamespaceFacts

__all__ = ["counted", "listed", "named"]

# Of many queues with the same trouble these are named; the others are counted.
NAMED_MAX: Final = 3


def named(namespace: NamespaceFacts) -> str:
    return f"{namespace.role} ({namespace.address})"


def listed(paths: Sequence[str]) -> str:
    first = ", ".join(paths[:NAMED_MAX])
    return first if len(paths) <= NAMED_MAX else f"{first} and {len(paths) - NAMED_MAX} more"


def counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
