"""A Service Bus for your tests: fixtures for pytest, and the same without pytest.

    def test_an_order_is_shipped(servicebus):
        queue = servicebus.queue("orders")
        with ServiceBusClient.from_connection_string(servicebus.connection_string) as client:
            ...

background_broker    a broker on its own thread
namespaces           one clean namespace: queues, topics, counts, outages, time
broker_process       a broker in its own process, which can be killed
plugin               the fixtures ``servicebus``, ``servicebus_pair`` and ``servicebus_broker``
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from twinbus.testing.background_broker import BackgroundBroker
    from twinbus.testing.broker_process import BrokerProcessHandle
    from twinbus.testing.namespaces import EntityName, NamespaceFixture, NamespacePairFixture

__all__ = [
    "BackgroundBroker",
    "BrokerProcessHandle",
    "EntityName",
    "NamespaceFixture",
    "NamespacePairFixture",
]

# pytest imports this package in every run, also without a broker.
_MODULES = {
    "BackgroundBroker": "twinbus.testing.background_broker",
    "BrokerProcessHandle": "twinbus.testing.broker_process",
    "NamespaceFixture": "twinbus.testing.namespaces",
    "NamespacePairFixture": "twinbus.testing.namespaces",
    "EntityName": "twinbus.testing.namespaces",
}

__getattr__, __dir__ = lazy_exports(__name__, _MODULES, __all__)
