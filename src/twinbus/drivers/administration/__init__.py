"""Entities over the service's HTTP interface (ATOM): Azure, the official emulator, our broker.

client         AdministrationClient: create, read, change and delete
http_client    one HTTP request and its bounded response, on asyncio streams; errors by status
entities       the properties of queues, topics and subscriptions: frozen values
entity_xml     these values as XML, and back; the body of an update
rule_xml       the rules of subscriptions, likewise

Rule 1: every refusal names the claim that the operation requires.
Rule 2: a response is untrusted data: bounded, without document types, and no URL in it is followed.
Rule 3: no retry happens here; the caller decides how long it may take.
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
