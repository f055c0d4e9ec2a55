"""Which properties of an entity are for life.

What was stored under them cannot be read otherwise: messages without a session id cannot enter a
session afterwards, and ids that nobody noted cannot be compared.
"""

from __future__ import annotations

from typing import Final

from twinbus.broker.entities.description import QueueDescription
from twinbus.errors import ConfigurationError

__all__ = ["check_change"]

_FOR_LIFE: Final = (
    "path",
    "requires_session",
    "requires_duplicate_detection",
    "enable_partitioning",
)


def check_change(old: QueueDescription, new: QueueDescription) -> None:
    """Refuse a change that the messages of the entity would not survive."""
    for name in _FOR_LIFE:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise ConfigurationError(
                f"{name} of the {old.kind} {old.path!r} is {before!r} and cannot be changed",
                hint=f"Create another {old.kind}, or leave {name} as it is",
            )
