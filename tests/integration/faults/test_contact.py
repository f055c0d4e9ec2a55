"""The namespace cannot be reached, as the stock client sees it, and who can reach it still."""

from __future__ import annotations

import time
from typing import Any

import pytest
from azure.core.exceptions import AzureError, HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from tests.integration.faults.switchboard import PATIENCE_S, Count, Switchboard, drained, patience_s
from tests.integration.sdk_administration.clients import Administration
from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk

SILENT = (OperationTimeoutError, OperationTimeoutError)
BROKEN = (ServiceBusConnectionError, ServiceBusConnectionError)


@pytest.mark.parametrize(
    ("options", "expected", "may_be_stored"),
    [
        ({"how": "refuse"}, BROKEN, 0),
        ({"how": "reset"}, BROKEN, 0),
        # What a client wrote into a black hole may come out when it is gone, as with TCP.
        ({"how": "black-hole"}, SILENT, 1),
        ({"how": "half-open", "direction": "to-client"}, SILENT, 1),
        ({"how": "half-open", "direction": "from-client"}, SILENT, 1),
    ],
    ids=lambda value: value.get("direction", value["how"]) if isinstance(value, dict) else "",
)
async def test_a_namespace_out_of_contact(
    options: dict[str, Any],
    expected: tuple[type[Exception], type[Exception]],
    may_be_stored: int,
    sdk: Sdk,
    broker: BrokerProcess,
    faults: Switchboard,
    queue: str,
) -> None:
    """F1, F5: nobody reaches it, the other namespace does not notice, and it comes back."""
    count, sender = Count(), sdk.sender(queue)
    await count.send(sender, "before")
    with faults.on("cannot-contact", **options):
        await count.send(sender, "on an open link", patience_s(expected[0]))
        if sdk.flavour == "aio" or expected is BROKEN:
            # The sync client cannot be stopped once it waits for a connection to open.
            await count.send(sdk.sender(queue), "on a new link", patience_s(expected[1]))
        assert tuple(count.errors) == expected[: len(count.errors)]
        assert count.acknowledged == ["before"]
        neighbour = Sdk(sdk.flavour, broker.connection_strings["second"])
        await neighbour.send("bystander", ServiceBusMessage("other namespace"))
        await neighbour.close()
        assert faults.list()[0]["hit_count"] >= 1
    await count.send(sdk.sender(queue), "after")
    assert "after" in count.acknowledged
    received = await drained(sdk, broker, queue)
    assert count.lost(received) == []
    assert len(count.surplus(received)) <= may_be_stored
    assert count.repeated(received) == []


async def test_a_half_open_connection_acts_on_what_it_hears(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F5: the send is stored, its acknowledgement never arrives."""
    count, sender = Count(), sdk.sender(queue)
    await count.send(sender, "before")
    with faults.on("cannot-contact", how="half-open"):
        await count.send(sender, "unanswered", PATIENCE_S)
    assert count.errors == [OperationTimeoutError]
    received = await drained(sdk, broker, queue)
    assert received == ["before", "unanswered"]


async def test_a_slow_network_delays_and_loses_nothing(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F5: latency in both directions, and few bytes a second."""
    count, sender = Count(), sdk.sender(queue)
    await count.send(sender, "before")
    with faults.on("cannot-contact", how="slow", latency_ms=150, jitter_ms=50, seed=1):
        began_s = time.monotonic()
        await count.send(sender, "late")
        assert time.monotonic() - began_s >= 0.2
    with faults.on("cannot-contact", how="slow", latency_ms=0, bytes_per_s=4_000):
        began_s = time.monotonic()
        await count.send(sender, "x" * 4_000)
        assert time.monotonic() - began_s >= 0.9
    await count.send(sender, "after")
    assert count.failed == []
    assert len(await drained(sdk, broker, queue)) == 4


async def test_only_one_client_is_cut_off(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F5: only this client is cut off; the others and administration work."""
    count = Count()
    unlucky, lucky = sdk.sender(queue, client_identifier="unlucky-1"), sdk.sender(queue)
    await count.send(unlucky, "one")
    await count.send(lucky, "two")
    with faults.on("cannot-contact", how="reset", only_clients="unlucky"):
        await count.send(unlucky, "three")
        await count.send(lucky, "four")
        await count.send(sdk.sender(queue, client_identifier="unlucky-2"), "five")
        await count.send(sdk.sender(queue), "six")
    assert count.failed == ["three", "five"]
    assert set(count.errors) <= {ServiceBusConnectionError, ServiceBusError}
    assert await drained(sdk, broker, queue) == ["one", "two", "four", "six"]


@pytest.mark.parametrize("sdk", ["aio"], indirect=True)
async def test_a_client_is_cut_off_by_its_address_and_others_are_not(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F5: by the beginning of an address."""
    count = Count()
    with faults.on("cannot-contact", how="black-hole", only_clients="10.0.0."):
        await count.send(sdk.sender(queue), "elsewhere")
    with faults.on("cannot-contact", how="black-hole", only_clients="127.0.0.1:"):
        await count.send(sdk.sender(queue), "here", PATIENCE_S)
    assert (count.acknowledged, count.errors) == (["elsewhere"], [OperationTimeoutError])


@pytest.fixture(params=["sync", "aio"])
async def administration(request: pytest.FixtureRequest, broker: BrokerProcess) -> Any:
    opened = Administration(request.param, broker, read_timeout=2 * PATIENCE_S)
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    ("kind", "options", "status"),
    [
        ("cannot-manage", {}, 500),
        ("cannot-manage", {"http_status": 503}, 503),
        ("cannot-manage", {"how": "timeout"}, None),
        ("cannot-contact", {"how": "gateway-error", "plane": "management"}, 502),
        ("cannot-contact", {"how": "reset", "plane": "management"}, None),
        ("cannot-contact", {"how": "black-hole", "plane": "management"}, None),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
async def test_administration_is_down_while_messages_flow(
    kind: str,
    options: dict[str, Any],
    status: int | None,
    administration: Administration,
    broker: BrokerProcess,
    faults: Switchboard,
    queue: str,
) -> None:
    """F1, F5: administration fails, sends work; what switches faults off is always reached."""
    await administration.get_queue(queue)
    with faults.on(kind, **options):
        with pytest.raises(AzureError) as caught:
            await administration.get_queue(queue)
        if status is not None:
            assert isinstance(caught.value, HttpResponseError)
            assert caught.value.status_code == status
        client = Sdk("aio", broker.connection_string)
        await client.send(queue, ServiceBusMessage("works"))
        await client.close()
        assert broker.health()["status"] == "ok"
    assert (await administration.get_queue(queue)).name == queue


async def test_messages_are_down_while_administration_is_up(
    sdk: Sdk, broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F5: the data plane is cut off and the management plane is not."""
    count, sender = Count(), sdk.sender(queue)
    await count.send(sender, "before")
    administration = Administration(sdk.flavour, broker)
    with faults.on("cannot-contact", how="reset", plane="data"):
        await count.send(sender, "during", SEND_TIMEOUT_S)
        assert (await administration.get_queue(queue)).name == queue
    await administration.close()
    assert count.errors == [ServiceBusConnectionError]


async def test_a_name_that_cannot_be_resolved(sdk: Sdk, broker: BrokerProcess) -> None:
    """F5: no broker is needed to play a failure of DNS: any name under .invalid is one."""
    string = broker.connection_string.replace("localhost", "no-such-host.invalid")
    sender = sdk.sender("orders", client=sdk.client(string))
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("nowhere"), timeout=SEND_TIMEOUT_S)
