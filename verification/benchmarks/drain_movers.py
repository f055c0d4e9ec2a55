"""Who brings a backlog home in the drain benchmarks: the syphon on Spark, and those beside it.

    hold() -> the backlog is filled -> release() -> messages arrive -> hold() -> ...

Rule 1: a mover is a program in its own process, started as a user would start it; what it and
        everything below it uses of the processors is what it costs.
Rule 2: a held mover takes nothing. The syphon on Spark is held by its own control file, so that
        its query stays warm; one that has no such file is not running while it is held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, Protocol

from verification.benchmarks.drain_site import DESTINATIONS, Site
from verification.benchmarks.process_tree import Used, end_tree
from verification.benchmarks.processes import BenchError, spawn, wait_for

# Spark's start and its first batch take 20 s, and minutes while others use all cores.
START_S_MAX: Final = 300.0
HOLD_S_MAX: Final = 60.0
HAND_S: Final = 22.0
HAND_S_MIN: Final = 20.0
"""Of work, so that a rate is one."""


class Mover(Protocol):
    name: str

    def hold(self) -> None:
        """Return when it takes no more messages."""

    def release(self) -> None:
        """Let it work; return at once."""

    def used(self) -> Used:
        """What it has used of the processors so far."""

    def check(self) -> object:
        """Raise if it has ended although it should not."""

    def stop(self) -> None: ...


def environment(site: Site) -> dict[str, str]:
    """Where the two namespaces are, as our programs and the loop by hand read it."""
    return dict(os.environ) | {
        "SERVICEBUS_CONNECTION_STRING": site.home.connection_string,
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": site.away.connection_string,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }


class _Program:
    """A process of ours with a log."""

    def __init__(self, site: Site, log: Path) -> None:
        self._site = site
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self, *command: str) -> None:
        command_line = [sys.executable, "-m", *command]
        self._process = spawn(command_line, self._log, environment(self._site))

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BenchError("the mover is not running")
        return self._process.pid

    def used(self) -> Used:
        self.check()
        return Used.so_far(self.pid)

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise BenchError(f"the mover ended: {self._log.read_text()[-500:].strip()}")

    def wait(self, timeout_s: float) -> int:
        """Its exit code, once it has ended by itself."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"the mover did not end within {timeout_s:.0f} s") from None

    def stop(self) -> None:
        if self._process is not None:
            end_tree(self._process)
            self._process = None


class SparkSyphon(_Program):
    """``twinbus syphon``: one query in a Spark session of its own."""

    name = "twinbus syphon on Spark"

    def __init__(self, site: Site, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(site, directory / "syphon.log")
        self._state = directory / "state"

    def start(self, *more: str) -> None:
        """Return at once: its first message home says that it has started."""
        self._state.mkdir(exist_ok=True)
        self._start("twinbus", "syphon", "--state", str(self._state), "--output", "json", *more)

    def hold(self) -> None:
        self._want(is_paused=True)

        def paused() -> bool | None:
            self.check()
            return True if self._doing() == "paused" else None

        wait_for("the syphon's pause", paused, HOLD_S_MAX)

    def release(self) -> None:
        self._want(is_paused=False)

    def _want(self, *, is_paused: bool) -> None:
        fresh = self._state / "control.json.new"
        fresh.write_text(json.dumps({"is_paused": is_paused}))
        fresh.replace(self._state / "control.json")

    def _doing(self) -> str:
        try:
            return str(json.loads((self._state / "status.json").read_text())["doing"])
        except FileNotFoundError:
            return "starting"


class LocalSyphon(_Program):
    """``twinbus syphon --local``: the same mover in one process, without Spark."""

    name = "twinbus syphon --local"

    def __init__(self, site: Site, directory: Path, driver: str = "amqp") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(site, directory / "local.log")
        self._driver = driver

    def hold(self) -> None:
        self.stop()

    def release(self) -> None:
        self._start(
            "twinbus", "syphon", "--local", "--driver", self._driver, "--output", "json"
        )  # fmt: skip

    def used(self) -> Used:
        return super().used() if self._process else Used.nothing()


class HandLoop:
    """The loop by hand; it times itself, because it is too slow for a whole backlog."""

    name = "loop by hand, stock SDK"

    def __init__(self, site: Site, seconds: float = HAND_S) -> None:
        self._site = site
        self._seconds = seconds

    def rate_per_s(self) -> tuple[float, int, float]:
        """Messages a second, how many there were, and the seconds they took."""
        command = [
            sys.executable, "-m", "verification.benchmarks.hand_loop",
            "--queues", *self._site.queues,
            "--destinations", *DESTINATIONS, "--seconds", str(self._seconds),
        ]  # fmt: skip
        done = subprocess.run(
            command, env=environment(self._site), capture_output=True, text=True,
            timeout=self._seconds + START_S_MAX,
        )  # fmt: skip
        if done.returncode != 0:
            raise BenchError(f"the loop by hand failed: {done.stderr.strip()[-500:]}")
        told = json.loads(done.stdout)
        messages, seconds = int(told["messages"]), float(told["seconds"])
        if messages != self._site.came_home():
            raise BenchError(f"{self._site.came_home()} of {messages} messages came home by hand")
        return messages / seconds, messages, seconds
