"""One port for everything: AMQP, administration, both inside TLS, and the stock clients there."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import azure.servicebus.aio.management
import azure.servicebus.management
import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import Sdk, bodies, receive
from tests.support.wire_client import WireClient
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.events import DeliveryReceived
from twinbus.amqp.message.message import Message
from twinbus.broker.access.sas import make_token
from twinbus.common.connection_string import parse_connection_string

FLAVOURS = pytest.mark.parametrize("flavour", ["sync", "aio"])
TIMEOUT_S = 10.0
TLS_PORT = 5671


def tls_options(port: int | None, ca_path: str) -> dict[str, Any]:
    """How a stock client without the emulator flag reaches a port other than 5671."""
    return {
        "custom_endpoint_address": f"sb://localhost:{port}",
        "transport_type": TransportType.Amqp,
        "connection_verify": ca_path,
    }


async def send_and_receive(sdk: Sdk, text: str, **options: Any) -> list[str]:
    client = sdk.client(**options)
    sender = sdk.sender("orders", client=client)
    await sender.send_messages(ServiceBusMessage(text), timeout=TIMEOUT_S)
    receiver = sdk.receiver("orders", client=client)
    received = await receive(receiver, 1)
    for message in received:
        await receiver.complete_message(message)
    return bodies(received)


@FLAVOURS
@pytest.mark.parametrize("door", ["port", "tls_port"])
async def test_the_stock_client_works_over_tls(
    broker: BrokerProcess, ca_path: str, flavour: str, door: str
) -> None:
    """M10: without the emulator flag, with verification, on the ordinary port and on its own."""
    sdk = Sdk(flavour, broker.tls_connection_string)
    options = tls_options(getattr(broker, door), ca_path)
    assert await send_and_receive(sdk, "over TLS", **options) == ["over TLS"]
    await sdk.close()


@FLAVOURS
async def test_a_large_message_goes_there_and_back_over_tls(
    broker: BrokerProcess, ca_path: str, flavour: str
) -> None:
    """M10: many TLS records, many frames."""
    sdk = Sdk(flavour, broker.tls_connection_string)
    text = "x" * 250_000
    received = await send_and_receive(sdk, text, **tls_options(broker.port, ca_path))
    assert received == [text]
    await sdk.close()


@FLAVOURS
async def test_the_stock_client_verifies_and_refuses_a_stranger(
    broker: BrokerProcess, flavour: str
) -> None:
    """M10: without our authority it does not talk to us."""
    sdk = Sdk(flavour, broker.tls_connection_string)
    options = tls_options(broker.port, ssl.get_default_verify_paths().cafile or "")
    options["connection_verify"] = None
    with pytest.raises(ServiceBusError):
        await send_and_receive(sdk, "never", **options)
    await sdk.close()


async def test_on_port_5671_the_connection_string_is_enough(tmp_path: Path) -> None:
    """M10: the one line that Azure users have, and the path of the authority."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", TLS_PORT))
        except OSError:
            pytest.skip("port 5671 is in use on this machine")
    arguments = ("--tls-port", str(TLS_PORT))
    with BrokerProcess(tmp_path / "data", queues=("orders",), arguments=arguments) as broker:
        for flavour in ("sync", "aio"):
            sdk = Sdk(flavour, broker.tls_connection_string)
            received = await send_and_receive(sdk, flavour, connection_verify=broker.ca_path)
            assert received == [flavour]
            await sdk.close()


def administration(flavour: str, connection_string: str, **options: Any) -> Any:
    is_sync = flavour == "sync"
    module = azure.servicebus.management if is_sync else azure.servicebus.aio.management
    return module.ServiceBusAdministrationClient.from_connection_string(
        connection_string, retry_total=0, **options
    )


async def outcome(maybe: Any) -> Any:
    return await maybe if hasattr(maybe, "__await__") else maybe


@FLAVOURS
@pytest.mark.parametrize("door", ["port", "tls_port", "admin_port"])
async def test_the_administration_client_in_one_line(
    broker: BrokerProcess, ca_path: str, flavour: str, door: str
) -> None:
    """M10, M5: the connection string of the data plane, and the path of the authority."""
    connection_string = broker.connection_string.replace(
        f":{broker.port};", f":{getattr(broker, door)};"
    )
    client = administration(flavour, connection_string, connection_verify=ca_path)
    name = f"made-{flavour}-{door}".replace("_", "-")
    assert (await outcome(client.create_queue(name))).name == name
    assert (await outcome(client.get_namespace_properties())).name == "demo"
    await outcome(client.delete_queue(name))
    await outcome(client.close())


@FLAVOURS
async def test_the_administration_client_refuses_a_stranger(
    broker: BrokerProcess, flavour: str
) -> None:
    """M10: a certificate that it has no reason to trust."""
    client = administration(flavour, broker.connection_string)
    with pytest.raises(ServiceRequestError, match=r"(?i)certificate"):
        await outcome(client.get_namespace_properties())
    await outcome(client.close())


@FLAVOURS
async def test_the_broker_s_own_port_finds_the_namespace_by_the_key(
    broker: BrokerProcess, ca_path: str, flavour: str
) -> None:
    """M9, M6: several namespaces, one port; a key of nobody opens none."""
    for name, connection_string in broker.connection_strings.items():
        parsed = parse_connection_string(connection_string)
        there = connection_string.replace(f":{parsed.port};", f":{broker.admin_port};")
        client = administration(flavour, there, connection_verify=ca_path)
        assert (await outcome(client.get_namespace_properties())).name == name
        await outcome(client.close())
    forged = there.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    client = administration(flavour, forged, connection_verify=ca_path)
    with pytest.raises(ClientAuthenticationError):
        await outcome(client.get_namespace_properties())
    await outcome(client.close())


# -- our own client and plain sockets -------------------------------------------------------------


def test_a_slow_reader_inside_tls_gets_everything_in_order(
    broker: BrokerProcess, ca_path: str
) -> None:
    """M1, M10: more than any buffer on the way holds, so that the broker has to wait for it."""
    queue, count = broker.fresh_queue(), 600
    context = ssl.create_default_context(cafile=ca_path)
    with WireClient(broker.port, context=context, timeout_s=30).open() as client:
        assert client.put_token(broker.token()) == 202
        sender = client.attach_sender(queue)
        for number in range(count):
            body = b"%d " % number + b"x" * 20_000
            assert client.send(sender, Message(body=body).encode()) == Accepted()
        client.attach_receiver(queue).grant(count)
        client.flush()
        time.sleep(0.5)  # Time in which the buffers fill: nobody reads.

        received = [client.wait_for(DeliveryReceived) for _ in range(count)]

        numbers = [int(Message.decode(event.payload).body.split()[0]) for event in received]
        assert numbers == [*range(count)]


def asked(
    broker: BrokerProcess, port: int, *, ca_path: str | None, token: str = "", path: str = "/"
) -> http.client.HTTPResponse:
    connection: http.client.HTTPConnection
    if ca_path is None:
        connection = http.client.HTTPConnection("localhost", port, timeout=TIMEOUT_S)
    else:
        context = ssl.create_default_context(cafile=ca_path)
        connection = http.client.HTTPSConnection(
            "localhost", port, context=context, timeout=TIMEOUT_S
        )
    headers = {"Authorization": token, "Connection": "close"}
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


@pytest.mark.parametrize("scheme", ["https", "sb", "http", "amqps"])
@pytest.mark.parametrize("made_for", ["port", "tls_port", "no port"])
@pytest.mark.parametrize("is_secure", [True, False])
def test_a_token_for_any_port_of_the_namespace_opens_them_all(
    broker: BrokerProcess, ca_path: str, scheme: str, made_for: str, is_secure: bool
) -> None:
    """M6: data plane and administration sign for different URLs of one place."""
    place = "localhost" if made_for == "no port" else f"localhost:{getattr(broker, made_for)}"
    rule_name, key = broker.root_rule
    token = make_token(
        resource=f"{scheme}://{place}", rule_name=rule_name, key=key, expires_s=4_000_000_000
    )
    path = "/$namespaceinfo?api-version=2021-05"
    opened = asked(
        broker, broker.port, ca_path=ca_path if is_secure else None, token=token, path=path
    )
    assert opened.status == 200
    other_port = parse_connection_string(broker.connection_strings["other"]).port
    assert other_port is not None
    refused = asked(broker, other_port, ca_path=None, token=token, path=path)
    assert refused.status == 401


def test_answers_have_a_date(broker: BrokerProcess) -> None:
    """M10: as HTTP wants of a server that has a clock."""
    assert asked(broker, broker.port, ca_path=None).getheader("date", "").endswith("GMT")


@pytest.mark.parametrize(
    "said", [b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
def test_the_port_for_tls_takes_nothing_else(broker: BrokerProcess, said: bytes) -> None:
    """M6: whoever goes there by mistake in plain text is hung up on, and nothing is answered."""
    with socket.create_connection(("127.0.0.1", broker.tls_port), timeout=TIMEOUT_S) as plain:
        plain.sendall(said)
        with suppress(ConnectionResetError):
            assert plain.recv(100) == b""


def test_the_ready_line_and_health_tell_about_tls(broker: BrokerProcess, ca_path: str) -> None:
    """M10: where the authority is, and until when the certificate holds."""
    assert broker.data is not None
    assert ca_path == str(broker.data / "tls" / "ca.pem")
    parsed = parse_connection_string(broker.tls_connection_string)
    assert parsed.uses_tls and parsed.port == broker.tls_port
    assert broker.health()["tls"]["certificate_expires"].startswith("20")
    assert broker.health()["namespaces"]["demo"]["tls_port"] == broker.tls_port


def test_the_administrations_port_speaks_tls_too(broker: BrokerProcess, ca_path: str) -> None:
    """M10: the JSON side over https."""
    for path in (ca_path, None):
        assert asked(broker, broker.admin_port, ca_path=path, path="/health").status == 200


def test_one_connection_can_ask_many_times(broker: BrokerProcess, ca_path: str) -> None:
    """M10: HTTP keeps its connection, inside TLS and outside."""
    context = ssl.create_default_context(cafile=ca_path)
    for connection in (
        http.client.HTTPSConnection("localhost", broker.admin_port, context=context, timeout=10),
        http.client.HTTPConnection("localhost", broker.admin_port, timeout=10),
    ):
        for _ in range(5):
            connection.request("GET", "/health")
            assert json.loads(connection.getresponse().read())["status"] == "ok"
        connection.close()
