"""Install a built wheel into an empty environment and use it there.

    python -m verification.wheel_check dist

1. Create a virtual environment without any package, not even pip.
2. Install the wheel with the extras ``azure``, ``spark`` and ``java``, at the versions of the lock.
3. Run ``pip check``, ``twinbus --version``, ``twinbus --help`` and the demo, which must not lose a
   message.

``make package`` builds the wheel and calls this; ``tests/architecture/test_bare_install.py`` checks
the wheel without extras.

Rule 1: nothing of the source tree is used: commands run in a directory of their own and without
        PYTHONPATH.
Rule 2: only the standard library is imported here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["constraints_in", "main", "problems_in"]

ROOT: Final = Path(__file__).resolve().parent.parent
EXTRAS: Final = "azure,spark,java"
INSTALL_TIMEOUT_S: Final = 900
DEMO_TIMEOUT_S: Final = 600
# What must be 0 in the result of the demo.
MUST_BE_ZERO: Final = ("lost", "unexpected", "failed_sends")

_PIN = re.compile(r"^[A-Za-z0-9._-]+==[^ ;\\]+", re.MULTILINE)


def constraints_in(lock: str) -> list[str]:
    """The versions of a lock file, without hashes: a wheel that was built here has none."""
    return _PIN.findall(lock)


def problems_in(result: Mapping[str, object]) -> list[str]:
    """What is wrong with the result of the demo; empty: nothing."""
    found = [f"{name} is {result.get(name)!r}" for name in MUST_BE_ZERO if result.get(name) != 0]
    if not result.get("delivered"):
        found.append("no message was delivered")
    return found


def main(arguments: Sequence[str]) -> int:
    wheels = [each for name in arguments for each in sorted(Path(name).glob("twinbus-*.whl"))]
    if len(wheels) != 1:
        print(f"Expected one wheel, found {len(wheels)}. Run `make package`.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="twinbus-wheel-") as directory:
        return _check(wheels[0].resolve(), Path(directory))


def _check(wheel: Path, work: Path) -> int:
    environment = work / "env"
    venv.create(environment, with_pip=False)
    constraints = work / "constraints.txt"
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    constraints.write_text("\n".join(constraints_in(lock)), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(environment)]
    empty = work / "empty"
    empty.mkdir()

    _run([*pip, "install", "--quiet", "--constraint", str(constraints), f"{wheel}[{EXTRAS}]"],
         empty, INSTALL_TIMEOUT_S)  # fmt: skip
    _run([*pip, "check"], empty)

    twinbus = str(environment / "bin" / "twinbus")
    version = wheel.name.split("-")[1]
    if _run([twinbus, "--version"], empty).strip() != f"twinbus {version}":
        print(f"`twinbus --version` does not print {version}.", file=sys.stderr)
        return 1
    _run([twinbus, "--help"], empty)
    demo = _run([twinbus, "demo", "--json"], empty, DEMO_TIMEOUT_S)
    result = json.loads(demo.splitlines()[-1])
    print(json.dumps(result))
    problems = problems_in(result)
    if problems:
        print(f"The demo of the installed wheel failed: {'; '.join(problems)}.", file=sys.stderr)
    return 1 if problems else 0


def _run(command: list[str], directory: Path, timeout_s: float = 120) -> str:
    """What the command printed; an error of the command ends the check with its output."""
    # Without the paths of the environment that runs this check.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    shown = " ".join(Path(word).name for word in command)
    began_s = time.monotonic()
    done = subprocess.run(
        command, cwd=directory, env=kept, capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise SystemExit(f"{shown} failed with exit code {done.returncode}.")
    print(f"{time.monotonic() - began_s:6.1f} s  {shown}", flush=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["dist"]))
