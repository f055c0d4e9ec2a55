"""A directory for the credentials of one run, which does not outlive the process for long.

Rule 1: it is removed by whoever made it, also when the interpreter ends first. What a killed
        process left is removed by the next one that makes such a directory.
Rule 2: whether its maker lives is told by a lock on a file in it, which also holds between
        containers that share a disk, where numbers of processes mean nothing.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

__all__ = ["private_directory"]

# Nobody would call a directory of his own like this, or have such a file in it: what is found with
# both is removed.
PREFIX: Final = "twinbus-private-"
LOCK: Final = ".twinbus-private-lock"


@contextmanager
def private_directory() -> Iterator[Path]:
    """A new directory in the block, for its owner only."""
    root = Path(tempfile.gettempdir())
    _sweep(root)
    # Another name until it is locked: nobody must take it for one that was left behind.
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=root))  # Mode 0700.
    path = made.with_name(made.name[1:])
    lock = os.open(made / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    at_exit = partial(_remove, path, os.getpid())
    atexit.register(at_exit)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.rename(path)
        yield path
    finally:
        _remove(made)
        _remove(path)
        os.close(lock)
        atexit.unregister(at_exit)


def _remove(path: Path, maker_pid: int | None = None) -> None:
    # A process that was forked from its maker ends, and its maker goes on.
    if maker_pid in (None, os.getpid()):
        shutil.rmtree(path, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what processes left behind that were killed."""
    for path in root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # Somebody else's, or gone.
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path / LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
            finally:
                os.close(lock)
