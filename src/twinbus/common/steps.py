"""Work that takes long, in steps: others have their turn between two of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

__all__ = ["Steps", "run_steps"]

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""What is done between two ``yield`` is a step; what comes back at the end is the result."""


def run_steps(steps: Steps[T]) -> T:
    """All steps without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
