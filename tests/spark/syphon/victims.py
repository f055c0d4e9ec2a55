"""The processes of a syphon, found by what they are, so that a test can kill one.

program --> JVM --> source runner (the bell)
                '-> Python daemon --> movers
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from verification.fault_campaign.syphon import command_of, name_of, ports_of

SOURCE_RUNNER = "python_streaming_source_runner"
PYTHON_DAEMON = "pyspark.daemon"


def until(happened: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    ends_s = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < ends_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


def family(head: psutil.Process) -> list[psutil.Process]:
    """A process and all that it has started, directly or not."""
    return [head, *head.children(recursive=True)]


def jvm_of(program: psutil.Process) -> psutil.Process:
    return next(each for each in family(program) if name_of(each).startswith("java"))


def source_runner_of(jvm: psutil.Process) -> psutil.Process:
    """The newest one: each query has its own, and those of earlier queries may be ending."""
    found = [each for each in family(jvm) if SOURCE_RUNNER in command_of(each)]
    return max(found, key=psutil.Process.create_time)


def movers_of(jvm: psutil.Process, primary_port: int) -> list[psutil.Process]:
    """Python workers that talk to the primary now."""
    return [
        each
        for each in family(jvm)
        if PYTHON_DAEMON in command_of(each) and primary_port in ports_of(each)
    ]
