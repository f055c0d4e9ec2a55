"""Entities over the service's HTTP interface (ATOM): Azure, the official emulator, our broker.

client.py      AdministrationClient: the verbs
endpoint.py    which door a namespace has for HTTP
exchange.py    one HTTP request and its bounded answer, on asyncio streams
answers.py     what a status means: one table, one sentence
entities.py    what a queue, a topic, a subscription is: frozen values
atom.py        those values as XML, and back
rules.py       the rules of subscriptions, likewise
changing.py    what an update sends: all that was told, with little changed

Rule 1: nothing here needs the claim for more than it asks: every refusal names the claim.
Rule 2: an answer is data from outside: bounded, without document types, never followed elsewhere.
Rule 3: no retry happens here; whoever asks knows how long it may take.
"""

from __future__ import annotations

from twinbus.drivers.management.changing import AccessRule
from twinbus.drivers.management.client import PAGE_SIZE, AdministrationClient, ReachabilityProbe
from twinbus.drivers.management.endpoint import AdministrationEndpoint
from twinbus.drivers.management.entities import (
    MessageCounts,
    NamespaceInfo,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from twinbus.drivers.management.rules import (
    CorrelationRuleFilter,
    NamedRuleFilter,
    RuleProperties,
    SqlRuleFilter,
)

__all__ = [
    "PAGE_SIZE",
    "AccessRule",
    "AdministrationClient",
    "AdministrationEndpoint",
    "CorrelationRuleFilter",
    "MessageCounts",
    "NamedRuleFilter",
    "NamespaceInfo",
    "QueueProperties",
    "ReachabilityProbe",
    "RuleProperties",
    "SqlRuleFilter",
    "SubscriptionProperties",
    "TopicProperties",
]
