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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinbus.testing.background_broker import BackgroundBroker
    from twinbus.testing.namespaces import EntityName, NamespaceFixture, NamespacePairFixture

__all__ = ["BackgroundBroker", "EntityName", "NamespaceFixture", "NamespacePairFixture"]

_MODULES = {
    "BackgroundBroker": "twinbus.testing.background_broker",
    "NamespaceFixture": "twinbus.testing.namespaces",
    "NamespacePairFixture": "twinbus.testing.namespaces",
    "EntityName": "twinbus.testing.namespaces",
}


def __getattr__(name: str) -> Any:
    # pytest imports this package in every run, also without a broker.
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
