"""The embedded, durable Service Bus broker.

broker.py      Broker: start it, stop it, its namespaces and connection strings;
               loop_thread.py for one inside another program
admin.py       the HTTP side in JSON: health, queues, access; beside it admin_topics.py,
               admin_purge.py, admin_faults.py, and admin_requests.py, which they share
entrance.py    the ports of a namespace and of the administration; doors.py tells AMQP, HTTP and
               TLS apart, http_side.py speaks HTTP, tls/ has the certificate
administration/ what the stock administration client speaks
namespace.py   one namespace: its queues, its store, its commits
lookups.py     what queue machines ask of the store
catalogue.py   the entities of a namespace by name, catalogue_plan.py as values on which changes
               are planned, own_changes.py how those wait for their transaction,
               catalogue_rules.py rules as rows, running_topics.py what an administrator can do
               with topics, config_*.py the emulator's file
peer.py        one client connection, with attaching, sending, receiving, settling,
               replies, answers, cbs, management, peeking, session_links and session_desk beside
               it; admission (its tokens), input_gate (whether it is read from), offences (what the
               log says)
ingest.py      bytes from a sender to a stored message; delivery.py the way back
throttle.py    when to say ServerBusy
caretakers.py  what entities do by themselves: forwarding.py, idleness.py (deletion when idle),
               idle_links.py (links that end when idle)
purging.py     emptying a queue; resetting.py a namespace
metering/      what was done, counted
faults/        failures that can be switched on; stopped.py what is left of a stopped namespace
entities/      pure: what a queue, a topic and a session do
store/         where it is kept
access/        who may do what
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twinbus.broker.broker import Broker, NamespaceSpec
    from twinbus.broker.entities.description import EntityStatus, QueueDescription
    from twinbus.broker.entities.topic_description import SubscriptionDescription, TopicDescription
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
    "EntityStatus": "entities.description",
    "Fault": "faults",
    "NamespaceSpec": "broker",
    "QueueDescription": "entities.description",
    "Scope": "faults",
    "SubscriptionDescription": "entities.topic_description",
    "ThrottleThresholds": "options",
    "TopicDescription": "entities.topic_description",
}


def __getattr__(name: str) -> Any:
    """The whole broker takes 0.4 s to load, and commands need small parts of it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
