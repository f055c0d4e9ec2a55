"""Entities as XML: their properties, their counts, sizes and times, and their access rules.

Rule 1: an access rule without a key keeps the key that it has; a new rule gets a new key. To
        change a key in an update, a client sends the new one.
Rule 2: only shared access rules exist here.
Rule 3: the tables are in the order in which the elements are written; the service and its
        clients depend on it.
Rule 4: an update is a replacement. A property that is left out takes its default, except for those
        that cannot change after creation: they stay, and another value is refused
        (engine/descriptions).
Rule 5: an element that only the broker can set is written, and ignored when a client sends it back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet, new_key
from twinbus.broker.access.sas import Audience
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.forwarding import target_path
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Topic
from twinbus.broker.http.atom.xml import (
    COUNT_DETAILS,
    children,
    duration_ms,
    duration_text,
    element,
    escaped,
    flag,
    flag_text,
    is_empty,
    items,
    lifetime_ms,
    lifetime_text,
    text_of,
    time_text,
    type_of,
    whole_number,
)
from twinbus.broker.http.request_checks import HttpError

__all__ = [
    "QUEUE",
    "SUBSCRIPTION",
    "TOPIC",
    "Shape",
    "count_details",
    "queue_facts",
    "read_rules",
    "rules_text",
    "topic_facts",
]

RULE_TYPE: Final = "SharedAccessAuthorizationRule"
_ELEMENTS: Final = (
    "ClaimType",
    "ClaimValue",
    "Rights",
    "CreatedTime",
    "ModifiedTime",
    "KeyName",
    "PrimaryKey",
    "SecondaryKey",
)


def read_rules(parent: Element, known: RuleSet) -> RuleSet:
    """The rules in ``AuthorizationRules``; ``known`` are the current ones of the entity."""
    return RuleSet(tuple(_read_rule(each, known) for each in items(parent, "AuthorizationRule")))


def rules_text(rules: RuleSet, changed_at_ms: int) -> str:
    """The rules with their keys: for clients with the Manage claim."""
    return "".join(_rule_text(rule, time_text(changed_at_ms)) for rule in rules)


def _read_rule(rule: Element, known: RuleSet) -> AuthorizationRule:
    if type_of(rule) not in ("", RULE_TYPE):
        raise HttpError(400, f"An access rule must have the type {RULE_TYPE}.")
    found = children(rule, _ELEMENTS)
    texts = {name: text_of(each).strip() for name, each in found.items() if name != "Rights"}
    name = texts.get("KeyName", "")
    before = known.find(name)
    keys = ("", "") if before is None else before.keys
    return AuthorizationRule(
        name,
        _claims(found.get("Rights")),
        texts.get("PrimaryKey") or keys[0] or new_key(secrets.token_bytes),
        texts.get("SecondaryKey") or keys[1] or new_key(secrets.token_bytes),
    )


def _claims(rights: Element | None) -> Claim:
    if rights is None:
        return Claim(0)
    return Claim.from_names(text_of(each).strip() for each in items(rights, "AccessRights"))


def _rule_text(rule: AuthorizationRule, time: str) -> str:
    rights = "".join(element("AccessRights", name) for name in rule.claims.names())
    return (
        f'<AuthorizationRule i:type="{RULE_TYPE}">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"{element('Rights', rights)}<CreatedTime>{time}</CreatedTime>"
        f"<ModifiedTime>{time}</ModifiedTime>{element('KeyName', escaped(rule.name))}"
        f"{element('PrimaryKey', escaped(rule.primary_key))}"
        f"{element('SecondaryKey', escaped(rule.secondary_key))}</AuthorizationRule>"
    )


@dataclass(frozen=True, slots=True)
class Codec:
    """How the text of an element and a property become each other."""

    read: Callable[[str, str], Any]
    """Takes the text and the element's name."""
    write: Callable[[Any], str]
    """Returns escaped text for an element."""


FLAG: Final = Codec(flag, flag_text)
NUMBER: Final = Codec(whole_number, str)
KILOBYTES: Final = Codec(
    lambda text, name: whole_number(text, name) * 1_024, lambda value: str(value // 1_024)
)
DURATION: Final = Codec(duration_ms, duration_text)
LIFETIME: Final = Codec(lifetime_ms, lifetime_text)
WORD: Final = Codec(lambda text, _name: text, str)
"""One of the protocol's own words."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A property that a client may set."""

    element: str
    field: str
    codec: Codec
    is_fixed: bool = False
    """It cannot change after creation."""


@dataclass(frozen=True, slots=True)
class Fact:
    """An element that only the broker sets, or that has a reader of its own."""

    element: str


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of description: its elements in order."""

    kind: str
    """The name of its element."""
    rows: tuple[Setting | Fact, ...]

    def read(
        self, parent: Element, audience: Audience, current: QueueDescription | None
    ) -> dict[str, Any]:
        """The properties that a client sets; ``current`` are those that it replaces."""
        found = children(parent, [row.element for row in self.rows])
        given = {name: each for name, each in found.items() if not is_empty(each)}
        values = {
            row.field: row.codec.read(text_of(given[row.element]).strip(), row.element)
            for row in self.rows
            if isinstance(row, Setting) and row.element in given
        }
        values.update(self._read_special(given, audience, current))
        for row in self.rows:
            if current is not None and isinstance(row, Setting) and row.is_fixed:
                values.setdefault(row.field, getattr(current, row.field))
        return values

    def _read_special(
        self, given: dict[str, Element], audience: Audience, current: QueueDescription | None
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, field in FORWARDING.items():
            if name in given:
                values[field] = target_path(text_of(given[name]), audience)
        if "UserMetadata" in given:
            values["user_metadata"] = text_of(given["UserMetadata"])
        if "AuthorizationRules" in given:
            known = RuleSet() if current is None else current.authorization_rules
            values["authorization_rules"] = read_rules(given["AuthorizationRules"], known)
        return values

    def write(
        self, description: QueueDescription, facts: Mapping[str, str], endpoint: str, version: str
    ) -> str:
        """The content of the description's element."""
        values_by_element = {**_written_specially(description, endpoint), **facts}
        if version < LARGE_MESSAGE_VERSION:
            values_by_element["MaxMessageSizeInKilobytes"] = None
        parts = []
        for row in self.rows:
            if isinstance(row, Fact) or row.element in values_by_element:
                text = values_by_element.get(row.element)
            else:
                text = row.codec.write(getattr(description, row.field))
            parts.append(element(row.element, text))
        return "".join(parts)


def _written_specially(description: QueueDescription, endpoint: str) -> dict[str, str | None]:
    rules = description.authorization_rules
    values_by_element: dict[str, str | None] = {
        "AuthorizationRules": rules_text(rules, description.updated_at_ms),
        "EntityAvailabilityStatus": "Available",
        "FilteringMessagesBeforePublishing": "false",
        "EnableSubscriptionPartitioning": "false",
        "IsAnonymousAccessible": "false",
        "CreatedAt": time_text(description.created_at_ms),
        "UpdatedAt": time_text(description.updated_at_ms),
        "UserMetadata": escaped(description.user_metadata) or None,
    }
    for name, field in FORWARDING.items():
        path: str | None = getattr(description, field)
        values_by_element[name] = None if path is None else escaped(f"{endpoint}/{path}")
    return values_by_element


FORWARDING: Final = {
    "ForwardTo": "forward_to",
    "ForwardDeadLetteredMessagesTo": "forward_dead_lettered_messages_to",
}
# Clients of an older version do not have the property.
LARGE_MESSAGE_VERSION: Final = "2021-05"

QUEUE: Final = Shape(
    "QueueDescription",
    (
        Setting("LockDuration", "lock_duration_ms", DURATION),
        Setting("MaxSizeInMegabytes", "max_size_mb", NUMBER),
        Setting("RequiresDuplicateDetection", "requires_duplicate_detection", FLAG, is_fixed=True),
        Setting("RequiresSession", "requires_session", FLAG, is_fixed=True),
        Setting("DefaultMessageTimeToLive", "default_ttl_ms", LIFETIME),
        Setting("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration", FLAG),
        Setting("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_window_ms", DURATION),
        Setting("MaxDeliveryCount", "max_delivery_count", NUMBER),
        Setting("EnableBatchedOperations", "enable_batched_operations", FLAG),
        Fact("SizeInBytes"),
        Fact("MessageCount"),
        Fact("IsAnonymousAccessible"),
        Fact("AuthorizationRules"),
        Setting("Status", "status", WORD),
        Fact("CreatedAt"),
        Fact("UpdatedAt"),
        Fact("AccessedAt"),
        Fact("SupportOrdering"),
        Fact("CountDetails"),
        Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", LIFETIME),
        Setting("EnablePartitioning", "enable_partitioning", FLAG, is_fixed=True),
        Fact("EntityAvailabilityStatus"),
        Setting("EnableExpress", "enable_express", FLAG),
        Fact("ForwardTo"),
        Fact("UserMetadata"),
        Fact("ForwardDeadLetteredMessagesTo"),
        Setting("MaxMessageSizeInKilobytes", "max_message_size_bytes", KILOBYTES),
    ),
)
TOPIC: Final = Shape(
    "TopicDescription",
    (
        Setting("DefaultMessageTimeToLive", "default_ttl_ms", LIFETIME),
        Setting("MaxSizeInMegabytes", "max_size_mb", NUMBER),
        Setting("RequiresDuplicateDetection", "requires_duplicate_detection", FLAG, is_fixed=True),
        Setting("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_window_ms", DURATION),
        Setting("EnableBatchedOperations", "enable_batched_operations", FLAG),
        Fact("SizeInBytes"),
        Fact("FilteringMessagesBeforePublishing"),
        Fact("IsAnonymousAccessible"),
        Fact("AuthorizationRules"),
        Setting("Status", "status", WORD),
        Fact("CreatedAt"),
        Fact("UpdatedAt"),
        Fact("AccessedAt"),
        Setting("SupportOrdering", "support_ordering", FLAG),
        Fact("CountDetails"),
        Fact("SubscriptionCount"),
        Fact("SqlFilterCount"),
        Fact("CorrelationFilterCount"),
        Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", LIFETIME),
        Setting("EnablePartitioning", "enable_partitioning", FLAG, is_fixed=True),
        Fact("EntityAvailabilityStatus"),
        Fact("EnableSubscriptionPartitioning"),
        Setting("EnableExpress", "enable_express", FLAG),
        Fact("UserMetadata"),
        Setting("MaxMessageSizeInKilobytes", "max_message_size_bytes", KILOBYTES),
    ),
)
SUBSCRIPTION: Final = Shape(
    "SubscriptionDescription",
    (
        Setting("LockDuration", "lock_duration_ms", DURATION),
        Setting("RequiresSession", "requires_session", FLAG, is_fixed=True),
        Setting("DefaultMessageTimeToLive", "default_ttl_ms", LIFETIME),
        Setting("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration", FLAG),
        Setting(
            "DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_errors", FLAG
        ),
        Fact("MessageCount"),
        Setting("MaxDeliveryCount", "max_delivery_count", NUMBER),
        Setting("EnableBatchedOperations", "enable_batched_operations", FLAG),
        Setting("Status", "status", WORD),
        Fact("ForwardTo"),
        Fact("CreatedAt"),
        Fact("UpdatedAt"),
        Fact("AccessedAt"),
        Fact("CountDetails"),
        Fact("ForwardDeadLetteredMessagesTo"),
        Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", LIFETIME),
        Fact("EntityAvailabilityStatus"),
        Fact("UserMetadata"),
        Fact("DefaultRuleDescription"),
    ),
)


def queue_facts(queue: Queue) -> dict[str, str]:
    """The runtime elements of a queue's or a subscription's description.

    A locked or deferred message counts as an active one: it is still in the queue.
    """
    dead = 0 if queue.dead_letters is None else queue.dead_letters.message_count
    return {
        "SizeInBytes": str(queue.used_bytes),
        "MessageCount": str(queue.message_count + queue.scheduled_count + dead),
        "AccessedAt": time_text(queue.accessed_at_ms),
        "SupportOrdering": "true",
        "CountDetails": count_details(
            active=queue.message_count, dead=dead, scheduled=queue.scheduled_count
        ),
    }


def topic_facts(topic: Topic) -> dict[str, str]:
    """The runtime elements of a topic's description; its messages are its subscriptions'."""
    compared = topic.rule_index.correlation_filter_count
    return {
        "SizeInBytes": str(topic.used_bytes),
        "AccessedAt": time_text(topic.accessed_at_ms),
        "CountDetails": count_details(active=0, dead=0, scheduled=topic.scheduled_count),
        "SubscriptionCount": str(len(topic.subscriptions)),
        "SqlFilterCount": str(len(topic.rule_index) - compared),
        "CorrelationFilterCount": str(compared),
    }


def count_details(*, active: int, dead: int, scheduled: int) -> str:
    """The counts by state, each in the XML namespace that the clients expect."""
    counts = {
        "ActiveMessageCount": active,
        "DeadLetterMessageCount": dead,
        "ScheduledMessageCount": scheduled,
        # Messages to be forwarded wait in their source, as active or dead-lettered.
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": 0,
    }
    return "".join(
        f'<d2p1:{name} xmlns:d2p1="{COUNT_DETAILS}">{count}</d2p1:{name}>'
        for name, count in counts.items()
    )
