"""The directory for what can be made again: ``$XDG_CACHE_HOME/twinbus``, or under the home."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_directory"]


def cache_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """The directory, made for its owner alone; None where there cannot be one."""
    told = os.environ if environment is None else environment
    base = told.get("XDG_CACHE_HOME", "").strip()
    try:
        directory = (Path(base) if base else Path.home() / ".cache") / "twinbus"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # A user without a home is a RuntimeError.
        return None
    if not os.access(directory, os.W_OK | os.X_OK):
        return None
    # What is run or mapped from here must not be anybody else's to change.
    if os.name == "posix" and directory.stat().st_uid != os.geteuid():
        return None
    return directory
