"""A Python for Spark's processes that does not compile PySpark at every start.

Spark puts archives of PySpark's sources first on the path of its dozen Python processes. They
contain no bytecode, and each process spends 0.8 s of processor time on compiling modules that the
installed PySpark has as bytecode.

Rule 1: only PySpark's own archives are left out, and only where the same PySpark is installed
        for the Python that runs.
Rule 2: where this is not possible, the plain Python is used.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from twinbus.spark.runtime.cache import cache_directory

__all__ = ["worker_python"]

_SCRIPT: Final = """\
#!/bin/sh
# Starts Python without the archives of PySpark's sources: the same PySpark is installed.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        {library}/*.zip) ;;
        *) kept=${{kept:+$kept:}}$entry ;;
    esac
done
unset IFS
PYTHONPATH=$kept
export PYTHONPATH
exec {python} "$@"
"""


def worker_python(spark_home: Path, environment: Mapping[str, str] | None = None) -> str:
    """The value of PYSPARK_PYTHON for the PySpark that is installed in ``spark_home``."""
    library = spark_home / "python" / "lib"
    directory = cache_directory(environment)
    if os.name != "posix" or directory is None or not (library / "pyspark.zip").is_file():
        return sys.executable
    script = _SCRIPT.format(
        library=shlex.quote(str(library)), python=shlex.quote(sys.executable)
    ).encode()
    path = directory / f"spark-python-{hashlib.sha256(script).hexdigest()[:12]}"
    try:
        if not (path.is_file() and path.read_bytes() == script and os.access(path, os.X_OK)):
            _write(path, script)
    except OSError:
        return sys.executable
    return str(path)


def _write(path: Path, script: bytes) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(script)
    draft.chmod(0o700)
    draft.replace(path)
