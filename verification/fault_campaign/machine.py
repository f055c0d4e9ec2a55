"""The machine of a process, as far as a campaign can change it: its disk and its clock.

    Board   one page that a process shares with us through shim.c: slow and failing syncs, jumps
            of the wall clock
    Disk    a small file system of its own, which can be filled to the last byte

Rule 1: without a compiler nothing begins, with a sentence. Without the right to mount, a full disk
        is played by the broker.
Rule 2: whatever was mounted is unmounted.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

BOARD_VARIABLE: Final = "CAMPAIGN_BOARD"
SOURCE: Final = Path(__file__).parent / "shim.c"
# Several times what waits in a broker at its busiest, and filled in a moment.
DISK_MB: Final = 256
_FIELDS: Final = ("clock_offset_ns", "sync_delay_us", "sync_fails_in", "sync_failed")
_NUMBER: Final = struct.Struct("<q")


def built_shim(directory: Path) -> Path | None:
    """The compiled shim; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


class Board:
    """What one process is told by the shim."""

    def __init__(self, path: Path, shim: Path) -> None:
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.environment = {"LD_PRELOAD": str(shim), BOARD_VARIABLE: str(path)}

    def set(self, field: str, number: int) -> None:
        _NUMBER.pack_into(self._page, _FIELDS.index(field) * _NUMBER.size, number)

    def get(self, field: str) -> int:
        number: int = _NUMBER.unpack_from(self._page, _FIELDS.index(field) * _NUMBER.size)[0]
        return number


class Disk:
    """A directory on a file system of its own if we may mount one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, exist_ok=True)
        self._filler = path / "filler"
        self.is_own = False

    def mount(self) -> None:
        options = f"size={DISK_MB}m,mode=0700"
        with suppress(OSError):
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "campaign", str(self.path)],
                capture_output=True,
            )
            self.is_own = done.returncode == 0

    def unmount(self) -> None:
        if self.is_own:
            subprocess.run(["umount", "-l", str(self.path)], capture_output=True)
            self.is_own = False

    def fill(self) -> None:
        """Leave not a byte."""
        assert self.is_own, "it would fill the machine's own disk"
        with self._filler.open("wb") as file:
            free = os.statvfs(self.path)
            with suppress(OSError):  # Somebody was faster with the last block.
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


def unmount_all(directory: Path) -> None:
    """What a run that was killed has left mounted in its directory."""
    for path in directory.iterdir():
        if path.is_mount():
            subprocess.run(["umount", "-l", str(path)], check=True, capture_output=True)
