"""Entities over the service's HTTP interface (ATOM): Azure, the official emulator, our broker.

client         ManagementClient: the verbs
http_client    one HTTP request and its bounded answer, on asyncio streams; what a status means
entities       what a queue, a topic, a subscription is: frozen values
entity_xml     those values as XML, and back; what an update sends
rule_xml       the rules of subscriptions, likewise

Rule 1: nothing here needs the claim for more than it asks: every refusal names the claim.
Rule 2: an answer is data from outside: bounded, without document types, never followed elsewhere.
Rule 3: no retry happens here; whoever asks knows how long it may take.
"""

from __future__ import annotations

from twinbus.drivers.administration.client import PAGE_SIZE, AdministrationClient, ReachabilityProbe
from twinbus.drivers.administration.entities import (
    MessageCounts,
    NamespaceInfo,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from twinbus.drivers.administration.entity_xml import AccessRule
from twinbus.drivers.administration.http_client import AdministrationEndpoint
from twinbus.drivers.administration.rule_xml import (
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
