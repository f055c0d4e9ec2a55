"""The rules of subscriptions as rows of the store.

A rule is an entity without messages: ``<topic>/subscriptions/<name>/rules/<rule>``. It takes an id
like every other, because the store knows entities by nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.topic import Subscription
from twinbus.broker.store.port import DeleteEntity, EntityRow, Op, PutEntity
from twinbus.errors import ConfigurationError

KIND_RULE = "rule"


class RuleRows:
    """Adds, changes and removes rules; each change holds at once and comes with what to store."""

    def __init__(self, take_id: Callable[[], int]) -> None:
        self._take_id = take_id

    def add(self, subscription: Subscription, rule: RuleDescription) -> list[Op]:
        topic = subscription.topic
        if rule.key in subscription.rule_ids:
            raise ConfigurationError(
                f"The subscription {subscription.description.display_path!r} has a rule "
                f"{rule.name!r} already",
                hint="Choose another name, or update that one",
            )
        rule_id = self._take_id()
        # The book refuses what is too much for one topic.
        topic.add_rule(subscription, rule, rule_id)
        return [PutEntity(_row(subscription, rule, rule_id))]

    def change(self, subscription: Subscription, rule: RuleDescription) -> list[Op]:
        old = find_rule(subscription, rule.name)
        rule_id = subscription.rule_ids[rule.key]
        rule = replace(rule, created_at_ms=old.created_at_ms)
        topic = subscription.topic
        topic.remove_rule(subscription, rule.key)
        try:
            topic.add_rule(subscription, rule, rule_id)
        except ConfigurationError:
            topic.add_rule(subscription, old, rule_id)
            raise
        return [PutEntity(_row(subscription, rule, rule_id))]

    def remove(self, subscription: Subscription, name: str) -> list[Op]:
        rule = find_rule(subscription, name)
        rule_id = subscription.rule_ids[rule.key]
        subscription.topic.remove_rule(subscription, rule.key)
        return [DeleteEntity(rule_id)]


def find_rule(subscription: Subscription, name: str) -> RuleDescription:
    """The rule of that name; ConfigurationError if there is none."""
    for rule in subscription.rules:
        if rule.key == name.lower():
            return rule
    raise ConfigurationError(
        f"The subscription {subscription.description.display_path!r} has no rule {name[:60]!a}",
        hint="List its rules to see which it has",
    )


def rule_of(entity: EntityRow) -> RuleDescription:
    """The rule that a row holds."""
    return RuleDescription.from_dict(json.loads(entity.description_json))


def _row(subscription: Subscription, rule: RuleDescription, rule_id: int) -> EntityRow:
    path = f"{subscription.description.path}/rules/{rule.key}"
    return EntityRow(rule_id, path, KIND_RULE, json.dumps(rule.to_dict(), sort_keys=True))
