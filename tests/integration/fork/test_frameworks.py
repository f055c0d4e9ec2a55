"""Programs whose workers are forked by somebody else: gunicorn, Celery, multiprocessing."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.integration.fork.conftest import PROGRAMS, TIMEOUT_S, RunProgram, bodies
from twinbus.testing import NamespacePairFixture

ORDERS = [f"order {number}" for number in range(12)]


def test_the_workers_of_a_multiprocessing_pool_send_through_an_inherited_factory(
    servicebus_pair: NamespacePairFixture, run_program: RunProgram
) -> None:
    """P27: one of twinbus with the lean client, made and paired when the module was loaded."""
    servicebus_pair.primary.queue("orders")
    run_program("pool")
    assert bodies(servicebus_pair.primary, "orders") == sorted([*ORDERS, "the last order"])


def test_workers_of_gunicorn_send_through_a_client_of_the_preloaded_application(
    servicebus_pair: NamespacePairFixture, environment: dict[str, str], tmp_path: Path
) -> None:
    """P27: a drop-in client that the master has used; no worker logs a traceback."""
    servicebus_pair.primary.queue("orders")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    command = ["gunicorn", "--preload", "--workers", "2", "--bind", address, "shop:app"]
    with _started(command, environment, tmp_path / "log") as log:
        _until_listening(port, log)
        workers = {_page(f"http://{address}/?{order.replace(' ', '-')}") for order in ORDERS}
    expected = [order.replace(" ", "-") for order in ORDERS]
    found = bodies(servicebus_pair.primary, "orders")
    assert found == sorted([*expected, "the shop is open"])
    text = log.read_text()
    assert "Traceback" not in text and "ERROR" not in text, text
    # Each was forked from the master, which answers nobody.
    assert workers <= set(re.findall(r"Booting worker with pid: (\d+)", text))


def test_tasks_of_celerys_prefork_pool_send_through_an_inherited_client(
    servicebus_pair: NamespacePairFixture, environment: dict[str, str], tmp_path: Path
) -> None:
    """P27: a client that the worker has used before it forked its pool."""
    orders = servicebus_pair.primary.queue("orders")
    command = ["celery", "--app", "tasks", "worker", "--pool", "prefork", "--concurrency", "2"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with _started(command, environment, tmp_path / "log") as log:
        end_s = time.monotonic() + TIMEOUT_S
        while orders.active_message_count < 1 + len(ORDERS):
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.05)
    expected = sorted([*ORDERS, "the worker starts"])
    assert bodies(servicebus_pair.primary, "orders") == expected
    assert "Traceback" not in log.read_text(), log.read_text()


@contextmanager
def _started(command: list[str], environment: dict[str, str], log: Path) -> Iterator[Path]:
    """A program of a package, and its end when it has done its work."""
    with log.open("wb") as output:
        process = _begun(command, environment, output)
    try:
        yield log
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # It and its workers: a group of its own.
            process.wait()
            raise


def _begun(
    command: list[str], environment: dict[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env=environment,
        cwd=PROGRAMS,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def _until_listening(port: int, log: Path) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.05)
        else:
            return


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())
