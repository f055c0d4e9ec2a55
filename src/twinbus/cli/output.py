"""In which form a command answers: ``--output``."""

from __future__ import annotations

from twinbus.errors import ConfigurationError


def check_output(output: str, usual: str) -> None:
    """Refuse a form that is neither the usual one nor JSON."""
    if output not in (usual, "json"):
        raise ConfigurationError(f"--output cannot be {output!r}", hint=f"Use {usual} or json")


def counted(count: int, noun: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
