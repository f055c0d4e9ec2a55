"""Where the demo writes: a directory of the user's, or one that is gone afterwards.

east, west        the brokers' data; east.log and west.log what they said
logs/east, west   what the brokers counted (operations) and saw (audit)
client            the same, by the application; application.log what it said
journal.jsonl     what happened in the pair
receipts          what the syphon did with each message; syphon its state
counters.json     what the brokers themselves had counted at the end
cost.html         what it cost, as a page; cost.json the same for programs
books.json        where every message is
result.json       what came of it all
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

__all__ = ["Files", "opened_files"]


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

    def note(self, name: str, facts: Any) -> None:
        """Write a file of JSON; what JSON does not know becomes text."""
        (self / name).write_text(json.dumps(facts, indent=1, default=str) + "\n", encoding="utf-8")


@contextmanager
def opened_files(keep: Path | None) -> Iterator[Files]:
    """Where to write; without ``keep`` it is all removed at the end of the block."""
    directory = Path(tempfile.mkdtemp(prefix="twinbus-demo-")) if keep is None else _kept(keep)
    try:
        with _log_in(directory / "application.log"):
            yield Files(directory)
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def _kept(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_used = any(directory.iterdir())
    except OSError as error:
        raise ConfigurationError(
            f"--keep {str(directory)!r} cannot be used: {error.strerror}",
            hint="Choose a directory in which you may write",
        ) from error
    if is_used:
        raise ConfigurationError(
            f"--keep {str(directory)!r} is not empty", hint="Choose a new directory"
        )
    return directory.absolute()


@contextmanager
def _log_in(path: Path) -> Iterator[None]:
    """What the library says goes there, and not between the lines of the story."""
    handler, logger = logging.FileHandler(path), logging.getLogger("twinbus")
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(handler)
        handler.close()
