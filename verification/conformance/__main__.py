"""Run the SDK's own tests against a broker:
``python -m verification.conformance [pytest arguments]``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support.broker_process import BrokerProcess
from verification.conformance.sdist import ROOT, tests_directory
from verification.conformance.service import announce, namespaces

SUITES: Final = (
    "test_queues.py",
    "test_sessions.py",
    "test_list_sessions.py",
    "test_topic.py",
    "test_subscriptions.py",
    "test_sb_client.py",
    "test_message.py",
    "async_tests",
    "mgmt_tests",
)

# The tests mostly sleep until a lock or a message has expired, so far more of them than there
# are processors can run at a time. Beyond this number they begin to miss their own deadlines.
WORKERS: Final = 8


def main(arguments: list[str]) -> int:
    tests = tests_directory()
    worker_count = int(os.environ.get("WORKERS", WORKERS))
    first, *others = namespaces(worker_count)
    more = tuple(word for name in others for word in ("--namespace", f"{name}:0"))
    with tempfile.TemporaryDirectory(prefix="twinbus-conformance-") as directory:
        data = Path(directory) / "data"
        with BrokerProcess(data, namespace=first, arguments=more) as broker:
            announce(broker, Path(directory) / "announcement.json")
            code = run_tests(tests, worker_count, arguments)
            if not broker.is_alive:
                print(f"The broker ended during the run:\n{broker.log()}", file=sys.stderr)
                return 1
        return code


def run_tests(tests: Path, worker_count: int, arguments: list[str]) -> int:
    """The named tests, or all suites; the exit code of pytest."""
    named = [each for each in arguments if not each.startswith("-") and ".py" in each]
    options = [each for each in arguments if each not in named]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "verification" / "conformance" / "pytest.ini"),
    ]
    command += ["--rootdir", str(tests), "-n", str(worker_count)]
    # The order counts (see plugin.py): whoever is free takes the next one.
    command += ["--dist", "load", "--maxschedchunk", "1"]
    command += [*options, *(str(tests / each) for each in (named or SUITES))]
    environment = {**os.environ, "PYTHONPATH": _python_path()}
    return subprocess.run(command, cwd=tests, env=environment, check=False).returncode


def _python_path() -> str:
    known = os.environ.get("PYTHONPATH")
    return str(ROOT) if known is None else f"{ROOT}{os.pathsep}{known}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
