"""A shop and its tests: `pip install 'twinbus[azure]' pytest`, then `pytest test_shop.py`.

The fixtures `servicebus` and `servicebus_pair` come with twinbus. No broker has to be started.
"""

from datetime import timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from twinbus.azure import PairedServiceBusClient, Pairing


def place_order(client, text):
    """The shop's answer to a customer."""
    try:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(text), timeout=5)
    except ServiceBusError:
        return "try again later"
    return "thank you"


def test_an_order_is_accepted(servicebus):
    orders = servicebus.queue("orders")
    with ServiceBusClient.from_connection_string(servicebus.connection_string) as client:
        assert place_order(client, "1 coffee") == "thank you"
    assert orders.active_message_count == 1


def test_without_a_pair_an_outage_is_visible(servicebus):
    orders = servicebus.queue("orders")
    client = ServiceBusClient.from_connection_string(servicebus.connection_string, retry_total=0)
    with client, servicebus.outage("cannot-send", entity="orders"):
        assert place_order(client, "1 coffee") == "try again later"
    assert orders.active_message_count == 0


def test_with_a_pair_an_outage_is_not_visible(servicebus_pair):
    primary, secondary = servicebus_pair.primary, servicebus_pair.secondary
    primary.queue("orders")
    pairing = Pairing(
        secondary=secondary.connection_string, backlog_queue_count=2, failover_interval=0
    )
    client = PairedServiceBusClient.from_connection_string(
        primary.connection_string, pairing=pairing
    )
    with client:
        assert place_order(client, "1 coffee") == "thank you"
        with servicebus_pair.outage("refused"):
            assert place_order(client, "2 teas") == "thank you"


def test_an_order_that_is_not_received_expires(servicebus):
    orders = servicebus.queue("orders", default_ttl_ms=900_000)
    with ServiceBusClient.from_connection_string(servicebus.connection_string) as client:
        place_order(client, "1 coffee")
        servicebus.advance(timedelta(minutes=16))  # It sets the broker's clock, without waiting.
        with client.get_queue_receiver("orders") as receiver:
            assert receiver.receive_messages(max_wait_time=1) == []
    assert orders.active_message_count == 0
