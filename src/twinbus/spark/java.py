"""The Java that Spark runs on: found, and new enough.

    JAVA_HOME, or else java on PATH, or else the one that pip installed

Rule 1: what is missing is said in a sentence before Spark is started: what Spark itself says then
        is a stack trace.
Rule 2: a JAVA_HOME that somebody set is taken at its word, also when it is wrong.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from twinbus.errors import ConfigurationError
from twinbus.spark.java_from_pip import java_from_pip

__all__ = ["Java", "find_java"]

JAVA_VERSION_MIN: Final = 17
ANSWER_TIMEOUT_S: Final = 30.0
_HINT: Final = (
    f"Install OpenJDK {JAVA_VERSION_MIN} or later, and set JAVA_HOME if it is not on PATH; or "
    "pip install 'twinbus[java]'"
)
# "1.8.0_292" before Java 9, "17.0.15" since, and "26-ea" before a release.
_VERSION: Final = re.compile(r'version "(?:1\.)?(?P<major>\d+)[^"]*"')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that answers."""

    path: Path
    major: int
    build: str
    """What ``java -version`` says, in full: two builds that say the same are the same."""
    home: Path | None = None
    """What JAVA_HOME has to be for Spark's launcher to take it; None: it does by itself."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark's launcher would take; ConfigurationError when it cannot be used."""
    told = os.environ if environment is None else environment
    try:
        return _checked(_path(told))
    except ConfigurationError:
        home = None if told.get("JAVA_HOME", "").strip() else java_from_pip(told)
        if home is None:
            raise
        return replace(_checked(home / "bin" / "java"), home=home)


def _checked(path: Path) -> Java:
    build = _build(path)
    match = _VERSION.search(build)
    if match is None:
        raise ConfigurationError(f"{str(path)!r} does not tell its version", hint=_HINT)
    major = int(match["major"])
    if major < JAVA_VERSION_MIN:
        raise ConfigurationError(
            f"Spark needs Java {JAVA_VERSION_MIN} or later and {str(path)!r} is Java {major}",
            hint=_HINT,
        )
    return Java(path, major, build)


def _path(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME", "").strip()
    if home:
        path = Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")
        if not path.is_file():
            raise ConfigurationError(f"JAVA_HOME is {home!r}, where no Java is", hint=_HINT)
        return path
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found is None:
        raise ConfigurationError("Spark needs Java, and none was found", hint=_HINT)
    return Path(found)


def _build(path: Path) -> str:
    try:
        answer = subprocess.run(
            [str(path), "-version"], capture_output=True, timeout=ANSWER_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"{str(path)!r} does not run: {type(error).__name__}", hint=_HINT
        ) from error
    return (answer.stderr or answer.stdout).decode(errors="replace").strip()
