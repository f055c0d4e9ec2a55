"""The embedded, durable Service Bus broker.

broker              Broker: start it, stop it, its namespaces and connection strings
running_namespace   a namespace while it is served, and after it was stopped
namespace/          one namespace: its entities, its store, its commits
server/             one client connection and its links, over AMQP
listener/           listening ports, which tell AMQP, HTTP and TLS apart; certificates
http/               administration over HTTP, in ATOM and in JSON
engine/             pure: what a queue, a topic and a session do
storage/            where it is kept
access/             who may do what
fairness/           how clients share time, memory and connections
faults/             failures that can be switched on
metering            what was done, counted
throttle            when to say ServerBusy; read_gate whether a connection is read from
emulator_config     the official emulator's Config.json
violation_log       what the log says about peers that break the protocol
data_repair         what is wrong with a data directory, and a new one without it
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twinbus.broker.broker import Broker, NamespaceSpec
    from twinbus.broker.engine.descriptions import (
        EntityStatus,
        QueueDescription,
        SubscriptionDescription,
        TopicDescription,
    )
    from twinbus.broker.faults import Fault, Scope
    from twinbus.broker.options import BrokerOptions, ThrottleThresholds

__all__ = [
    "Broker",
    "BrokerOptions",
    "EntityStatus",
    "Fault",
    "NamespaceSpec",
    "QueueDescription",
    "Scope",
    "SubscriptionDescription",
    "ThrottleThresholds",
    "TopicDescription",
]

_HOMES: Final = {
    "Broker": "broker",
    "BrokerOptions": "options",
    "EntityStatus": "engine.descriptions",
    "Fault": "faults",
    "NamespaceSpec": "broker",
    "QueueDescription": "engine.descriptions",
    "Scope": "faults",
    "SubscriptionDescription": "engine.descriptions",
    "ThrottleThresholds": "options",
    "TopicDescription": "engine.descriptions",
}


def __getattr__(name: str) -> Any:
    """The whole broker takes 0.4 s to load, and commands need small parts of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
