"""The certificates that are trusted unless told otherwise."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from typing import Any

import certifi
import pytest
from azure.servicebus import ServiceBusMessage

from twinbus.azure.aio import PairedServiceBusClient, Pairing
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.azure_sdk import ServiceBusDriver
from twinbus.drivers.azure_sdk.trusted_certificates import default_certificates, with_certificates
from twinbus.testing.namespaces import NamespaceFixture


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file of certificates that is read from now on."""
    default_certificates()
    files: list[str] = []

    class Counted(ssl.SSLContext):
        def load_verify_locations(self, cafile: Any = None, *args: Any, **kwargs: Any) -> None:
            files.append(str(cafile))
            super().load_verify_locations(cafile, *args, **kwargs)

    monkeypatch.setattr(ssl, "SSLContext", Counted)
    return files


async def test_no_connection_reads_the_usual_certificates(
    servicebus: NamespaceFixture, reads: list[str]
) -> None:
    """P25: a failover opens dozens of connections, and each would hold the loop for 30 ms."""
    driver = ServiceBusDriver.from_connection_string(servicebus.connection_string)
    senders = [driver.sender(servicebus.queue(name)) for name in ("a", "b", "c")]
    await asyncio.gather(*(each.attach(timeout_s=20) for each in senders))
    await driver.close()

    assert reads == []


async def test_no_connection_of_the_drop_in_reads_them_either(
    servicebus: NamespaceFixture, reads: list[str]
) -> None:
    """P25."""
    text = servicebus.connection_string
    away = parse_connection_string(text)
    pairing = Pairing(secondary=replace(away, port=1).to_text())
    async with PairedServiceBusClient.from_connection_string(text, pairing=pairing) as client:
        for name in ("a", "b", "c"):
            sender = client.get_queue_sender(servicebus.queue(name))
            await sender.send_messages(ServiceBusMessage("one"))

    assert reads == []


def test_a_choice_of_the_users_is_left_alone() -> None:
    own = ssl.create_default_context()
    for given in ({"ssl_context": own}, {"connection_verify": "own.pem"}):
        assert with_certificates(given) == given
    assert with_certificates({"connection_verify": None})["ssl_context"] is default_certificates()


def test_the_certificates_are_those_of_the_sdk() -> None:
    expected = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    expected.load_verify_locations(certifi.where())
    # Read now, too: an administrator may have added one since this process read them.
    found = default_certificates.__wrapped__()
    assert found.cert_store_stats() == expected.cert_store_stats()
    assert found.check_hostname and found.verify_mode is ssl.CERT_REQUIRED
