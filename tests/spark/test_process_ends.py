"""Processes of Spark end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.mover.messages import id_of, plain
from tests.unit.common.test_event_loop import until
from twinbus.drivers.amqp import AmqpDriver
from twinbus.encoding.transit import OutgoingMessage

ORPHAN_S_MAX = 3.0


# The middle one stands for the JVM: it starts a process and waits, and is killed.
MIDDLE = """
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
    print(child.pid, flush=True)
    child.wait()
"""


WAITS_FOR_A_MESSAGE = """
    import asyncio, os, pathlib, sys, time
    from twinbus.drivers.amqp import AmqpDriver
    from twinbus.spark.long_poll import LongPollWatcher
    from twinbus.common.event_loop import LoopThread

    connection_string, queue, ready = sys.argv[1:]
    engine = LoopThread("bell", dies_with_parent=True)

    async def armed() -> LongPollWatcher:
        watcher = LongPollWatcher(AmqpDriver.from_connection_string(connection_string), [queue])
        watcher.start_polling()
        assert await watcher.ready(0.5) == {}
        return watcher

    watcher = engine.run(armed())
    pathlib.Path(ready).write_text("ready")
    engine.run(watcher.ready(900))
    time.sleep(900)
"""


class Tree:
    """A process, and one that it started."""

    def __init__(self, ready: Path, script: str, *arguments: str) -> None:
        command = [sys.executable, "-c", textwrap.dedent(MIDDLE), textwrap.dedent(script)]
        self.middle = subprocess.Popen(
            [*command, *arguments, str(ready)], stdout=subprocess.PIPE, text=True
        )
        assert self.middle.stdout is not None
        self.lower = psutil.Process(int(self.middle.stdout.readline()))
        until(ready.exists, 30)

    @property
    def is_orphan_alive(self) -> bool:
        return self.lower.is_running() and self.lower.status() != psutil.STATUS_ZOMBIE

    def close(self) -> None:
        self.middle.kill()
        self.middle.wait(5)
        assert self.middle.stdout is not None
        self.middle.stdout.close()
        if self.is_orphan_alive:
            self.lower.kill()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", queues=["parcels"]) as started:
        yield started


@pytest.fixture
def tree(broker: BrokerProcess, tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path / "ready", WAITS_FOR_A_MESSAGE, broker.connection_string, "parcels")
    yield made
    made.close()


async def sent_and_received(broker: BrokerProcess, wait_s: float) -> list[str]:
    driver = AmqpDriver.from_connection_string(broker.connection_string)
    try:
        await driver.sender("parcels").send([OutgoingMessage(plain("after"))], timeout_s=10)
        received = await driver.receiver("parcels").receive(1, wait_s=wait_s)
        return [id_of(each.encoded) for each in received]
    finally:
        await driver.close()


async def test_a_process_ends_with_the_one_that_started_it(
    tree: Tree, broker: BrokerProcess
) -> None:
    """Y2: a long poll whose Spark was killed with -9 takes no message from those who are left."""
    assert tree.is_orphan_alive
    os.kill(tree.middle.pid, signal.SIGKILL)
    tree.middle.wait(5)

    assert until(lambda: not tree.is_orphan_alive) <= ORPHAN_S_MAX
    assert await sent_and_received(broker, 2) == ["after"]


async def test_a_process_stays_as_long_as_the_one_that_started_it(
    tree: Tree, broker: BrokerProcess
) -> None:
    """The other side: as long as it lives, the message is its."""
    time.sleep(1.5)
    assert tree.is_orphan_alive
    assert await sent_and_received(broker, 0.5) == []


def test_a_busy_process_ends_too(tmp_path: Path) -> None:
    """Spark's call is blocked in the main thread all the time."""
    script = """
        import pathlib, sys, time
        from twinbus.common.event_loop import LoopThread
        engine = LoopThread("idle", dies_with_parent=True)
        pathlib.Path(sys.argv[1]).write_text("ready")
        while True:
            sum(range(10_000))
    """
    tree = Tree(tmp_path / "ready", script)
    try:
        os.kill(tree.middle.pid, signal.SIGKILL)
        tree.middle.wait(5)
        assert until(lambda: not tree.is_orphan_alive) <= ORPHAN_S_MAX
    finally:
        tree.close()
