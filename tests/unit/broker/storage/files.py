"""Store files as a crash or a hostile disk would leave them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path


def as_killed(store_path: Path, target: Path) -> Path:
    """The files of an open store, copied as a killed process leaves them; the copy's path."""
    target.mkdir()
    for file in store_path.parent.glob(store_path.name + "*"):
        # The shared-memory index is rebuilt by whoever opens the database first.
        if file.is_file() and not file.name.endswith("-shm"):
            shutil.copyfile(file, target / file.name)
    return target / store_path.name


def flip_bit(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def fingerprint(directory: Path) -> dict[str, str]:
    """Name and hash of every file that holds data."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(directory.iterdir())
        if not file.name.endswith("-shm")
    }
