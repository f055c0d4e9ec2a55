"""Which error of the SDK an application sees."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from tests.integration.azure.conftest import MakePairing
from twinbus.aio import NamespaceManager
from twinbus.azure.aio import PairedServiceBusClient
from twinbus.azure.errors import raise_sdk_error
from twinbus.errors import CommunicationError, EntityNotFound, LinkDetached, TwinbusError
from twinbus.testing import NamespacePairFixture

ROUNDS = 8
SENDS = 30


def link_lost() -> ServiceBusConnectionError:
    """What the SDK makes of a send that was pending on a link when the service detached it."""
    error = ServiceBusConnectionError(message="Service Bus has encountered an error.")
    error._condition = "amqp:unknown-error"
    return error


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (EntityNotFound("not found", path="orders"), MessagingEntityNotFoundError),
        (LinkDetached("detached", path="orders"), ServiceBusConnectionError),
        (CommunicationError("lost", path="orders"), ServiceBusConnectionError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TwinbusError) else value.__name__,
)
def test_the_reason_of_a_detach_is_the_error(
    ours: TwinbusError, expected: type[ServiceBusError]
) -> None:
    """P0: the SDK calls every detach a connection error, and learns the reason when it retries."""
    ours.__cause__ = link_lost()
    with pytest.raises(ServiceBusError) as raised:
        raise_sdk_error(ours)
    assert type(raised.value) is expected


async def test_sends_to_a_queue_that_is_deleted_meanwhile_say_so(
    servicebus_pair: NamespacePairFixture, pairing: MakePairing
) -> None:
    """P0: whichever of them was on its way at that moment."""
    primary = servicebus_pair.primary
    manager = NamespaceManager.from_connection_string(primary.connection_string)
    failures: Counter[str] = Counter()

    async with (
        manager,
        PairedServiceBusClient.from_connection_string(
            primary.connection_string, pairing=pairing()
        ) as client,
    ):
        for number in range(ROUNDS):
            queue = primary.queue(f"orders-{number}")
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages(ServiceBusMessage("first"))
                sends = [sender.send_messages(ServiceBusMessage("x" * 2_000)) for _ in range(SENDS)]
                results = asyncio.gather(*sends, return_exceptions=True)
                await asyncio.sleep(number * 0.004)
                await manager.delete_queue(queue)
                failures.update(type(each).__name__ for each in await results if each is not None)

    assert set(failures) == {"MessagingEntityNotFoundError"}
