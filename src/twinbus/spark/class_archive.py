"""Spark's classes, kept from one run for the next: a JVM that maps them starts in half the time.

    first run   -XX:ArchiveClassesAtExit   the JVM writes a draft at its end, which gets its name
    later runs  -XX:SharedArchiveFile      the JVM maps it, or ignores it when it does not fit

The archive (140 MB) fits one build of Java and one installation of Spark; both are in its name.

Rule 1: an archive has its name only once its JVM has ended: nobody maps half a file.
Rule 2: a JVM that cannot use or make one says nothing and goes on.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from twinbus.spark.cache import cache_directory
from twinbus.spark.java import Java

__all__ = ["ClassArchive"]

EXIT_S_MAX: Final = 90.0
"""Writing the archive takes a quiet machine 5 s."""
DRAFT_AGE_S_MAX: Final = 3_600.0
"""A draft that is older was left by a process that was killed."""
# The JVM tells about classes it leaves out, on standard output, which belongs to the command.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


class ClassArchive:
    """The archive of one Java and one Spark."""

    def __init__(self, directory: Path, java: Java, spark_home: Path, spark_version: str) -> None:
        facts = f"{java.path}\n{java.build}\n{spark_home}".encode()
        stem = f"spark-{spark_version}-java{java.major}-{hashlib.sha256(facts).hexdigest()[:12]}"
        self.path = directory / f"{stem}.jsa"
        self._draft = directory / f"{stem}.{os.getpid()}.draft"

    @classmethod
    def of(cls, java: Java, spark_home: Path, spark_version: str) -> ClassArchive | None:
        """None where nothing can be kept."""
        directory = cache_directory()
        return None if directory is None else cls(directory, java, spark_home, spark_version)

    def java_options(self, *, may_make: bool) -> str:
        """What to start the JVM with; nothing when there is no archive and none is to be made."""
        if self.path.is_file():
            return f"-XX:SharedArchiveFile={self.path} {_QUIET}"
        if not may_make:
            return ""
        self._sweep()
        return f"-XX:ArchiveClassesAtExit={self._draft} {_QUIET}"

    def keep_at_exit(self, jvm: subprocess.Popen[bytes]) -> None:
        """Give the draft its name once this process and its JVM are done."""
        if not self.path.is_file():
            atexit.register(self.keep, jvm)

    def keep(self, jvm: subprocess.Popen[bytes]) -> None:
        """End the JVM, which then writes the draft, and wait for it."""
        with suppress(OSError):
            if jvm.stdin is not None:
                jvm.stdin.close()
        try:
            jvm.wait(EXIT_S_MAX)
        except subprocess.TimeoutExpired:
            return
        with suppress(OSError):
            self._draft.replace(self.path)

    def _sweep(self) -> None:
        for draft in self.path.parent.glob("spark-*.draft"):
            with suppress(OSError):
                if time.time() - draft.stat().st_mtime > DRAFT_AGE_S_MAX:
                    draft.unlink()
