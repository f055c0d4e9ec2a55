"""The files of one run, in a directory of the user or a temporary one.

east, west        data of the brokers; east.log and west.log their standard error output
logs/east, west   operations and audit logs of the brokers
client            operations and audit logs of the application; application.log its log
journal.jsonl     journal of the pair
receipts          receipts of the syphon; syphon its state directory
counters.json     counters of the brokers at the end
cost.html         cost report as a page; cost.json the same for programs
books.json        reconciliation: the state of every message
result.json       result of the demo
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinbus.errors import ConfigurationError

__all__ = ["Files", "open_files"]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one run."""

    directory: Path

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    @property
    def logs(self) -> Path:
        return self / "logs"

    @property
    def client(self) -> Path:
        return self / "client"

    @property
    def journal(self) -> Path:
        return self / "journal.jsonl"

    @property
    def receipts(self) -> Path:
        return self / "receipts"

    def write_json(self, name: str, facts: Any) -> None:
        """Write a JSON file; values without a JSON type become text."""
        (self / name).write_text(json.dumps(facts, indent=1, default=str) + "\n", encoding="utf-8")


@contextmanager
def open_files(keep: Path | None) -> Iterator[Files]:
    """The files of a run; without ``keep`` they are deleted at the end of the block."""
    directory = Path(tempfile.mkdtemp(prefix="twinbus-demo-")) if keep is None else _create(keep)
    try:
        with _log_in(directory / "application.log"):
            yield Files(directory)
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def _create(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_used = any(directory.iterdir())
    except OSError as error:
        raise ConfigurationError(
            f"Directory {str(directory)!r} of --keep cannot be written: {error.strerror}",
            hint="Choose a directory that you may write",
        ) from error
    if is_used:
        raise ConfigurationError(
            f"Directory {str(directory)!r} of --keep is not empty",
            hint="Choose a new or an empty directory",
        )
    return directory.absolute()


@contextmanager
def _log_in(path: Path) -> Iterator[None]:
    """Send the log of twinbus to a file, and not to the terminal."""
    handler, logger = logging.FileHandler(path), logging.getLogger("twinbus")
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(handler)
        handler.close()
