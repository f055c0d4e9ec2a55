"""Stands in for the tests' own ``servicebus_preparer``: makes entities on our broker.

A preparer decorates a test. Before the test it makes one thing (a queue, say) and gives it to
the test and to the preparers below it as a keyword argument. The names, the keywords and their
defaults are the SDK's.

Every test has entities of its own, also where the SDK would share them ("cached").
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from twinbus.broker.emulator_config import parse_duration_ms
from verification.conformance.service import (
    connection_string,
    fresh_name,
    host,
    new_rule,
    running_broker,
)

SERVICEBUS_ENDPOINT_SUFFIX = ""
"""The tests put it behind the name of a namespace; ours has its port there already."""

Given = dict[str, Any]
Prepare = Callable[[Given], Given]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def preparer(prepare: Prepare, given_names: Iterable[str] = ()) -> Decorator:
    """A decorator that calls ``prepare`` with what is there already, and passes its result on."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def prepared(self: Any, **given: Any) -> Any:
            return test(self, **given, **prepare(given))

        @functools.wraps(test)
        async def prepared_async(self: Any, **given: Any) -> Any:
            return await test(self, **given, **prepare(given))

        wrapper = prepared_async if inspect.iscoroutinefunction(test) else prepared
        wrapper.__signature__ = _signature_without(test, set(given_names))  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _signature_without(test: Callable[..., Any], given_names: set[str]) -> inspect.Signature:
    """What pytest is to give to the test: not what a preparer gives."""
    signature = inspect.signature(test)
    kept = [each for name, each in signature.parameters.items() if name not in given_names]
    return signature.replace(parameters=kept)


def ServiceBusResourceGroupPreparer(*_arguments: Any, **_options: Any) -> Decorator:
    """A broker has no resource groups."""
    return preparer(lambda _given: {})


def ServiceBusNamespacePreparer(
    *_arguments: Any, parameter_name: str = "servicebus_namespace", **_options: Any
) -> Decorator:
    def prepare(_given: Given) -> Given:
        rule_name, key = running_broker().root_rule
        return {
            parameter_name: SimpleNamespace(name=host()),
            f"{parameter_name}_connection_string": connection_string(rule_name, key),
            f"{parameter_name}_key_name": rule_name,
            f"{parameter_name}_primary_key": key,
        }

    return preparer(prepare)


def ServiceBusQueuePreparer(
    *_arguments: Any,
    parameter_name: str = "servicebus_queue",
    requires_duplicate_detection: bool = False,
    dead_lettering_on_message_expiration: bool = False,
    requires_session: bool = False,
    enable_partitioning: bool = False,
    lock_duration: str = "PT30S",
    **_options: Any,
) -> Decorator:
    properties = {
        "lock_duration_ms": parse_duration_ms(lock_duration),
        "requires_duplicate_detection": requires_duplicate_detection,
        "dead_lettering_on_expiration": dead_lettering_on_message_expiration,
        "requires_session": requires_session,
        "enable_partitioning": enable_partitioning,
    }

    def prepare(_given: Given) -> Given:
        name = fresh_name("queue")
        running_broker().create_queue(name, **properties)
        return {parameter_name: SimpleNamespace(name=name, properties=properties)}

    return preparer(prepare)


def ServiceBusTopicPreparer(
    *_arguments: Any, parameter_name: str = "servicebus_topic", **_options: Any
) -> Decorator:
    def prepare(_given: Given) -> Given:
        name = fresh_name("topic")
        broker = running_broker()
        broker.admin("PUT", f"/namespaces/{broker.namespace}/topics/{name}", {})
        return {parameter_name: SimpleNamespace(name=name)}

    return preparer(prepare)


def ServiceBusSubscriptionPreparer(
    *_arguments: Any,
    parameter_name: str = "servicebus_subscription",
    servicebus_topic_parameter_name: str = "servicebus_topic",
    requires_session: bool = False,
    lock_duration: str = "PT60S",
    **_options: Any,
) -> Decorator:
    properties = {
        "lock_duration_ms": parse_duration_ms(lock_duration),
        "requires_session": requires_session,
    }

    def prepare(given: Given) -> Given:
        name = fresh_name("subscription")
        topic = given[servicebus_topic_parameter_name].name
        broker = running_broker()
        path = f"/namespaces/{broker.namespace}/topics/{topic}/subscriptions/{name}"
        broker.admin("PUT", path, properties)
        return {parameter_name: SimpleNamespace(name=name)}

    return preparer(prepare)


ALL_RIGHTS = ("Manage", "Send", "Listen")


def _claims(access_rights: Iterable[Any] | None) -> list[str]:
    return list(ALL_RIGHTS) if access_rights is None else [each.value for each in access_rights]


def ServiceBusNamespaceAuthorizationRulePreparer(
    *_arguments: Any,
    parameter_name: str = "servicebus_authorization_rule",
    access_rights: Iterable[Any] | None = None,
    **_options: Any,
) -> Decorator:
    claims = _claims(access_rights)

    def prepare(_given: Given) -> Given:
        name = fresh_name("rule")
        broker = running_broker()
        path = f"/namespaces/{broker.namespace}/rules/{name}"
        made = broker.admin("PUT", path, {"claims": claims})
        return {
            parameter_name: SimpleNamespace(name=name),
            f"{parameter_name}_connection_string": connection_string(name, made["primary_key"]),
        }

    return preparer(prepare)


def ServiceBusQueueAuthorizationRulePreparer(
    *_arguments: Any,
    parameter_name: str = "servicebus_queue_authorization_rule",
    servicebus_queue_parameter_name: str = "servicebus_queue",
    access_rights: Iterable[Any] | None = None,
    **_options: Any,
) -> Decorator:
    claims = _claims(access_rights)

    def prepare(given: Given) -> Given:
        queue = given[servicebus_queue_parameter_name]
        rule = new_rule(fresh_name("rule"), claims)
        # The queue is new and empty: to give it a rule, make it again.
        running_broker().delete_queue(queue.name)
        running_broker().create_queue(queue.name, **queue.properties, authorization_rules=[rule])
        text = connection_string(rule["name"], rule["primary_key"], queue.name)
        return {
            parameter_name: SimpleNamespace(name=rule["name"]),
            f"{parameter_name}_connection_string": text,
        }

    return preparer(prepare)


CachedServiceBusResourceGroupPreparer = ServiceBusResourceGroupPreparer
CachedServiceBusNamespacePreparer = ServiceBusNamespacePreparer
CachedServiceBusQueuePreparer = ServiceBusQueuePreparer
CachedServiceBusTopicPreparer = ServiceBusTopicPreparer
CachedServiceBusSubscriptionPreparer = ServiceBusSubscriptionPreparer


def environment_preparer(_prefix: str, *_arguments: Any, **wanted: Any) -> Decorator:
    """In the place of PowerShellPreparer: what it reads from the environment, from our broker."""

    def known() -> Given:
        rule_name, key = running_broker().root_rule
        return {
            **wanted,
            "servicebus_connection_str": connection_string(rule_name, key),
            "servicebus_fully_qualified_namespace": host(),
            "servicebus_sas_policy": rule_name,
            "servicebus_sas_key": key,
        }

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        asked = inspect.signature(test).parameters
        takes_all = any(each.kind is each.VAR_KEYWORD for each in asked.values())

        def prepare(_given: Given) -> Given:
            return {name: value for name, value in known().items() if takes_all or name in asked}

        return preparer(prepare, wanted)(test)

    return decorate
