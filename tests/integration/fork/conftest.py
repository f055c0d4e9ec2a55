"""Programs that fork, over the two namespaces of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import twinbus
from twinbus.testing import NamespaceFixture, NamespacePairFixture

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 100.0
"""A program takes a second or two on a quiet machine."""

RunProgram = Callable[..., str]


@pytest.fixture
def environment(servicebus_pair: NamespacePairFixture) -> dict[str, str]:
    """Where a program finds its namespaces."""
    return {
        **os.environ,
        "SERVICEBUS_CONNECTION_STRING": servicebus_pair.primary.connection_string,
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": servicebus_pair.secondary.connection_string,
        "TWINBUS_PAIR_BACKLOG_QUEUE_COUNT": "2",
        "TWINBUS_PAIR_NAMESPACE_NAME": "home",
        # What Python itself says of a fork in a program with threads.
        "PYTHONWARNINGS": "ignore::DeprecationWarning",
    }


@pytest.fixture
def run_program(environment: dict[str, str]) -> RunProgram:
    """Runs a program of this directory to its end, in which nothing may go wrong; its output."""

    def run(name: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, PROGRAMS / f"{name}.py", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        # The log of a pair says once in each process that an entity is diverted, and what waits in
        # the backlog when it is closed.
        told = (" diverted: path=", " in its backlog at ")
        printed = [
            line for line in done.stderr.splitlines() if not any(each in line for each in told)
        ]
        assert (done.returncode, printed) == (0, []), done.stderr
        return done.stdout

    return run


def bodies(bus: NamespaceFixture, queue: str) -> list[str]:
    """What a queue holds, sorted; a message that is there twice is shown twice."""
    with twinbus.MessagingFactory.from_connection_string(
        bus.connection_string, driver="amqp"
    ) as factory:
        found = factory.create_message_receiver(queue).peek(250)
    return sorted(bytes(message.body).decode() for message in found)
