"""The programs in examples/ do what they say."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.drop_in import send_orders
from examples.order_service import take_orders
from examples.outage_drill import drill
from twinbus.azure import Pairing
from twinbus.testing import NamespaceFixture, NamespacePairFixture

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ORDERS = "1 coffee\n2 teas\n3 cakes\n"


def run(name: str, *arguments: str, **environment: str) -> str:
    """What the program says when it is fed with the orders."""
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        input=ORDERS,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_order_service_takes_orders_without_a_network(
    servicebus: NamespaceFixture, tmp_path: Path
) -> None:
    """P17 and M8: they wait on the disk, and the next run moves them to the queue."""
    queue = servicebus.queue("orders")
    address, spool = servicebus.connection_string, tmp_path / "spool"
    with servicebus.outage("refused"):
        said = run(
            "order_service.py", str(spool), SERVICEBUS_CONNECTION_STRING=address
        ).splitlines()
    assert said == [
        "diverted: 1 coffee",
        "diverted: 2 teas",
        "diverted: 3 cakes",
        "3 orders wait in the spool",
    ]
    assert queue.active_message_count == 0

    assert asyncio.run(take_orders(address, spool, ["4 teas"])) == 0
    assert queue.active_message_count == 4


def test_the_drop_in_is_an_ordinary_program(servicebus_pair: NamespacePairFixture) -> None:
    queue = servicebus_pair.primary.queue("orders")
    said = run(
        "drop_in.py",
        SERVICEBUS_CONNECTION_STRING=servicebus_pair.primary.connection_string,
        SERVICEBUS_SECONDARY_CONNECTION_STRING=servicebus_pair.secondary.connection_string,
    )
    assert said == "3 orders sent\n"
    assert queue.active_message_count == 3


def test_the_drop_in_goes_on_during_an_outage(servicebus_pair: NamespacePairFixture) -> None:
    """P10: no order fails."""
    primary, secondary = servicebus_pair.primary, servicebus_pair.secondary
    queue = primary.queue("orders")

    def orders() -> Iterator[str]:
        yield "before"
        with servicebus_pair.outage("refused"):
            yield "during"

    pairing = Pairing(
        secondary=secondary.connection_string, backlog_queue_count=1, failover_interval=0
    )
    assert send_orders(primary.connection_string, orders(), pairing) == 2
    assert queue.active_message_count == 1
    assert secondary.machine(f"{primary.name}/x-servicebus-transfer/0").active_count == 1


async def test_the_drill_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P10 and Y1: a kill -9 in the middle, and all that was sent arrives."""
    assert await drill(tmp_path)
    said = capsys.readouterr().out
    assert "sent 300, arrived 300, lost 0" in said
    assert "100 messages diverted" in said


def test_the_tests_of_the_shop_pass(pytester: pytest.Pytester) -> None:
    source = (EXAMPLES / "test_shop.py").read_text(encoding="utf-8")
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(test_shop=source)
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-W", "ignore::ResourceWarning"
    )
    result.assert_outcomes(passed=source.count("\ndef test_"))
