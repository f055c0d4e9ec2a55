"""Commands as they are typed, in an environment that names no namespace."""

from __future__ import annotations

from tests.support.typed_commands import (
    no_environment,
    typed,
    typed_nowhere,
    typed_pair,
    typed_with,
)

__all__ = ["no_environment", "typed", "typed_nowhere", "typed_pair", "typed_with"]
