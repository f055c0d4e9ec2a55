"""What a program and everything that it started have used of the processors.

    program (python) -> java -> python daemons -> python workers
                             -> short helpers (chmod, ls), gone by the second look

Rule 1: time of children that are gone counts for the parent that waited for them, as the kernel
        keeps it; nothing that ran between two looks is left out, and nothing counts twice.
Rule 2: a program is ended with its whole tree: Spark's Python daemons leave the group of the
        process that started them, and a signal to that group does not reach them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from verification.benchmarks.processes import POLL_PAUSE_S, TICKS_PER_S, end_group

PROC: Final = Path("/proc")
JAVA: Final = "JVM"
PYTHON: Final = "Python"
# The fields of /proc/<pid>/stat that follow the name of the program.
_PARENT, _USER, _SYSTEM, _USER_GONE, _SYSTEM_GONE, _STARTED = 1, 11, 12, 13, 14, 19
# Spark's workers see the end of their JVM within moments.
ORPHAN_WAIT_S_MAX: Final = 5.0


class Process(NamedTuple):
    pid: int
    started: int
    """In ticks since boot: a number that was given to a new process shows."""
    parent_pid: int
    name: str
    cpu_s: float
    """Its own time and that of its children that are gone."""


def look_at(pid: int) -> Process | None:
    """None when there is no such process (any more)."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    front, _, back = text.rpartition(")")
    fields = back.split()
    ticks = sum(int(fields[at]) for at in (_USER, _SYSTEM, _USER_GONE, _SYSTEM_GONE))
    name = front.partition("(")[2]
    return Process(
        pid, int(fields[_STARTED]), int(fields[_PARENT]), name, ticks / TICKS_PER_S
    )  # fmt: skip


def tree(root_pid: int) -> list[Process]:
    """The process and everything below it, parents first."""
    children: dict[int, list[Process]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (process := look_at(int(entry.name))):
            children.setdefault(process.parent_pid, []).append(process)
    root = look_at(root_pid)
    return list(_below(root, children)) if root else []


def _below(process: Process, children: dict[int, list[Process]]) -> Iterator[Process]:
    yield process
    for child in children.get(process.pid, ()):
        yield from _below(child, children)


def kind_of(process: Process) -> str:
    """JVM, or Python for everything else: what a Spark program consists of."""
    return JAVA if process.name == "java" else PYTHON


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds by kind of process."""

    by_kind: Mapping[str, float]

    @classmethod
    def nothing(cls) -> Used:
        return cls({})

    @classmethod
    def so_far(cls, root_pid: int) -> Used:
        used: dict[str, float] = {}
        for process in tree(root_pid):
            kind = kind_of(process)
            used[kind] = used.get(kind, 0.0) + process.cpu_s
        return cls(used)

    def since(self, before: Used) -> dict[str, float]:
        """The difference, by kind."""
        return {kind: s - before.by_kind.get(kind, 0.0) for kind, s in self.by_kind.items()}


def end_tree(
    process: subprocess.Popen[bytes],
    how: signal.Signals = signal.SIGTERM,
    orphan_wait_s: float = ORPHAN_WAIT_S_MAX,
) -> None:
    """End a program of our own, and whatever of its tree is still there afterwards."""
    members = tree(process.pid)
    end_group(process, how)
    deadline_s = time.monotonic() + orphan_wait_s
    while left := [member for member in members if _is_there(member)]:
        if time.monotonic() > deadline_s:
            for member in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
            return
        time.sleep(POLL_PAUSE_S)


def _is_there(member: Process) -> bool:
    now = look_at(member.pid)
    return now is not None and now.started == member.started
