"""The few file operations that a store does beside SQLite; crash tests record them.

Rule: a created or renamed file is durable only after ``sync_directory``.
"""

from __future__ import annotations

import os
from pathlib import Path


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
