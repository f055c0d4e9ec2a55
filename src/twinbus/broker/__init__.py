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

from typing import TYPE_CHECKING, Final

from twinbus.common.lazy_exports import lazy_exports

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

# The whole broker takes 0.4 s to load, and commands need small parts of it.
_MODULES: Final = {
    "Broker": "twinbus.broker.broker",
    "BrokerOptions": "twinbus.broker.options",
    "EntityStatus": "twinbus.broker.engine.descriptions",
    "Fault": "twinbus.broker.faults",
    "NamespaceSpec": "twinbus.broker.broker",
    "QueueDescription": "twinbus.broker.engine.descriptions",
    "Scope": "twinbus.broker.faults",
    "SubscriptionDescription": "twinbus.broker.engine.descriptions",
    "ThrottleThresholds": "twinbus.broker.options",
    "TopicDescription": "twinbus.broker.engine.descriptions",
}

__getattr__, __dir__ = lazy_exports(__name__, _MODULES, __all__)
