"""What a blocking link uses of the SDK's inside, by name, and that it keeps its promises."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

from tests.integration.faults.switchboard import Switchboard
from tests.support.broker_process import BrokerProcess
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.azure_sdk import blocking_link
from twinbus.drivers.azure_sdk.blocking_link import IDLE_S_MAX, BlockingLink, native_message
from twinbus.errors import OperationTimeout, SendInterrupted
from twinbus.testing.namespaces import EntityName, NamespaceFixture

TIMEOUT_S = 20.0

Link = BlockingLink[ServiceBusMessage]

INSIDE = {
    "": "_open _send _handle_exception _close_handler _handler _running",
    "_handler": "_connection _link _shutdown _cbs_authenticator _mgmt_links",
    "_handler._connection": "_error state listen _transport",
    "_handler._connection._transport": "sock",
    "_handler._link": "_error state delivery_count",
    "_handler._cbs_authenticator": "_expires_on",
}


def opened(connection_string: str, queue: str) -> tuple[ServiceBusClient, Link]:
    client = ServiceBusClient.from_connection_string(connection_string, retry_total=0)
    link = BlockingLink(queue, client.get_queue_sender(queue, keep_alive=0), native_message)
    link.open(TIMEOUT_S)
    return client, link


@pytest.fixture
def link(servicebus: NamespaceFixture, queue: str) -> Iterator[Link]:
    client, link = opened(servicebus.connection_string, queue)
    yield link
    link.close()
    client.close()


def missing(root: Any) -> list[str]:
    found = []
    for path, names in INSIDE.items():
        inside = root
        for name in filter(None, path.split(".")):
            inside = getattr(inside, name)
        found += [f"{path}.{name}" for name in names.split() if not hasattr(inside, name)]
    return found


def test_the_inside_of_the_blocking_sdk_is_as_we_know_it(link: Link) -> None:
    """M10: a new version without these names fails here, loudly."""
    told = f"azure-servicebus {version('azure-servicebus')} has changed: {missing(link._sdk)}"
    assert missing(link._sdk) == [], told
    assert link._handler._keep_alive_thread is None


def test_a_message_is_durable_when_its_send_returns(link: Link, queue: EntityName) -> None:
    """M10: and a link that rests takes in what has come."""
    for number in range(3):
        assert link.is_usable()
        link.send(ServiceBusMessage(str(number)), TIMEOUT_S)
    assert queue.active_message_count == 3


def test_a_send_that_waits_can_be_interrupted(servicebus: NamespaceFixture, link: Link) -> None:
    """P22: it had left, so it may have arrived."""
    assert link.is_usable()
    with servicebus.outage("black-hole"):
        timer = threading.Timer(0.3, link.interrupt)
        timer.start()
        began_s = time.monotonic()
        with pytest.raises(SendInterrupted) as caught:
            link.send(ServiceBusMessage("x"), TIMEOUT_S)
        timer.join()
    assert caught.value.is_ambiguous and time.monotonic() - began_s < TIMEOUT_S / 2
    assert not link.is_usable()


def test_a_send_that_was_interrupted_before_it_began_has_sent_nothing(
    link: Link, queue: EntityName
) -> None:
    """P22: no second copy is announced."""
    assert link.is_usable()
    link.interrupt()
    with pytest.raises(SendInterrupted) as caught:
        link.send(ServiceBusMessage("x"), TIMEOUT_S)
    assert not caught.value.is_ambiguous and queue.active_message_count == 0


def test_a_send_into_silence_ends_in_time(servicebus: NamespaceFixture, link: Link) -> None:
    """F6: no call outlives its time."""
    assert link.is_usable()
    with servicebus.outage("black-hole"):
        began_s = time.monotonic()
        with pytest.raises(OperationTimeout):
            link.send(ServiceBusMessage("x"), 1.0)
        assert time.monotonic() - began_s < 3.0
    assert not link.is_usable()


def test_a_lost_connection_is_noticed_before_the_next_message(
    servicebus: NamespaceFixture, link: Link
) -> None:
    """P0: an idle link that was taken away is no error to the caller."""
    with servicebus.outage("reset"):
        end_s = time.monotonic() + TIMEOUT_S
        while link.is_usable():
            assert time.monotonic() < end_s
            time.sleep(0.01)


def test_a_link_is_replaced_before_its_token_is_old(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6: the SDK would ask for a new token in the middle of a send, without a time limit."""
    assert link.is_usable()
    lifetime_s = link._handler._cbs_authenticator._expires_on - time.time()
    later_s = time.monotonic() + lifetime_s * 0.85
    link._used_s = later_s - 1  # It was busy all the time.
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert not link.is_usable()


def test_a_link_that_rested_for_long_is_not_used_again(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P0: a router may have forgotten the connection, and nobody would answer for 45 s."""
    assert link.is_usable()
    later_s = time.monotonic() + 21
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert not link.is_usable()


def test_a_link_over_tls_is_interrupted_like_any_other(tmp_path: Path) -> None:
    """P22: the reader of an SSL socket is woken, too."""
    arguments = ("--tls-port", "demo:0")
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        parsed = parse_connection_string(broker.tls_connection_string)
        client = ServiceBusClient.from_connection_string(
            broker.tls_connection_string,
            retry_total=0,
            connection_verify=broker.ca_path,
            custom_endpoint_address=f"sb://{parsed.host}:{parsed.effective_port}",
            transport_type=TransportType.Amqp,
        )
        queue = broker.fresh_queue()
        link = BlockingLink(queue, client.get_queue_sender(queue, keep_alive=0), native_message)
        link.open(TIMEOUT_S)
        for _ in range(3):
            assert link.is_usable()
            link.send(ServiceBusMessage("x"), TIMEOUT_S)
        assert link.is_usable()
        with Switchboard(broker).on("cannot-contact", how="black-hole"):
            timer = threading.Timer(0.3, link.interrupt)
            timer.start()
            began_s = time.monotonic()
            with pytest.raises(SendInterrupted):
                link.send(ServiceBusMessage("x"), TIMEOUT_S)
            timer.join()
            assert time.monotonic() - began_s < TIMEOUT_S / 2
            link.close()
        client.close()


def test_a_link_that_is_asked_and_not_used_grows_old(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P0: only a message that was answered shows that the connection is whole."""
    began_s = time.monotonic()
    later_s = began_s
    monkeypatch.setattr(blocking_link.time, "monotonic", lambda: later_s)
    for _ in range(3):
        later_s += IDLE_S_MAX / 4
        assert link.is_usable()
    later_s += IDLE_S_MAX / 2
    assert not link.is_usable()
