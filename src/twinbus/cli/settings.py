"""Names with values as they are written on a command line: ``colour=red``, ``count:=3``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from twinbus.errors import ConfigurationError

__all__ = ["settings_in"]


def settings_in(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """``NAME=TEXT`` is a text, ``NAME:=3`` a number, ``NAME:=true`` a truth value."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        is_typed = name.endswith(":")
        name = name.removesuffix(":").strip()
        if not equals or not name:
            raise ConfigurationError(
                f"{option} {text!r:.60} has no name and value", hint="Write it as NAME=TEXT"
            )
        found[name] = _typed(option, text, value) if is_typed else value
    return found


def _typed(option: str, text: str, value: str) -> bool | int | float | str:
    try:
        told = json.loads(value)
    except ValueError:
        told = None
    if not isinstance(told, bool | int | float | str):
        raise ConfigurationError(
            f"{option} {text!r:.60} is no number, no truth value and no quoted text",
            hint="Write it as NAME:=3, NAME:=true, or NAME=TEXT",
        )
    return told
