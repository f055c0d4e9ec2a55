"""Subscriptions and their rules over the administration protocol.

Unlike a queue or a topic, what does not exist here is told with 404 also to who reads it.
"""

from __future__ import annotations

from twinbus.broker.administration.call import Answer, Call
from twinbus.broker.administration.described import create, delete, entry_of, missing, update
from twinbus.broker.administration.descriptions import SUBSCRIPTION
from twinbus.broker.administration.filter_xml import RULE_KIND, read_rule, rule_text
from twinbus.broker.administration.xml_reading import children, description_in
from twinbus.broker.administration.xml_writing import FeedEntry
from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.topic import Subscription, Topic

__all__ = [
    "delete_rule",
    "delete_subscription",
    "get_rule",
    "get_subscription",
    "list_rules",
    "list_subscriptions",
    "put_rule",
    "put_subscription",
]


def _path(call: Call) -> str:
    return f"{call.target.path}/subscriptions/{call.target.subscription}"


def _topic(call: Call) -> Topic:
    topic = call.namespace.topic(call.target.path)
    if topic is None:
        raise missing("topic", call.target.path)
    return topic


def _subscription(call: Call) -> Subscription:
    found = _topic(call).subscriptions.get(call.target.subscription.lower())
    if found is None:
        raise missing("subscription", _path(call))
    return found


async def list_subscriptions(call: Call) -> Answer:
    topic = _topic(call)
    found = [topic.subscriptions[name] for name in sorted(topic.subscriptions)]
    path = f"{topic.description.display_path}/subscriptions"
    return await call.many("Subscriptions", path, found, lambda each: entry_of(call, each))


async def get_subscription(call: Call) -> Answer:
    return call.one(entry_of(call, _subscription(call)))


async def put_subscription(call: Call) -> Answer:
    described = description_in(await call.body(), {SUBSCRIPTION.kind})
    topic = _topic(call)
    path = f"{topic.description.display_path}/subscriptions/{call.target.subscription}"
    if call.is_update:
        return await update(call, described, path)
    first = children(described, [row.element for row in SUBSCRIPTION.rows]).get(
        "DefaultRuleDescription"
    )
    return await create(call, described, path, None if first is None else [read_rule(first)])


async def delete_subscription(call: Call) -> Answer:
    return await delete(call, _subscription(call).description.path, "subscription")


# -- rules --------------------------------------------------------------------------------


async def list_rules(call: Call) -> Answer:
    rules = _subscription(call).rule_list
    return await call.many("Rules", f"{_path(call)}/rules", rules, lambda rule: _entry(call, rule))


async def get_rule(call: Call) -> Answer:
    return call.one(_entry(call, _rule(call)))


async def put_rule(call: Call) -> Answer:
    described = description_in(await call.body(), {RULE_KIND})
    rule = read_rule(described, call.target.rule)
    topic, name = call.target.path, call.target.subscription
    if call.is_update:
        _rule(call)
        return call.one(_entry(call, await call.namespace.update_rule(topic, name, rule)))
    call.check_is_missing(_find_rule(call), f"rule {rule.name!a}")
    return call.one(_entry(call, await call.namespace.create_rule(topic, name, rule)), 201)


async def delete_rule(call: Call) -> Answer:
    rule = _rule(call)
    await call.namespace.delete_rule(call.target.path, call.target.subscription, rule.name)
    return Answer(200, b"")


def _find_rule(call: Call) -> RuleDescription | None:
    return _subscription(call).find_rule(call.target.rule)


def _rule(call: Call) -> RuleDescription:
    rule = _find_rule(call)
    if rule is None:
        raise missing("rule", f"{_path(call)}/rules/{call.target.rule}")
    return rule


def _entry(call: Call, rule: RuleDescription) -> FeedEntry:
    href = call.href(f"{_path(call)}/rules/{rule.name}")
    made_at_ms = rule.created_at_ms
    return FeedEntry(href, rule.name, RULE_KIND, rule_text(rule), made_at_ms, made_at_ms)
