"""The embedded, durable Service Bus broker.

broker              Broker: start, stop, namespaces, administration port
running_namespace   a namespace while it runs, and after it was stopped
options             everything about a broker that can be set
namespace/          one namespace: its entities, its store, its commits
server/             one client connection and its links, over AMQP
listener/           listening ports, which distinguish AMQP, HTTP and TLS; certificates
http/               administration over HTTP, in ATOM and in JSON
engine/             pure: what a queue, a topic and a session do
storage/            the data directory, its SQLite stores, their checks and repair
access/             access rules, tokens, and what a connection may do
fairness/           how clients share time, memory and connections
faults/             failures that can be switched on
metering            operations log and audit log of a namespace
throttle            when a send is refused with ServerBusy
read_gate           when a connection is read from
file_descriptors    how many connections the open-file limit allows
secure_random       random numbers for lock tokens
emulator_config     the Config.json of the official emulator
violation_log       log lines about clients that break the protocol
data_repair         examine a data directory, and write a repaired copy
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
