"""The parts of a syphon on Spark are found by what they are."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from verification.fault_campaign.cards import JVM, SOURCE, WORKER
from verification.fault_campaign.syphon import SparkChild, victims

PORT = 5_671


class Process:
    """What the operating system tells about one."""

    def __init__(self, *command: str, name: str = "python3", port: int = 0) -> None:
        self._command, self._name, self._port = list(command), name, port
        self.is_gone = False

    def name(self) -> str:
        return self._name

    def cmdline(self) -> list[str]:
        return self._command

    def net_connections(self, _kind: str) -> list[Any]:
        listens = SimpleNamespace(raddr=())
        return [listens, SimpleNamespace(raddr=SimpleNamespace(port=self._port))]

    def kill(self) -> None:
        if self.is_gone:
            raise psutil.NoSuchProcess(1)


class Unreadable(Process):
    """One that ends while it is looked at."""

    def name(self) -> str:
        raise psutil.NoSuchProcess(1)

    cmdline = net_connections = name  # type: ignore[assignment]


PROGRAM = Process("python3", "-m", "twinbus", "syphon", "--state", "/java/pyspark")
JAVA = Process("/usr/bin/java", "-cp", "pyspark/jars", name="java")
RUNNER = Process("python3", "-m", "pyspark.sql.streaming.python_streaming_source_runner")
DAEMON, IDLE, BUSY = (Process("python3", "-m", "pyspark.daemon", port=at) for at in (0, 80, PORT))
FAMILY: Any = [PROGRAM, JAVA, RUNNER, Unreadable(), DAEMON, IDLE, BUSY]


@pytest.mark.parametrize(
    ("part", "port", "found"),
    [
        (JVM, PORT, [JAVA]),
        (SOURCE, PORT, [RUNNER]),
        (WORKER, PORT, [BUSY]),
        (WORKER, 1, []),
        (WORKER, None, [IDLE, BUSY]),
    ],
)
def test_every_part_is_found_and_a_worker_is_one_that_moves(
    part: str, port: int | None, found: list[Process]
) -> None:
    assert victims(FAMILY, part, port) == found


def test_a_daemon_is_killed_if_there_is_nobody_else() -> None:
    assert victims([PROGRAM, DAEMON], WORKER) == [DAEMON]


def test_a_victim_that_was_gone_was_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Process(*RUNNER.cmdline())
    monkeypatch.setattr(SparkChild, "family", lambda _self: [PROGRAM, runner])
    child = SparkChild.__new__(SparkChild)
    assert child.kill_part(SOURCE, Random(1))
    assert not child.kill_part(JVM, Random(1))
    runner.is_gone = True
    assert not child.kill_part(SOURCE, Random(1))
