"""ServerBusy (rule M11) as the stock client meets it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from tests.integration.sdk.test_pings import ping
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk, eventually, nothing_comes

# A batch may run up a debt; until it is paid nothing more is taken. A debt of 20 messages takes
# two seconds at ten a second, which no busy machine turns into nothing.
RATE = 10
BATCH = [ServiceBusMessage("batch")] * 30


class Throttled:
    """A broker with a low rate, and clients of one flavour for it."""

    def __init__(self, broker: BrokerProcess, flavour: str) -> None:
        self.broker = broker
        self.sdk = Sdk(flavour, broker.connection_string)


@pytest.fixture(params=["sync", "aio"])
async def throttled(
    request: pytest.FixtureRequest, tmp_path: Path, option: str
) -> AsyncIterator[Throttled]:
    arguments = (option, str(RATE))
    with BrokerProcess(tmp_path / "data", queues=("one", "two"), arguments=arguments) as broker:
        made = Throttled(broker, request.param)
        yield made
        await made.sdk.close()


@pytest.mark.parametrize("option", ["--entity-rate"])
async def test_a_queue_over_its_rate_says_busy_and_stores_nothing(throttled: Throttled) -> None:
    """M11: only that queue, only for a while, and pings are metered like messages (M7)."""
    sdk, broker = throttled.sdk, throttled.broker
    one, two = sdk.sender("one"), sdk.sender("two")
    await two.send_messages(ServiceBusMessage("other"), timeout=SEND_TIMEOUT_S)

    # Given a queue that was sent more than it may take
    await one.send_messages(BATCH, timeout=SEND_TIMEOUT_S)

    # Then it is busy, for a ping too, before anything is stored
    for message in (ServiceBusMessage("more"), ping()):
        with pytest.raises(ServiceBusServerBusyError):
            await one.send_messages(message, timeout=SEND_TIMEOUT_S)
    assert broker.queue("one")["active_message_count"] == len(BATCH)
    # and the other is not
    await two.send_messages([ping()] * 30, timeout=SEND_TIMEOUT_S)
    with pytest.raises(ServiceBusServerBusyError):
        await two.send_messages(ServiceBusMessage("pings count"), timeout=SEND_TIMEOUT_S)

    # And when some time has passed, the same sender is served again
    async def is_served() -> bool:
        try:
            await one.send_messages(ServiceBusMessage("again"), timeout=SEND_TIMEOUT_S)
        except ServiceBusServerBusyError:
            return False
        return True

    assert await eventually(is_served)
    assert broker.queue("one")["active_message_count"] == len(BATCH) + 1


@pytest.mark.parametrize("option", ["--namespace-rate"])
async def test_a_namespace_over_its_rate_is_busy_for_all_its_queues(throttled: Throttled) -> None:
    """M11: sends are refused in every queue; receiving goes on."""
    sdk, broker = throttled.sdk, throttled.broker
    one, two, receiver = sdk.sender("one"), sdk.sender("two"), sdk.receiver("two")
    assert await nothing_comes(receiver)
    await two.send_messages(ServiceBusMessage("other"), timeout=SEND_TIMEOUT_S)

    await one.send_messages(BATCH, timeout=SEND_TIMEOUT_S)

    with pytest.raises(ServiceBusServerBusyError):
        await two.send_messages(ServiceBusMessage("more"), timeout=SEND_TIMEOUT_S)
    assert broker.queue("two")["active_message_count"] == 1
    (received,) = await receiver.receive_messages(1, max_wait_time=10)
    await receiver.complete_message(received)


@pytest.mark.parametrize("option", ["--entity-rate"])
async def test_the_clients_own_retries_bridge_a_short_busy_time(throttled: Throttled) -> None:
    """M10, M11: with its retries on, the client waits and its caller sees no error."""
    patient = throttled.sdk.client(retry_total=5)
    sender = throttled.sdk.sender("one", client=patient)
    await sender.send_messages(BATCH, timeout=SEND_TIMEOUT_S)

    try:
        await sender.send_messages(ServiceBusMessage("patient"), timeout=60)
    except ServiceBusError as error:
        pytest.fail(f"the client gave up: {error}")
    assert throttled.broker.queue("one")["active_message_count"] == len(BATCH) + 1
