"""The whole story of a secondary on local disk: no network, kill -9, and home again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.pairing.offline_application import (
    BACKLOG_QUEUE_COUNT,
    PRIMARY_NAME,
    local_disk,
)
from tests.support.parcels import bodies
from twinbus.drivers.amqp import AmqpDriver
from twinbus.mover.mover import Mover
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.pairing.backlog_queues import backlog_paths
from twinbus.testing.namespaces import NamespaceFixture

ROOT = Path(__file__).resolve().parents[3]
ACKNOWLEDGED_MIN = 50
SOON_S = 30.0
VARIABLE = "TEST_PRIMARY"


def sent_until_killed(directory: Path, primary_text: str) -> int:
    """Run the application, kill it while it sends; the last number that was acknowledged."""
    command = [
        sys.executable,
        "-m",
        "tests.integration.pairing.offline_application",
        str(directory),
        VARIABLE,
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, VARIABLE: primary_text},
        stdout=subprocess.PIPE,
        text=True,
    ) as application:
        assert application.stdout is not None
        for line in application.stdout:
            if int(line) == ACKNOWLEDGED_MIN:
                break
        application.kill()
        whole_lines = application.stdout.read().split("\n")[:-1]
    return max([ACKNOWLEDGED_MIN, *map(int, whole_lines)])


async def test_messages_of_a_killed_application_come_home(
    servicebus: NamespaceFixture, tmp_path: Path
) -> None:
    """P17 and M8: started in an outage, and acknowledged sends survive the application."""
    # Given an application that can reach nothing, and is killed while it sends
    queue = servicebus.queue("orders")
    with servicebus.outage("refused"):
        acknowledged = sent_until_killed(tmp_path / "d", servicebus.connection_string)
    assert queue.active_message_count == 0

    # When the primary is back and the backlog is brought home from the disk
    primary = AmqpDriver.from_connection_string(servicebus.connection_string)
    async with local_disk(tmp_path / "d") as spool:
        secondary = spool.driver()
        mover = Mover(
            secondary,
            primary,
            backlog_paths(PRIMARY_NAME, BACKLOG_QUEUE_COUNT),
            MoverOptions(rules=DeliveryRules(primary_name=PRIMARY_NAME)),
        )
        await mover.run(once=True)
        await secondary.close()

    # Then every acknowledged message is in its queue, once
    receiver = primary.receiver("orders")
    found: list[int] = []
    while len(found) <= acknowledged:
        messages = await receiver.receive(1_000, wait_s=SOON_S)
        assert messages, f"only {len(found)} of {acknowledged + 1} came home"
        assert await receiver.complete(messages, timeout_s=SOON_S) == []
        found += [int(body) for body in bodies(messages)]
    await primary.close()
    assert set(range(acknowledged + 1)) <= set(found)
    assert len(found) == len(set(found)) <= acknowledged + 2
