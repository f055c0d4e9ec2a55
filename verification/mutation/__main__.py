"""``python -m verification.mutation``: plants every bug; exit code 1 when one escapes or a control
complains.

Two at a time: one that starts processes beside one that does not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Final

from verification.mutation.bite import Watched
from verification.mutation.bug import Bug
from verification.mutation.registry import BUGS

BITE_S_MAX: Final = 400.0
END_S_MAX: Final = 20.0
LOG_CHARACTERS_SHOWN: Final = 1_500
COLUMNS: Final = "{:<58}{:<11}{:<22}{:<48}{:<8}{}"


class Failed(Exception):
    """A harness came to no end: neither caught nor clean."""


class Teeth:
    """The table, while it is being filled."""

    def __init__(self, bugs: Sequence[Bug]) -> None:
        self._bugs = bugs
        self._watched: dict[str, Watched] = {}
        self._failures: list[str] = []
        self._processes: set[subprocess.Popen[str]] = set()
        self._printing = Lock()

    def run(self) -> int:
        """The exit code."""
        self._row("planted bug", "layer", "harness", "check", "caught", "after")
        try:
            self._two_at_a_time(self._bugs, self._bite)
            print()
            self._two_at_a_time(self._one_of_each_harness(), self._control)
        finally:
            for process in list(self._processes):
                _end(process)
        caught = sum(each.caught is not None for each in self._watched.values())
        print()
        for failure in self._failures:
            print(failure)
        print(f"caught {caught} of {len(self._bugs)}")
        return 1 if self._failures else 0

    def _two_at_a_time(self, bugs: Sequence[Bug], work: Callable[[Bug], None]) -> None:
        def in_turn(has_processes: bool) -> None:
            for bug in bugs:
                if bug.harness.has_processes is has_processes:
                    work(bug)

        with ThreadPoolExecutor(2) as lanes:
            for _ in lanes.map(in_turn, (True, False)):
                pass

    def _one_of_each_harness(self) -> list[Bug]:
        """Of the bugs that share a harness, the one that took it the longest."""
        longest: dict[str, Bug] = {}
        for bug in self._bugs:
            known = longest.get(bug.harness.name)
            if known is None or self._rounds(bug) > self._rounds(known):
                longest[bug.harness.name] = bug
        return list(longest.values())

    def _rounds(self, bug: Bug) -> int:
        return self._watched[bug.name].round_count if bug.name in self._watched else 0

    def _bite(self, bug: Bug) -> None:
        watched = self._watch(bug)
        if watched is None:
            self._tell(bug, "NO", "")
            return
        self._watched[bug.name] = watched
        after = f"{watched.round_count} {bug.harness.unit}, {watched.seconds:.1f} s"
        if watched.caught is None:
            others = "".join(f"\n    {each}" for each in watched.others[:5])
            self._failures.append(
                f"{bug.name}: {bug.harness.name} did not say {bug.check!r}; it said"
                f"{others or ' nothing'}"
            )
        self._tell(bug, "NO" if watched.caught is None else "yes", after)

    def _control(self, bug: Bug) -> None:
        rounds = self._rounds(bug)
        if not rounds:
            return
        watched = self._watch(bug, "--control", str(rounds))
        if watched is None:
            return
        if watched.others:
            said = "".join(f"\n    {each}" for each in watched.others[:5])
            self._failures.append(f"{bug.harness.name} complains without a bug:{said}")
        after = f"{watched.round_count} {bug.harness.unit}, {watched.seconds:.1f} s"
        verdict = "COMPLAINS" if watched.others else "clean"
        self._row("(no bug)", "", bug.harness.name, "", verdict, after)

    def _watch(self, bug: Bug, *arguments: str) -> Watched | None:
        try:
            return self._run(bug, arguments)
        except Failed as error:
            self._failures.append(f"{bug.name}: {error}")
            return None

    def _run(self, bug: Bug, arguments: Sequence[str]) -> Watched:
        command = [sys.executable, "-m", "verification.mutation.bite", bug.name, *arguments]
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
            self._processes.add(process)
            try:
                told, _ = process.communicate(timeout=BITE_S_MAX)
            except subprocess.TimeoutExpired:
                raise Failed(f"{bug.harness.name} came to no end in {BITE_S_MAX:.0f} s") from None
            finally:
                _end(process)
                self._processes.discard(process)
            if process.returncode:
                log.seek(0)
                said = log.read()[-LOG_CHARACTERS_SHOWN:]
                raise Failed(f"{bug.harness.name} failed ({process.returncode}):\n{said}")
        return Watched(**json.loads(told.splitlines()[-1]))

    def _tell(self, bug: Bug, verdict: str, after: str) -> None:
        self._row(bug.name, bug.layer, bug.harness.name, bug.check, verdict, after)

    def _row(self, *values: str) -> None:
        with self._printing:
            print(COLUMNS.format(*values), flush=True)


def _end(process: subprocess.Popen[str]) -> None:
    """It, and whatever it has started."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S_MAX)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def listed(bugs: Sequence[Bug]) -> list[str]:
    """A table for the documentation."""
    rows = [
        f"| {bug.layer} | {bug.name} | {bug.harness.name} | {bug.check.strip(' :')} |"
        for bug in bugs
    ]
    return ["| Layer | Planted bug | Harness | Check |", "|---|---|---|---|", *rows]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.mutation", description=__doc__)
    parser.add_argument(
        "--only", default="", help="a part of a name (late-success), a layer or a harness"
    )
    parser.add_argument("--list", action="store_true", help="as docs/GUARANTEES.md has them")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(listed(BUGS)))
        return 0
    chosen = [bug for bug in BUGS if bug.is_meant_by(options.only)]
    if not chosen:
        print(
            f"no planted bug is called {options.only!r}; "
            "`python -m verification.mutation` shows all of them"
        )
        return 2
    began_s = time.monotonic()
    code = Teeth(chosen).run()
    print(f"{time.monotonic() - began_s:.0f} s", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
