"""How the SDK's driver is made: addresses, TLS, credentials, and what happens without the SDK."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusMessage

from tests.support.broker_process import BrokerProcess
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.azure_sdk import ServiceBusDriver, ServiceBusOptions
from twinbus.drivers.credentials import SharedKey, SharedSignature
from twinbus.drivers.interface import NamespaceAddress
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import AuthenticationFailed, CommunicationError
from twinbus.testing.namespaces import NamespaceFixture

TIMEOUT_S = 20.0
KEY = "SharedAccessKeyName=n;SharedAccessKey=a2V5"


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("sb://Orders.servicebus.windows.net/", "orders.servicebus.windows.net", 5671),
        ("sb://localhost:5700;UseDevelopmentEmulator=true", "localhost", 5700),
        ("sb://localhost;UseDevelopmentEmulator=true", "localhost", 5672),
        ("sb://localhost:5800", "localhost", 5800),
    ],
)
async def test_two_drivers_of_one_namespace_have_one_address(
    endpoint: str, host: str, port: int
) -> None:
    """P3: that is how a namespace is not paired with itself."""
    text = f"Endpoint={endpoint};{KEY}"
    drivers = [
        ServiceBusDriver.from_connection_string(text),
        ServiceBusDriver.from_connection_string(parse_connection_string(text)),
    ]
    assert {driver.address for driver in drivers} == {NamespaceAddress(host, port)}
    for driver in drivers:
        await driver.close()


async def test_the_address_of_a_namespace_with_a_credential() -> None:
    driver = ServiceBusDriver.for_namespace(
        "Orders.servicebus.windows.net", AzureNamedKeyCredential("n", "a2V5")
    )
    assert driver.address == NamespaceAddress("orders.servicebus.windows.net", 5671)
    await driver.close()


async def test_the_sdk_has_no_retries_whoever_asks_for_them() -> None:
    """F6: all retries are ours."""
    options = ServiceBusOptions(client_options={"retry_total": 9})
    driver = ServiceBusDriver.from_connection_string(
        f"Endpoint=sb://localhost:5700;{KEY};UseDevelopmentEmulator=true", options
    )
    assert driver._client._config.retry_total == 0
    assert driver._client.get_queue_sender("orders")._config.retry_total == 0
    await driver.close()


@pytest.mark.parametrize("kind", ["named key", "key", "sdk signature", "signature"])
async def test_a_key_or_a_signature_gets_in(
    servicebus: NamespaceFixture, queue: str, kind: str
) -> None:
    """P5: whoever's class it comes in."""
    parsed = parse_connection_string(servicebus.connection_string)
    rule_name, key = parsed.shared_access_key_name or "", parsed.shared_access_key or ""
    host = f"localhost:{servicebus.port}"
    token = await SharedKey(rule_name, key).token_for(f"sb://{host}/")
    credential: Any = {
        "named key": AzureNamedKeyCredential(rule_name, key),
        "key": SharedKey(rule_name, key),
        "sdk signature": AzureSasCredential(token.text),
        "signature": SharedSignature(token.text),
    }[kind]
    plain = ServiceBusOptions(client_options={"use_tls": False})
    driver = ServiceBusDriver.for_namespace(host, credential, plain)
    assert driver.address == NamespaceAddress("localhost", servicebus.port)
    await driver.sender(queue).attach(timeout_s=TIMEOUT_S)
    await driver.close()


async def test_over_tls_on_any_port_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    """M10: verified; and a wrong key is still known for what it is, although the SDK calls it a
    connection error then."""
    with BrokerProcess(tmp_path / "data", queues=("orders",)) as broker:
        trusting = ServiceBusOptions(ca_file=broker.ca_path)
        text = broker.tls_connection_string
        driver = ServiceBusDriver.from_connection_string(text, trusting)
        assert driver.address.port == broker.port
        parcel = OutgoingMessage(native=ServiceBusMessage("x"))
        await driver.sender("orders").send([parcel], timeout_s=TIMEOUT_S)
        [received] = await driver.receiver("orders").receive(1, wait_s=TIMEOUT_S)
        assert received.sequence_number == 1
        await driver.close()

        key = parse_connection_string(text).shared_access_key or ""
        wrong = ServiceBusDriver.from_connection_string(text.replace(key, "a2V5"), trusting)
        with pytest.raises(AuthenticationFailed):
            await wrong.sender("orders").attach(timeout_s=TIMEOUT_S)
        await wrong.close()

        stranger = ServiceBusDriver.from_connection_string(text)
        with pytest.raises(CommunicationError):
            await stranger.sender("orders").attach(timeout_s=TIMEOUT_S)
        await stranger.close()


def test_without_the_sdk_one_sentence_says_what_to_do() -> None:
    code = (
        "import sys; sys.modules['azure.servicebus'] = None\n"
        "try:\n"
        "    import twinbus.drivers.azure_sdk\n"
        "except ValueError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("ConfigurationError") and said.count("\n") == 1
    assert "pip install 'twinbus[azure]'" in said
