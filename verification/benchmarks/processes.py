"""What the benchmarks need to know about processes: ports, CPU, memory, and how to end them.

Linux only (it reads /proc), like the Debian package that the peer comes from.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
POLL_PAUSE_S = 0.02

# A broker that used less than this share of one core over a sample has finished its afterwork
# (checkpoints, segment writes), which would otherwise run into the other broker's turn.
QUIET_CPU_SHARE = 0.05
QUIET_SAMPLE_S = 0.5
QUIET_WAIT_S_MAX = 60.0

# RabbitMQ closes its log in a few seconds; a node that needs longer is stuck.
STOP_WAIT_S_MAX = 60.0


class BenchError(Exception):
    """A benchmark cannot give an honest figure; the text says why in one sentence."""


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, attempt: Callable[[], Found | None], timeout_s: float) -> Found:
    """Call ``attempt`` until it returns something; give up with a sentence that names ``what``."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        found = attempt()
        if found is not None:
            return found
        time.sleep(POLL_PAUSE_S)
    raise BenchError(f"{what} did not happen within {timeout_s:.0f} s")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def machine_busy_share() -> float:
    """Share of all cores in use right now, by anybody; sampled while the benchmarks rest."""
    idle_before, total_before = _machine_ticks()
    time.sleep(QUIET_SAMPLE_S)
    idle_after, total_after = _machine_ticks()
    return 1 - (idle_after - idle_before) / max(1, total_after - total_before)


def _machine_ticks() -> tuple[int, int]:
    fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchError(f"process {pid} shows no resident memory")


def wait_until_quiet(pid: int) -> None:
    """Return once the process has (almost) stopped using CPU."""

    def quiet() -> bool | None:
        before_s = cpu_seconds(pid)
        time.sleep(QUIET_SAMPLE_S)
        share = (cpu_seconds(pid) - before_s) / QUIET_SAMPLE_S
        return True if share < QUIET_CPU_SHARE else None

    wait_for(f"process {pid} coming to rest", quiet, QUIET_WAIT_S_MAX)


def spawn(
    command: list[str], log: Path, env: dict[str, str], stdin: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process as the leader of its own group, so that exactly it can be ended later."""
    with log.open("ab") as sink:
        return subprocess.Popen(
            command,
            stdin=stdin or subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=env,
            start_new_session=True,
        )


def end_group(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Signal the group that ``spawn`` made and wait; what ignores SIGTERM is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    try:
        process.wait(STOP_WAIT_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_WAIT_S_MAX)


def filesystem_of(directory: Path) -> str:
    """The type of the file system that holds ``directory`` (ext4, tmpfs, …)."""
    device = os.stat(directory).st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        major, _, minor = left.split()[2].partition(":")
        if os.makedev(int(major), int(minor)) == device:
            return right.split()[0]
    return "unknown"
