"""The README's blocks, run as they stand there."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from twinbus.testing import NamespaceFixture, NamespacePairFixture

pytest_plugins = ["pytester"]

README = Path(__file__).resolve().parents[3] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
# What the shop of the README does; the block itself is the test.
SHOP = """
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

def place_order(text):
    client = ServiceBusClient.from_connection_string(text, retry_total=0)
    try:
        with client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("1 coffee"), timeout=5)
    except ServiceBusError:
        return "try again later"
    return "thank you"

"""


def block_with(words: str) -> str:
    """The one block that has these words."""
    (found,) = [block for block in BLOCKS if words in block]
    return found


async def run(block: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """Run it with these names, awaiting what it awaits; the names afterwards."""
    after = dict(names)
    code = compile(block, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if (awaitable := eval(code, after)) is not None:
        await awaitable
    return after


def test_every_block_is_run_by_a_test() -> None:
    """Here, and the one for Spark in tests/spark/examples."""
    assert len(BLOCKS) == 5


async def test_a_pair_in_six_lines(servicebus_pair: NamespacePairFixture) -> None:
    """P1: made and used as the README says."""
    orders = servicebus_pair.primary.queue("orders")
    texts = {
        "primary_text": servicebus_pair.primary.connection_string,
        "secondary_text": servicebus_pair.secondary.connection_string,
    }
    after = await run(block_with("await primary.pair_namespace"), texts)
    assert after["primary"].is_paired
    assert orders.active_message_count == 1
    for name in ("primary", "secondary", "manager"):
        await after[name].close()


def test_one_changed_line(
    servicebus_pair: NamespacePairFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M10 and P0: the stock names behind another import."""
    from azure.servicebus import ServiceBusMessage

    orders = servicebus_pair.primary.queue("orders")
    monkeypatch.setenv(
        "SERVICEBUS_SECONDARY_CONNECTION_STRING", servicebus_pair.secondary.connection_string
    )
    client_class = asyncio.run(run(block_with("PairedServiceBusClient"), {}))["ServiceBusClient"]
    with (
        client_class.from_connection_string(servicebus_pair.primary.connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("1 coffee"))
    assert orders.active_message_count == 1


async def test_the_stock_client_against_the_broker(servicebus: NamespaceFixture) -> None:
    """M10: sent, received and completed."""
    orders = servicebus.queue("orders")
    block = block_with("receiver.complete_message")
    after = await run(block, {"connection_string": servicebus.connection_string})
    assert str(after["message"]) == "1 coffee"
    assert orders.active_message_count == 0


def test_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(test_shop=SHOP + block_with("(servicebus)"))
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-W", "ignore::ResourceWarning"
    )
    result.assert_outcomes(passed=1)
