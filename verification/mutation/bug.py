"""What a planted bug is, and what a harness is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from verification.mutation.planting import Plant


class Layer(StrEnum):
    CORE = "core"
    SYPHON = "syphon"
    CONNECTOR = "connector"
    BROKER = "broker"
    STORE = "store"


class Harness(Protocol):
    """Something that runs the real code again and again, and says what is wrong with it."""

    @property
    def name(self) -> str:
        """Unique: bugs of one name share a control run."""

    @property
    def unit(self) -> str:
        """What a round is."""

    @property
    def rounds_max(self) -> int:
        """A bug that was not seen by then escaped."""

    @property
    def has_processes(self) -> bool:
        """Whether it starts processes, and so wants the machine for itself."""

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        """The complaints of one round after the other; none if all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One mistake."""

    name: str
    layer: Layer
    plant: Plant
    harness: Harness
    check: str
    """What the complaint of the check says, word for word."""

    def is_meant_by(self, words: str) -> bool:
        """``late-success``: a late success restores; a layer or a harness means all of its own."""
        known = (self.name, self.layer, self.harness.name)
        return any(_spaced(words) in _spaced(each) for each in known)


def _spaced(words: str) -> str:
    return " ".join(words.replace("-", " ").split())
