"""The cache directory: ``$XDG_CACHE_HOME/twinbus``, or ``~/.cache/twinbus``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_directory"]


def cache_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """The directory, created for its owner only; None where it cannot be used."""
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_CACHE_HOME", "").strip()
    try:
        directory = (Path(base) if base else Path.home() / ".cache") / "twinbus"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # A user without a home directory is a RuntimeError.
        return None
    if not os.access(directory, os.W_OK | os.X_OK):
        return None
    # Files here are executed or mapped: no other user may be able to change them.
    if os.name == "posix" and directory.stat().st_uid != os.geteuid():
        return None
    return directory
