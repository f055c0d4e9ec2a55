"""The few file operations that a store does beside SQLite; crash tests record them.

Rule: a created or renamed file is durable only after ``sync_directory``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

# For its owner only: a store holds messages.
PRIVATE_FILE: Final = 0o600


class Disk:
    """The operating system's own file operations."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size_bytes(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def read_head(self, path: Path, count: int) -> bytes:
        with path.open("rb") as file:
            return file.read(count)

    def create_private(self, path: Path) -> None:
        """An empty file that only its owner may read, from its first byte."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))

    def make_private(self, path: Path) -> None:
        """Close a file to others; one that is not there is left alone."""
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            return
        if mode & 0o077:
            path.chmod(mode & ~0o077)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
