"""One clean namespace for one test: entities, counts, outages and time.

All calls are synchronous and take about a millisecond; async tests may use them too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from twinbus.broker.broker import Broker
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.filters import RuleDescription, SqlFilter, TrueFilter
from twinbus.broker.faults import KINDS, Fault
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.broker.engine.queue import Queue
    from twinbus.testing.background_broker import BackgroundBroker

# The kinds of outage by name, and the faults that cause them.
OUTAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "refused": ("cannot-contact", {"how": "refuse"}),
    "black-hole": ("cannot-contact", {"how": "black-hole"}),
    "reset": ("cannot-contact", {"how": "reset"}),
    "slow": ("cannot-contact", {"how": "slow"}),
    "half-open": ("cannot-contact", {"how": "half-open"}),
    "cannot-send": ("cannot-send", {}),
    "cannot-receive": ("cannot-receive", {}),
    "cannot-manage": ("cannot-manage", {}),
    "throttled": ("throttle", {}),
    "disk-full": ("disk-full", {}),
}


class EntityName(str):
    """The name of a queue or subscription, with its message counts.

    It is a ``str``, so that it can be passed to ``client.get_queue_sender(...)``.
    """

    __slots__ = ("_bus", "_path")

    _bus: NamespaceFixture
    _path: str

    def __new__(cls, name: str, path: str, bus: NamespaceFixture) -> EntityName:
        entity = super().__new__(cls, name)
        entity._bus = bus
        entity._path = path
        return entity

    @property
    def active_message_count(self) -> int:
        """Messages that can be received, or are locked."""
        return self._bus.machine(self._path).active_count

    @property
    def dead_letter_message_count(self) -> int:
        dead_letters = self._bus.machine(self._path).dead_letters
        return 0 if dead_letters is None else dead_letters.message_count

    @property
    def scheduled_message_count(self) -> int:
        return self._bus.machine(self._path).scheduled_count

    @property
    def deferred_message_count(self) -> int:
        return self._bus.machine(self._path).deferred_count


class NamespaceFixture:
    """A namespace for one test."""

    def __init__(
        self, thread: BackgroundBroker, broker: Broker, namespace: RunningNamespace
    ) -> None:
        self._thread = thread
        self._broker = broker
        self._namespace = namespace
        self.name = namespace.name
        self.connection_string = namespace.connection_string
        """For the official SDK, with the root key."""
        self.port = namespace.port

    # -- entities -------------------------------------------------------------------------

    def queue(self, name: str, **properties: Any) -> EntityName:
        """The queue of that name, created if it does not exist.

        ``properties`` are those of ``QueueDescription``, for example ``requires_session=True``.
        """
        if self._namespace.queue(name) is None:
            description = QueueDescription(path=name, **properties)
            self._thread.run(self._namespace.create_queue(description))
        elif properties:
            raise _exists(name)
        return EntityName(name, name, self)

    def topic(self, name: str, **properties: Any) -> EntityName:
        """The topic of that name, created if it does not exist."""
        if self._namespace.topic(name) is None:
            description = TopicDescription(path=name, **properties)
            self._thread.run(self._namespace.create_topic(description))
        elif properties:
            raise _exists(name)
        return EntityName(name, name, self)

    def subscription(
        self,
        topic: str,
        name: str,
        *,
        sql_filter: str | None = None,
        rules: Sequence[RuleDescription] | None = None,
        **properties: Any,
    ) -> EntityName:
        """A new subscription; its topic is created if it does not exist."""
        self.topic(topic)
        path = f"{topic}/subscriptions/{name}"
        if rules is None:
            chosen = TrueFilter() if sql_filter is None else SqlFilter(sql_filter)
            rules = [RuleDescription(name="$Default", filter=chosen)]
        description = SubscriptionDescription(path=path, **properties)
        self._thread.run(self._namespace.create_subscription(description, rules))
        return EntityName(name, path, self)

    def machine(self, path: str) -> Queue:
        """The queue of the broker at a path; read-only."""
        found = self._thread.run_function(
            lambda: self._namespace.access.catalogue.find(path.lower())
        )
        if found is None:
            raise ConfigurationError(f"Entity {path!r} not found in namespace {self.name!r}")
        return found

    # -- outages --------------------------------------------------------------------------

    @contextmanager
    def outage(
        self,
        how: str = "refused",
        /,
        *,
        entity: str = "",
        subsystem: str = "",
        **options: Any,
    ) -> Iterator[None]:
        """An outage for the duration of the block.

        ``how`` is one of OUTAGES or the kind of a fault; ``options`` are those of the fault, for
        example ``outage("throttled", entity="orders", rate_per_s=10)``.
        """
        kind, usual = OUTAGES.get(how, (how, {}))
        if kind not in KINDS:
            raise ConfigurationError(
                f"Invalid kind of outage: {how!r:.60}",
                hint=f"Use one of: {', '.join(dict.fromkeys([*OUTAGES, *KINDS]))}",
            )
        scope = {"entity": entity, "subsystem": subsystem}
        fault = Fault.from_json({**usual, **options, "kind": kind, "scope": scope})
        fault_id = self._thread.run_function(lambda: self._namespace.faults.add(fault))
        try:
            yield
        finally:
            self._thread.run(self._clear_fault(fault_id))

    async def _clear_fault(self, fault_id: str) -> None:
        if self._namespace.faults.get(fault_id) is not None:
            # A fault without a duration has ended by itself.
            self._namespace.faults.clear(fault_id)
        await self._namespace.access.fault_effects.network.until_open()

    # -- time -----------------------------------------------------------------------------

    def advance(self, by: timedelta | float) -> None:
        """Advance the clock of this namespace: locks expire and schedules become due at once.

        Tokens expire too: after more than an hour, open a new client.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        self._thread.run(self._advance(seconds))

    async def _advance(self, seconds: float) -> None:
        self._broker.advance(seconds)
        # The next iteration of the loop handles the jump; what becomes due takes a few more.
        await asyncio.sleep(0)
        while not self._namespace.access.is_quiet:
            await asyncio.sleep(0.001)

    def reset(self) -> None:
        """Delete every entity and every message of the namespace."""
        self._thread.run(self._namespace.reset())

    def close(self) -> None:
        """Close the namespace, and the other one of a pair."""
        self._thread.run(self._broker.close())


class NamespacePairFixture:
    """Two namespaces: a primary and a secondary."""

    def __init__(self, primary: NamespaceFixture, secondary: NamespaceFixture) -> None:
        self.primary = primary
        self.secondary = secondary

    @contextmanager
    def outage(self, how: str = "refused", /, **options: Any) -> Iterator[None]:
        """An outage of the primary."""
        with self.primary.outage(how, **options):
            yield

    def close(self) -> None:
        self.primary.close()


def _exists(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"Entity {name!r} already exists", hint="Pass the properties with the first call"
    )
