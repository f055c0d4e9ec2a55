"""Partitioned queues through the stock client: keys, order, and throttling one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.integration.sdk.conftest import MakeQueue
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk, bodies, receive
from tests.support.wire_client import connected
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.delivery_states import Rejected
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker.engine.stored_message import MessageKeys, partition_of

RATE = 16 * 5


def keys_of_different_partitions() -> tuple[str, str]:
    first, second = "customer-1", "customer-2"
    assert partition_of(MessageKeys(None, None, first)) != partition_of(
        MessageKeys(None, None, second)
    )
    return first, second


async def test_a_partitioned_queue_is_a_queue(sdk: Sdk, make_queue: MakeQueue) -> None:
    """M3: order inside a key is kept, and the key comes back with the message."""
    queue = make_queue(enable_partitioning=True)
    first, second = keys_of_different_partitions()
    messages = [
        ServiceBusMessage(f"{key}/{number}", partition_key=key)
        for number in range(20)
        for key in (first, second)
    ]
    await sdk.send(queue, messages, ServiceBusMessage("without a key"))

    received = await receive(sdk.receiver(queue), 41)
    for key in (first, second):
        mine = [each for each in received if each.partition_key == key]
        assert bodies(mine) == [f"{key}/{number}" for number in range(20)]


async def test_equal_ids_under_different_keys_are_no_duplicates(
    sdk: Sdk, make_queue: MakeQueue
) -> None:
    """M3: as in Azure, the key and the id together."""
    queue = make_queue(enable_partitioning=True, requires_duplicate_detection=True)
    for key in ("a", "b", "a"):
        await sdk.send(queue, ServiceBusMessage(key, message_id="1", partition_key=key))
    assert sorted(bodies(await receive(sdk.receiver(queue), 2))) == ["a", "b"]


@pytest.fixture(scope="module")
def slow_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Five messages a second into each partition."""
    data = tmp_path_factory.mktemp("partitions") / "data"
    with BrokerProcess(data, arguments=("--entity-rate", str(RATE))) as running:
        yield running


@pytest.mark.parametrize("flavour", ["sync", "aio"])
async def test_one_busy_partition_throttles_nobody_else(
    slow_broker: BrokerProcess, flavour: str
) -> None:
    """F2: ServerBusy before anything is stored, for its keys only."""
    queue = slow_broker.fresh_queue(enable_partitioning=True)
    sdk = Sdk(flavour, slow_broker.connection_string)
    busy, idle = keys_of_different_partitions()
    sender = sdk.sender(queue)
    await sender.send_messages(
        [ServiceBusMessage(str(n), partition_key=busy) for n in range(500)], timeout=SEND_TIMEOUT_S
    )

    with pytest.raises(ServiceBusServerBusyError):
        await sender.send_messages(
            [ServiceBusMessage("x", partition_key=key) for key in (idle, busy)],
            timeout=SEND_TIMEOUT_S,
        )
    await sender.send_messages(ServiceBusMessage("y", partition_key=idle), timeout=SEND_TIMEOUT_S)
    await sdk.close()
    assert slow_broker.counts(queue)["active_message_count"] == 501


def test_a_message_with_two_different_keys_is_refused(broker: BrokerProcess) -> None:
    """M3: before anything is stored; the link goes on."""
    queue = broker.fresh_queue(enable_partitioning=True)
    with connected(broker.port, broker.token()) as client:
        link = client.attach_sender(queue)
        refused = client.send(link, _keyed("session", "another"))
        assert isinstance(refused, Rejected) and refused.error is not None
        assert refused.error.condition == "amqp:not-allowed"
        assert not isinstance(client.send(link, _keyed("same", "same")), Rejected)
    assert broker.counts(queue)["active_message_count"] == 1


def _keyed(session_id: str, key: str) -> bytes:
    return Message(
        properties=Properties(group_id=session_id),
        message_annotations={Symbol("x-opt-partition-key"): key},
        body=b"x",
    ).encode()
