"""Topics, subscriptions and rules of a running namespace: what an administrator can do.

Rule 1: every change is on disk when its call returns, and holds from then on.
Rule 2: what is refused (a missing topic, a name that is taken, a rule too many) is a
        ConfigurationError, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from twinbus.broker.catalogue_plan import Draft
from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.topic import Subscription, Topic
from twinbus.broker.entities.topic_description import SubscriptionDescription, TopicDescription
from twinbus.broker.namespace import Namespace
from twinbus.entity_path import parse_entity_path
from twinbus.errors import ConfigurationError


class RunningTopics:
    """The half of a running namespace that is about topics."""

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
                f"There is no topic {path!r} in {self.name!r}", hint="Create it first"
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
                f"There is no subscription {name!r} of the topic {topic!r} in {self.name!r}",
                hint="Create it first",
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
