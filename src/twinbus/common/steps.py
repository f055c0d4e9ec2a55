"""Long computations in steps: the event loop can run other work between two steps."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

__all__ = ["Steps", "run_steps"]

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""The code between two ``yield`` is a step; the return value is the result."""


def run_steps(steps: Steps[T]) -> T:
    """Run all steps without a pause; their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
