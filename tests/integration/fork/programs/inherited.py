"""What else a child inherits: receivers, events, an embedded namespace, a client of asyncio."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError
from senders import paired_factory

import twinbus
import twinbus.aio
from twinbus.azure.aio import PairedServiceBusClient


def in_child(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        work()
        sys.exit()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status


def receiver() -> None:
    """A receiver, and a message that the parent holds locked."""
    with twinbus.MessagingFactory.from_environment(driver="amqp") as factory:
        orders = factory.create_queue_client("orders")
        orders.send_batch([twinbus.BrokeredMessage(b"1"), twinbus.BrokeredMessage(b"2")])
        held = orders.receive(max_wait_time=20)
        assert held is not None

        def child() -> None:
            message = orders.receive(max_wait_time=20)
            assert message is not None and message.body == b"2"
            message.complete()
            with pytest.raises(twinbus.FactoryFaulted, match="forked"):
                held.complete()

        in_child(child)
        held.complete()


def events() -> None:
    """The pair of a child, whose listeners and options are those of the parent."""
    with ExitStack() as stack:
        primary = stack.enter_context(twinbus.MessagingFactory.from_environment(driver="amqp"))
        send = paired_factory(stack, "amqp", primary)
        told: list[str] = []
        primary.on_event(lambda each: told.append(each.name))
        primary.force_failover("orders")
        primary.set_ping_interval(7)

        def child() -> None:
            assert primary.is_open and primary.is_paired
            assert not primary.health("orders").is_diverted
            told.clear()
            primary.force_failover("orders")
            assert told == ["diverted"]
            send("child")
            assert sum(queue.messages or 0 for queue in primary.backlog()) == 1
            options = primary.paired_namespace_options
            assert options is not None and options.ping_primary_interval.total_seconds() == 7
            primary.close()
            with pytest.raises(twinbus.FactoryClosed):
                send("late")

        in_child(child)
        assert primary.health("orders").is_diverted
        in_child(primary.close)
        assert primary.is_open and primary.health("orders").is_diverted


def embedded() -> None:
    """A broker of the parent, to which the child connects."""
    with twinbus.EmbeddedNamespace("spool") as spool:
        manager = twinbus.NamespaceManager.from_connection_string(spool.connection_string)
        manager.create_queue("orders")
        factory = twinbus.MessagingFactory.from_connection_string(
            spool.connection_string, driver="amqp"
        )
        orders = factory.create_queue_client("orders")
        orders.send(twinbus.BrokeredMessage(b"parent"))

        def child() -> None:
            orders.send(twinbus.BrokeredMessage(b"child"))
            assert manager.queue_exists("orders")
            spool.stop()

        in_child(child)
        assert [message.body for message in orders.peek(10)] == [b"parent", b"child"]
        factory.close()


async def _asyncio() -> None:
    async with twinbus.aio.MessagingFactory.from_environment(driver="amqp") as factory:
        orders = factory.create_queue_client("orders")
        await orders.send(twinbus.BrokeredMessage(b"parent"))
        pid = os.fork()
        if pid == 0:
            with pytest.raises(twinbus.FactoryFaulted, match=r"forked.* new factory"):
                await orders.send(twinbus.BrokeredMessage(b"child"))
            await orders.close()
            await factory.close()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await orders.send(twinbus.BrokeredMessage(b"parent again"))


def loop() -> None:
    """A factory of asyncio."""
    asyncio.run(_asyncio())


async def _asyncio_drop_in() -> None:
    async with PairedServiceBusClient.from_connection_string(
        os.environ["SERVICEBUS_CONNECTION_STRING"]
    ) as client:
        orders = client.get_queue_sender("orders")
        await orders.send_messages(ServiceBusMessage("parent"))
        pid = os.fork()
        if pid == 0:
            with pytest.raises(ServiceBusConnectionError, match="forked"):
                await orders.send_messages(ServiceBusMessage("child"))
            await orders.close()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await orders.send_messages(ServiceBusMessage("parent again"))


def loop_drop_in() -> None:
    """A drop-in client of asyncio."""
    asyncio.run(_asyncio_drop_in())


def closed() -> None:
    """Nothing but the threads of a loop that is gone."""
    twinbus.EmbeddedNamespace("spool").start().stop()
    gc.collect()
    in_child(lambda: None)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
