"""The rules of subscriptions as rows of the store.

A rule is an entity without messages: ``<topic>/subscriptions/<name>/rules/<rule>``. It takes an id
like every other, because the store knows entities by nothing else, and it is a row of its own, so
that adding one does not write the others again.
"""

from __future__ import annotations

import json
from typing import Final

from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.topic import Subscription
from twinbus.broker.store.port import EntityRow
from twinbus.errors import ConfigurationError

KIND_RULE: Final = "rule"


def find_rule(subscription: Subscription, name: str) -> RuleDescription:
    """The rule of that name; ConfigurationError if there is none."""
    rule = subscription.find_rule(name)
    if rule is not None:
        return rule
    raise ConfigurationError(
        f"The subscription {subscription.description.display_path!r} has no rule {name[:60]!a}",
        hint="List its rules to see which it has",
    )


def rule_of(entity: EntityRow) -> RuleDescription:
    """The rule that a row holds."""
    return RuleDescription.from_dict(json.loads(entity.description_json))


def rule_row(subscription_path: str, rule: RuleDescription, rule_id: int) -> EntityRow:
    """The row that holds a rule."""
    path = f"{subscription_path}/rules/{rule.key}"
    return EntityRow(rule_id, path, KIND_RULE, json.dumps(rule.to_dict(), sort_keys=True))
