"""Spark's classes, kept from one run for the next: a JVM that maps them starts in half the time.

    preparing    -XX:ArchiveClassesAtExit   the JVM writes a draft when it ends
    afterwards   the draft is renamed       once it is complete
    every start  -XX:SharedArchiveFile      the JVM maps it, or ignores it when it does not fit

The archive (180 MB) fits one build of Java and one installation of Spark; both are in its name.

Rule 1: no start waits for an archive, and no JVM maps an incomplete file. The JVM writes the
        beginning of a draft last, so that a draft with a beginning is complete.
Rule 2: a JVM that cannot use or write an archive ignores it and starts without one.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from twinbus.spark.runtime.cache import cache_directory
from twinbus.spark.runtime.java import Java

__all__ = ["ClassArchive"]

DRAFT_AGE_S_MAX: Final = 3_600.0
"""A draft that is older was left by a JVM that was killed."""
BEGINNING_BYTES: Final = 4
# The JVM prints which classes it leaves out on standard output, which is the command's output.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


class ClassArchive:
    """The archive of one Java and one Spark."""

    def __init__(self, directory: Path, java: Java, spark_home: Path, spark_version: str) -> None:
        facts = f"{java.path}\n{java.build}\n{spark_home}".encode()
        stem = f"spark-{spark_version}-java{java.major}-{hashlib.sha256(facts).hexdigest()[:12]}"
        self.path = directory / f"{stem}.jsa"
        self._drafts = f"{stem}.*.draft"
        self._draft = directory / f"{stem}.{os.getpid()}.draft"

    @classmethod
    def of(cls, java: Java, spark_home: Path, spark_version: str) -> ClassArchive | None:
        """None where there is no cache directory."""
        directory = cache_directory()
        return None if directory is None else cls(directory, java, spark_home, spark_version)

    def is_there(self) -> bool:
        if not self.path.is_file():
            self._adopt()
        return self.path.is_file()

    def java_options(self, *, may_make: bool) -> str:
        """Options of the JVM; empty when there is no archive and none is to be written."""
        if self.is_there():
            return f"-XX:SharedArchiveFile={self.path} {_QUIET}"
        return f"-XX:ArchiveClassesAtExit={self._draft} {_QUIET}" if may_make else ""

    def _adopt(self) -> None:
        for draft in self.path.parent.glob(self._drafts):
            with suppress(OSError):
                if _is_whole(draft):
                    draft.replace(self.path)
                elif time.time() - draft.stat().st_mtime > DRAFT_AGE_S_MAX:
                    draft.unlink()


def _is_whole(draft: Path) -> bool:
    with draft.open("rb") as file:
        return any(file.read(BEGINNING_BYTES))
