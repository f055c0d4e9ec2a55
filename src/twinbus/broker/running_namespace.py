"""A namespace while it runs, and after it was stopped.

``RunningNamespace`` is what ``Broker.add_namespace`` returns: connection strings, queues, topics,
subscriptions, rules, purge, reset and access rules. ``StoppedNamespace`` is a namespace that was
stopped while the broker continues to run (rule M9): its store is closed and its port is free; what
is kept allows to start it again and to check the tokens of clients that want to do so.

Rule 1: every change is on disk and effective when its call returns.
Rule 2: what is refused (a missing topic, a name that exists, one rule too many) raises
        ConfigurationError, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING

from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet, WhichKey
from twinbus.broker.access.sas import LOOPBACK_NAMES, Audience
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import RuleDescription
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.faults.registry import FaultRegistry
from twinbus.broker.listener.listeners import ListenerSet, make_namespace_application, shown_host
from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.namespace.purge import (
    Progress,
    Purged,
    purge_machine,
    reset_namespace,
    would_purge,
)
from twinbus.broker.storage.data_directory import ROOT_RULE, KeyRing
from twinbus.common.clock import Clock, Instant
from twinbus.common.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.broker.broker import NamespaceSpec


class RunningTopics:
    """The topics, subscriptions and rules of a running namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.name = namespace.name

    # -- topics ---------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        return self._namespace.catalogue.topics()

    def topic(self, path: str) -> Topic | None:
        found = self._namespace.catalogue.find(parse_entity_path(path))
        return found if isinstance(found, Topic) else None

    async def create_topic(self, topic: str | TopicDescription) -> Topic:
        description = TopicDescription(path=topic) if isinstance(topic, str) else topic
        made = await self._namespace.create_queue(description)
        assert isinstance(made, Topic)
        return made

    async def update_topic(self, description: TopicDescription) -> None:
        await self._namespace.update_queue(self._expect_topic(description.path), description)

    async def delete_topic(self, path: str) -> None:
        """Delete a topic with its subscriptions and everything in them."""
        await self._namespace.delete_queue(self._expect_topic(path))

    def _expect_topic(self, path: str) -> Topic:
        topic = self.topic(path)
        if topic is None:
            raise ConfigurationError(
                f"Topic {path!r} not found in namespace {self.name!r}",
                hint="Create the topic first",
            )
        return topic

    # -- subscriptions --------------------------------------------------------------------

    def subscriptions(self, topic: str) -> list[Subscription]:
        """The subscriptions of a topic by name."""
        found = self._expect_topic(topic).subscriptions
        return [found[name] for name in sorted(found)]

    def subscription(self, topic: str, name: str) -> Subscription | None:
        found = self.topic(topic)
        return None if found is None else found.subscriptions.get(name.lower())

    async def create_subscription(
        self,
        description: SubscriptionDescription,
        rules: Sequence[RuleDescription] | None = None,
    ) -> Subscription:
        """A subscription with these rules; with None, every message matches."""
        made = await self._namespace.create_queue(description, rules)
        assert isinstance(made, Subscription)
        return made

    async def update_subscription(self, description: SubscriptionDescription) -> None:
        subscription = self._expect_subscription(description.topic_path, description.name)
        await self._namespace.update_queue(subscription, description)

    async def delete_subscription(self, topic: str, name: str) -> None:
        await self._namespace.delete_queue(self._expect_subscription(topic, name))

    def _expect_subscription(self, topic: str, name: str) -> Subscription:
        subscription = self.subscription(topic, name)
        if subscription is None:
            raise ConfigurationError(
                f"Subscription {name!r} of topic {topic!r} not found in namespace {self.name!r}",
                hint="Create the subscription first",
            )
        return subscription

    # -- rules ----------------------------------------------------------------------------

    def rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        """The rules of a subscription, oldest first."""
        return self._expect_subscription(topic, subscription).rules

    async def create_rule(
        self, topic: str, subscription: str, rule: RuleDescription
    ) -> RuleDescription:
        machine = self._expect_subscription(topic, subscription)
        made = rule

        def plan(draft: Draft) -> None:
            nonlocal made
            at_ms = self._namespace.now().wall_ms
            made = draft.add_rule(machine.queue_id, machine.description, rule, at_ms)

        await self._namespace.changed(plan)
        return made

    async def update_rule(
        self, topic: str, subscription: str, rule: RuleDescription
    ) -> RuleDescription:
        machine = self._expect_subscription(topic, subscription)
        changed = rule

        def plan(draft: Draft) -> None:
            nonlocal changed
            changed = draft.replace_rule(machine.queue_id, machine.description, rule)

        await self._namespace.changed(plan)
        return changed

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        machine = self._expect_subscription(topic, subscription)
        queue_id, description = machine.queue_id, machine.description
        await self._namespace.changed(lambda draft: draft.remove_rule(queue_id, description, name))


@dataclass(frozen=True, slots=True)
class StoppedNamespace:
    """What is kept of a stopped namespace."""

    spec: NamespaceSpec
    """With the port it had, so that clients can connect again."""
    rules: RuleSet
    audience: Audience
    clock: Clock

    @property
    def access(self) -> StoppedNamespace:
        """What the HTTP server needs to check tokens, as in a running namespace."""
        return self

    def now(self) -> Instant:
        return self.clock.now()

    def rules_for(self, path: str) -> RuleSet | None:
        """The rules of the namespace; those of its entities are on disk."""
        return None if path else self.rules


def audience_of(host: str) -> Audience:
    """The host names that tokens may name for a listener on this host; loopback has no others."""
    names = LOOPBACK_NAMES | {host.lower()}
    return Audience(names, 0, any_name=host.lower() not in LOOPBACK_NAMES)


class RunningNamespace(RunningTopics):
    """A namespace with its listeners."""

    def __init__(
        self, namespace: Namespace, listeners: ListenerSet, host: str, keys: KeyRing
    ) -> None:
        super().__init__(namespace)
        self.listeners = listeners
        self._keys = keys
        self.started_at_ms = namespace.now().wall_ms
        self.port: int = listeners.port
        self.tls_port: int | None = listeners.tls_port
        self._shown = shown_host(host)
        self.endpoint = f"sb://{self._shown}:{self.port}"
        namespace.audience = replace(
            audience_of(host),
            port=self.port,
            other_ports=frozenset() if self.tls_port is None else frozenset({self.tls_port}),
        )
        listeners.acceptor.http.make_application = partial(make_namespace_application, self)

    @property
    def connection_string(self) -> str:
        """For the official SDKs, with the root key: keep it secret like a password."""
        return self.connection_string_for(ROOT_RULE)

    @property
    def tls_connection_string(self) -> str:
        """The same without the emulator flag: clients then use TLS, and port 5671 for AMQP."""
        endpoint = f"sb://{self._shown}:{self.tls_port or self.port}"
        return self.connection_string.replace(self.endpoint, endpoint, 1).replace(
            "UseDevelopmentEmulator=true;", ""
        )

    def connection_string_for(self, rule_name: str, queue: str | None = None) -> str:
        """The connection string of one access rule, of the namespace or of a queue."""
        rules = self._namespace.rules_for("" if queue is None else parse_entity_path(queue))
        rule = None if rules is None else rules.find(rule_name)
        if rule is None:
            where = f"namespace {self.name!r}" if queue is None else f"queue {queue!r}"
            raise ConfigurationError(
                f"Access rule {rule_name!r} not found in {where}", hint="Add the access rule first"
            )
        return (
            f"Endpoint={self.endpoint};SharedAccessKeyName={rule.name};"
            f"SharedAccessKey={rule.primary_key};UseDevelopmentEmulator=true;"
        )

    @property
    def failure(self) -> Exception | None:
        """Why the namespace stopped, if its disk failed."""
        return self._namespace.failure

    @property
    def connection_count(self) -> int:
        return len(self._namespace.peers) + self.listeners.acceptor.connection_count

    @property
    def faults(self) -> FaultRegistry:
        """Failures that can be switched on."""
        return self._namespace.faults

    # -- queues ---------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        return self._namespace.catalogue.queues()

    def queue(self, path: str) -> Queue | None:
        found = self._namespace.catalogue.find(parse_entity_path(path))
        return found if found is not None and found.description.kind == "queue" else None

    async def create_queue(self, queue: str | QueueDescription) -> Queue:
        description = QueueDescription(path=queue) if isinstance(queue, str) else queue
        return await self._namespace.create_queue(description)

    async def update_queue(self, description: QueueDescription) -> None:
        await self._namespace.update_queue(self._expect(description.path), description)

    async def delete_queue(self, path: str) -> None:
        await self._namespace.delete_queue(self._expect(path))

    # -- purge and reset ------------------------------------------------------------------

    def has_entity(self, path: str) -> bool:
        """Whether there is a queue, topic or subscription under that path."""
        return self._namespace.catalogue.find(parse_entity_path(path)) is not None

    async def purge(
        self,
        path: str,
        *,
        dead_letters: bool = False,
        deferred: bool = True,
        scheduled: bool = True,
        progress: Progress | None = None,
    ) -> Purged:
        """Remove the messages of a queue, subscription or dead-letter queue for good.

        Locked messages and messages that are sent meanwhile stay.
        """
        return await purge_machine(
            self._namespace,
            self._machine(path, dead_letters),
            deferred=deferred,
            scheduled=scheduled,
            progress=progress,
        )

    async def would_purge(
        self,
        path: str,
        *,
        dead_letters: bool = False,
        deferred: bool = True,
        scheduled: bool = True,
    ) -> Purged:
        """What ``purge`` would do now; nothing is changed."""
        machine = self._machine(path, dead_letters)
        return would_purge(machine, deferred=deferred, scheduled=scheduled)

    async def reset(self, *, keep_entities: bool = False) -> int:
        """Remove all messages, and all entities unless they are kept; returns how many entities."""
        return await reset_namespace(self._namespace, keep_entities=keep_entities)

    def _machine(self, path: str, dead_letters: bool) -> Queue:
        sub_queue = "dead-letter" if dead_letters else None
        machine = self._namespace.catalogue.find(parse_entity_path(path), sub_queue)
        if machine is None:
            kind = "Dead-letter queue of" if dead_letters else "Queue or subscription"
            raise ConfigurationError(
                f"{kind} {path[:260]!r} not found in namespace {self.name!r}",
                hint="Create the queue or subscription first",
            )
        return machine

    def _expect(self, path: str) -> Queue:
        queue = self.queue(path)
        if queue is None:
            raise ConfigurationError(
                f"Queue {path!r} not found in namespace {self.name!r}",
                hint="Create the queue first",
            )
        return queue

    # -- keys -----------------------------------------------------------------------------

    def add_rule(self, name: str, claims: Claim) -> AuthorizationRule:
        """A new access rule for the whole namespace, with fresh keys."""
        rule = AuthorizationRule.generate(name, claims, SystemRandom().randbytes)
        self._set_rules(self._namespace.rules.with_rule(rule))
        return rule

    def remove_rule(self, name: str) -> None:
        """Remove an access rule; its connections are closed at once. One with Manage must stay."""
        rules = self._namespace.rules.without(name)
        if not any(Claim.MANAGE in rule.claims for rule in rules):
            raise ConfigurationError(
                f"Access rule {name!r} is the last one with the Manage claim",
                hint="Add another access rule with the Manage claim first",
            )
        self._set_rules(rules)

    def regenerate_key(self, name: str, which: WhichKey) -> str:
        """Replace one key and return the new one; connections with the old one are closed."""
        rules = self._namespace.rules.with_new_key(name, which, SystemRandom().randbytes)
        self._set_rules(rules)
        rule = next(rule for rule in rules if rule.name == name)
        return rule.primary_key if which == "primary" else rule.secondary_key

    def _set_rules(self, rules: RuleSet) -> None:
        self._keys.replace(self.name, rules)
        self._namespace.replace_rules(rules)

    @property
    def access(self) -> Namespace:
        """What the HTTP server needs to check tokens."""
        return self._namespace

    async def close(self) -> None:
        await self.listeners.close()
        await self._namespace.close()
