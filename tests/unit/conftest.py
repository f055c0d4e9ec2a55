"""Unit tests stay in their process: one that starts another, a JVM among them, fails.

Sockets between threads of this process are allowed: some tests run a broker beside themselves.
"""

from __future__ import annotations

import multiprocessing.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STARTS = frozenset(
    {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn", "subprocess.Popen"}
)
SENTENCE = "A unit test must not start a process. Move it to tests/integration or tests/spark."

_running: list[str] = []
"""The unit test that runs now."""
_started: list[str] = []
"""What it tried to start, also where the code caught the refusal."""


def refuse(what: str) -> None:
    if _running:
        _started.append(what)
        # Not an Exception: code that handles a program that is missing must not handle this.
        raise pytest.fail.Exception(f"{SENTENCE} It was: {what}", pytrace=True)


def look(
    event: str,
    arguments: tuple[Any, ...],
    # Named here, because it is called until Python has ended, when the module's names are gone.
    running: list[str] = _running,
    starts: frozenset[str] = STARTS,
) -> None:
    if running and event in starts:
        refuse(f"{event} {arguments[:2]}"[:300])


# Python has no way to take such a hook away. It does nothing while no unit test runs.
sys.addaudithook(look)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if HERE not in item.path.parents:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        # The only way to a process that Python's audit events do not show.
        patch.setattr(multiprocessing.util, "spawnv_passfds", lambda *_: refuse("multiprocessing"))
        _running.append(item.nodeid)
        _started.clear()
        try:
            return (yield)
        finally:
            _running.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    result = yield
    if _started:
        pytest.fail(f"{SENTENCE} It was: {_started[0]}", pytrace=False)
    return result
