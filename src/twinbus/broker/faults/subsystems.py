"""Which subsystem an entity belongs to (rule F4).

An entity that nobody assigned belongs to one of four, chosen by its name: the same name is in
the same subsystem in every namespace and after every restart.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from twinbus.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError

SUBSYSTEM_COUNT: Final = 4
SUBSYSTEM_NAME_LENGTH_MAX: Final = 64


def usual_subsystem(path: str) -> str:
    """Where an entity is unless somebody says otherwise."""
    return f"subsystem-{crc32(path.encode()) % SUBSYSTEM_COUNT}"


class Subsystems:
    """The assignments of one namespace."""

    def __init__(self) -> None:
        self._assigned: dict[str, str] = {}

    def of(self, path: str) -> str:
        """The subsystem of a canonical path."""
        return self._assigned.get(path) or usual_subsystem(path)

    def assign(self, path: str, subsystem: str | None) -> None:
        path = parse_entity_path(path)
        if subsystem is None:
            self._assigned.pop(path, None)
            return
        is_name = isinstance(subsystem, str) and subsystem.isprintable() and subsystem.strip()
        if not is_name or len(subsystem) > SUBSYSTEM_NAME_LENGTH_MAX:
            raise ConfigurationError(
                "the name of a subsystem must be printable text of at most "
                f"{SUBSYSTEM_NAME_LENGTH_MAX} characters"
            )
        self._assigned[path] = subsystem
