"""Namespaces stop, start and go while the others run on (rule M9)."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError

from tests.integration.faults.switchboard import Count, drained
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk
from twinbus.broker import Broker, BrokerOptions, NamespaceSpec
from twinbus.broker.faults import Fault, Scope
from twinbus.common.clock import AdjustableClock
from twinbus.errors import ConfigurationError


async def test_one_namespace_stops_and_starts_while_the_other_works(
    sdk: Sdk, broker: BrokerProcess, queue: str
) -> None:
    """M9, M8: refused while it is stopped; afterwards all that was acknowledged is there."""
    count, sender = Count(), sdk.sender(queue)
    await count.send(sender, "before")
    path = f"/namespaces/{broker.namespace}"
    broker.admin("POST", f"{path}/stop")
    try:
        assert broker.health()["namespaces"][broker.namespace]["status"] == "stopped"
        await count.send(sender, "open link")
        await count.send(sdk.sender(queue), "new link")
        assert count.errors == [ServiceBusConnectionError] * 2
        neighbour = Sdk(sdk.flavour, broker.connection_strings["second"])
        await neighbour.send("bystander", ServiceBusMessage("still here"))
        await neighbour.close()
        status, answer = broker.http(
            "GET",
            f"{path}/queues",
            token=broker.token(port=broker.admin_port),
            headers={"Host": f"localhost:{broker.admin_port}"},
        )
        assert status == 409 and "Start it first" in answer["error"], answer
    finally:
        started = broker.admin("POST", f"{path}/start")
    assert started["port"] == broker.port
    await count.send(sdk.sender(queue), "after")
    received = await drained(sdk, broker, queue)
    assert received == ["before", "after"]


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_a_broker_stops_starts_and_removes_namespaces(where: str, tmp_path: Path) -> None:
    """M9: really closed, on the same port again, with what it kept; then forgotten."""
    directory = None if where == "memory" else tmp_path / "data"
    async with Broker(BrokerOptions(data_directory=directory)) as broker:
        first = await broker.add_namespace(NamespaceSpec("first", queues=("orders",)))
        second = await broker.add_namespace(NamespaceSpec("second", queues=("orders",)))
        await first.create_queue("made-later")

        await broker.stop_namespace("First")
        assert list(broker.namespaces) == ["second"] and list(broker.stopped) == ["first"]
        with pytest.raises(ConfigurationError, match="not running"):
            await broker.stop_namespace("first")

        again = await broker.start_namespace("first")
        assert (again.port, again.connection_string) == (first.port, first.connection_string)
        assert again.queue("made-later") is not None
        with pytest.raises(ConfigurationError, match="not stopped"):
            await broker.start_namespace("first")

        await broker.remove_namespace("first")
        assert list(broker.namespaces) == ["second"] and not broker.stopped
        assert second.queue("orders") is not None


async def test_the_clock_of_a_broker_is_moved_only_if_it_can_be() -> None:
    """F1: a test moves minutes in a moment, with a clock made for that."""
    async with Broker() as broker:
        with pytest.raises(ConfigurationError, match="clock"):
            broker.advance(1)
    async with Broker(clock=AdjustableClock(is_manual=True)) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))
        namespace.faults.add(Fault("throttle", Scope(entity="orders"), lasts_s=900))
        assert not namespace.faults.has_no_faults
        broker.advance(900)
        assert namespace.faults.has_no_faults


async def test_a_stop_ends_every_fault() -> None:
    """M9: a namespace that is started again is well, whatever was switched on before."""
    async with Broker() as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))
        namespace.faults.add(Fault("disk-full"))
        namespace.faults.add(Fault("cannot-contact", how="refuse"))
        await broker.stop_namespace("demo")
        again = await broker.start_namespace("demo")
        assert again.faults.has_no_faults and again.faults.list() == []
        await again.create_queue("works")
