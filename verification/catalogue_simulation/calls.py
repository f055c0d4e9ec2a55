"""Administrative calls, chosen at random: each is a coroutine of the broker and what it means."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, NamedTuple

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.broker.broker import NamespaceSpec, provide
from twinbus.broker.engine.descriptions import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.namespace.purge import purge_machine, reset_namespace
from twinbus.broker.running_namespace import RunningTopics
from twinbus.errors import ConfigurationError
from verification.catalogue_simulation.model import Model

NAMES: Final = ("a", "b", "c", "d", "e", "f")
SUBSCRIPTIONS: Final = ("x", "y")
RULES: Final = ("$Default", "one", "two")
IDLE_MS: Final = 300_000

_FILTERS: Final = (
    TrueFilter(),
    FalseFilter(),
    CorrelationFilter(label="red"),
    SqlFilter("colour = 'red'"),
)
_KEYS: Final = RuleSet((AuthorizationRule("reader", Claim.LISTEN, "A" * 44, "B" * 44),))


class Call(NamedTuple):
    """One call."""

    kind: str
    run: Callable[[Namespace], Coroutine[Any, Any, Any]]
    mean: Callable[[Model], None]
    """What it leads to if it succeeds."""


def choose(chance: Random, namespace: Namespace, *, is_first: bool = False) -> Call:
    """A call that makes sense more often than not; a first one makes something."""
    makers, weights = (_MAKERS[:2], _WEIGHTS[:2]) if is_first else (_MAKERS, _WEIGHTS)
    (make,) = chance.choices(makers, weights)
    if make in _NEED_ENTITIES and not is_first and not namespace.catalogue.entries:
        make = _create
    return make(chance, namespace)


# -- entities ---------------------------------------------------------------------------------


def _create(chance: Random, namespace: Namespace) -> Call:
    path = chance.choice(NAMES)
    if path in NAMES[:2] or chance.random() < 0.1:
        topic = TopicDescription(path=path)
        return _creation("create topic", topic, None)
    target, dead_target = _target(chance, namespace), _target(chance, namespace)
    queue = _queue(chance, path, target, dead_target)
    return _creation("create queue", queue, None)


def _subscribe(chance: Random, namespace: Namespace) -> Call:
    topics = [each.description.path for each in namespace.catalogue.topics()]
    topic = chance.choice(topics or NAMES[:2])
    description = SubscriptionDescription(
        path=f"{topic}/subscriptions/{chance.choice(SUBSCRIPTIONS)}",
        forward_to=_target(chance, namespace),
        auto_delete_on_idle_ms=IDLE_MS if chance.random() < 0.1 else None,
    )
    count = chance.choice((0, 1, 1, 2, 2))
    # Two of one name are refused when the first is planned already.
    rules = None if not count else [_rule(chance) for _ in range(count)]
    return _creation("create subscription", description, rules)


def _creation(
    kind: str, description: QueueDescription, rules: list[RuleDescription] | None
) -> Call:
    return Call(
        kind,
        lambda namespace: namespace.create_queue(description, rules),
        lambda model: model.create(description, rules),
    )


def _queue(
    chance: Random, path: str, target: str | None, dead_target: str | None
) -> QueueDescription:
    return QueueDescription(
        path=path,
        max_delivery_count=chance.randint(1, 5),
        forward_to=target,
        forward_dead_lettered_messages_to=dead_target,
        requires_duplicate_detection=chance.random() < 0.1,
        auto_delete_on_idle_ms=IDLE_MS if chance.random() < 0.1 else None,
        authorization_rules=_KEYS if chance.random() < 0.1 else RuleSet(),
    )


def _target(chance: Random, namespace: Namespace) -> str | None:
    return chance.choice(NAMES) if chance.random() < 0.25 else None


def _update(chance: Random, namespace: Namespace) -> Call:
    queue = _any(chance, namespace)
    if queue is None:
        return _missing("update")
    old = queue.description
    values: dict[str, Any] = {**old.to_public_dict(), "status": chance.choice(list(EntityStatus))}
    kind = "update status"
    values["authorization_rules"] = old.authorization_rules
    if not isinstance(queue, Topic) and chance.random() < 0.5:
        kind = "update forward"
        values["forward_to"] = chance.choice((None, *NAMES))
    if chance.random() < 0.15:
        kind = "update what is for life"
        values["requires_duplicate_detection"] = not old.requires_duplicate_detection
    if not isinstance(queue, Subscription) and chance.random() < 0.2:
        kind = "update access rules"
        values["authorization_rules"] = _KEYS
    try:
        new = type(old)(**values)
    except ConfigurationError:
        return _missing("update")
    return Call(
        kind,
        lambda namespace: namespace.update_queue(queue, new),
        lambda model: model.update(new),
    )


def _delete(chance: Random, namespace: Namespace) -> Call:
    queue = _any(chance, namespace)
    if queue is None:
        return _missing("delete")
    kind, path = queue.description.kind, queue.description.path
    return Call(
        f"delete {kind}",
        lambda namespace: namespace.delete_queue(queue),
        lambda model: model.delete(path),
    )


def _any(chance: Random, namespace: Namespace) -> Queue | None:
    entities = namespace.catalogue.entities()
    return chance.choice(entities) if entities else None


def _missing(kind: str) -> Call:
    """What a caller gets who names nothing that is there."""

    async def refused(_namespace: Namespace) -> None:
        raise ConfigurationError("there is no such entity")

    return Call(f"{kind} nothing", refused, lambda model: None)


# -- rules ------------------------------------------------------------------------------------


def _change_rule(chance: Random, namespace: Namespace) -> Call:
    found = [each for each in namespace.catalogue.entities() if isinstance(each, Subscription)]
    if not found:
        return _subscribe(chance, namespace)
    subscription, rule = chance.choice(found), _rule(chance)
    path = subscription.description.path
    topic, _subscriptions, name = path.rsplit("/", 2)
    what = chance.choice(("add", "add", "replace", "delete", "delete"))
    if what != "add" and subscription.rules:
        rule = RuleDescription(chance.choice(subscription.rules).name, rule.filter)
    if what == "delete":
        return Call(
            "delete rule",
            lambda namespace: RunningTopics(namespace).delete_rule(topic, name, rule.name),
            lambda model: model.remove_rule(path, rule.name),
        )
    if what == "replace":
        return Call(
            "replace rule",
            lambda namespace: RunningTopics(namespace).update_rule(topic, name, rule),
            lambda model: model.put_rule(path, rule),
        )
    return Call(
        "add rule",
        lambda namespace: RunningTopics(namespace).create_rule(topic, name, rule),
        lambda model: model.put_rule(path, rule),
    )


def _rule(chance: Random) -> RuleDescription:
    return RuleDescription(chance.choice(RULES), chance.choice(_FILTERS))


# -- the whole namespace ----------------------------------------------------------------------


def _reset(chance: Random, namespace: Namespace) -> Call:
    keep_entities = chance.random() < 0.8
    return Call(
        "reset and keep" if keep_entities else "reset",
        lambda namespace: reset_namespace(namespace, keep_entities=keep_entities),
        lambda model: model.reset(keep_entities=keep_entities),
    )


def _purge(chance: Random, namespace: Namespace) -> Call:
    full = [each for each in namespace.catalogue.entities() if each.message_count]
    queue = chance.choice(full) if full else _any(chance, namespace)
    if queue is None:
        return _missing("purge")
    return Call("purge", lambda namespace: purge_machine(namespace, queue), lambda model: None)


def _provide(chance: Random, namespace: Namespace) -> Call:
    first, second = chance.sample(NAMES, 2)
    queues = (_queue(chance, first, chance.choice((None, second)), None),)
    topics = (TopicDescription(path=second),)
    spec = NamespaceSpec("simulated", queues=queues, topics=topics)
    return Call(
        "provide",
        lambda namespace: provide(namespace, spec),
        lambda model: model.provide(*queues, *topics),
    )


_NEED_ENTITIES: Final = (_subscribe, _update, _delete, _change_rule, _purge)
_MAKERS: Final[tuple[Callable[[Random, Namespace], Call], ...]] = (
    *(_create, _subscribe, _update, _delete),
    *(_change_rule, _reset, _purge, _provide),
)
_WEIGHTS: Final = (24, 15, 13, 10, 22, 6, 6, 4)
