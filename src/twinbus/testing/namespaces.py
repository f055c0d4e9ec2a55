"""One clean namespace for one test: entities, counts, outages and time.

Everything here is synchronous and takes a millisecond or so; async tests may call it too.
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

# What an outage can look like, in the words of a test, and the faults behind it.
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
    """The name of a queue or subscription, with a look into it.

    It is a text, so that it goes straight into ``client.get_queue_sender(...)``.
    """

    __slots__ = ("_bus", "_path")

    _bus: NamespaceFixture
    _path: str

    def __new__(cls, name: str, path: str, bus: NamespaceFixture) -> EntityName:
        made = super().__new__(cls, name)
        made._bus = bus
        made._path = path
        return made

    @property
    def active_message_count(self) -> int:
        """Messages that can be, or are being, received."""
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
    """A namespace of the test's own."""

    def __init__(
        self, thread: BackgroundBroker, broker: Broker, namespace: RunningNamespace
    ) -> None:
        self._thread = thread
        self._broker = broker
        self._namespace = namespace
        self.name = namespace.name
        self.connection_string = namespace.connection_string
        """For the stock SDK, with the root key."""
        self.port = namespace.port

    # -- entities -------------------------------------------------------------------------

    def queue(self, name: str, **properties: Any) -> EntityName:
        """The queue of that name, created when it does not exist.

        ``properties`` are those of ``QueueDescription``, e.g. ``requires_session=True``.
        """
        if self._namespace.queue(name) is None:
            description = QueueDescription(path=name, **properties)
            self._thread.run(self._namespace.create_queue(description))
        elif properties:
            raise _exists(name)
        return EntityName(name, name, self)

    def topic(self, name: str, **properties: Any) -> EntityName:
        """The topic of that name, created when it does not exist."""
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
        """A new subscription, with its topic when that is missing."""
        self.topic(topic)
        path = f"{topic}/subscriptions/{name}"
        if rules is None:
            chosen = TrueFilter() if sql_filter is None else SqlFilter(sql_filter)
            rules = [RuleDescription(name="$Default", filter=chosen)]
        description = SubscriptionDescription(path=path, **properties)
        self._thread.run(self._namespace.create_subscription(description, rules))
        return EntityName(name, path, self)

    def machine(self, path: str) -> Queue:
        """What runs behind a path; for looks, not for changes."""
        found = self._thread.run_function(
            lambda: self._namespace.access.catalogue.find(path.lower())
        )
        if found is None:
            raise ConfigurationError(f"there is no entity {path!r} in {self.name!r}")
        return found

    # -- trouble --------------------------------------------------------------------------

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
        """Something is broken inside the block, and well again behind it.

        ``how`` is one of OUTAGES or the name of a fault; ``options`` are those of the fault, e.g.
        ``outage("throttled", entity="orders", rate_per_s=10)``.
        """
        kind, usual = OUTAGES.get(how, (how, {}))
        if kind not in KINDS:
            raise ConfigurationError(
                f"there is no outage {how!r:.60}",
                hint=f"Use one of: {', '.join(dict.fromkeys([*OUTAGES, *KINDS]))}",
            )
        scope = {"entity": entity, "subsystem": subsystem}
        fault = Fault.from_json({**usual, **options, "kind": kind, "scope": scope})
        fault_id = self._thread.run_function(lambda: self._namespace.faults.add(fault))
        try:
            yield
        finally:
            self._thread.run(self._healed(fault_id))

    async def _healed(self, fault_id: str) -> None:
        if self._namespace.faults.get(fault_id) is not None:
            # What happens in a moment is over by itself.
            self._namespace.faults.clear(fault_id)
        await self._namespace.access.fault_effects.network.until_open()

    # -- time -----------------------------------------------------------------------------

    def advance(self, by: timedelta | float) -> None:
        """Move this namespace's clocks on: locks run out, schedules come due, at once.

        Tokens grow old too: after more than an hour, open a new client.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        self._thread.run(self._advanced(seconds))

    async def _advanced(self, seconds: float) -> None:
        self._broker.advance(seconds)
        # The jump is told on the next turn of the loop; what it makes due takes a few more.
        await asyncio.sleep(0)
        while not self._namespace.access.is_quiet:
            await asyncio.sleep(0.001)

    def reset(self) -> None:
        """Delete every entity and every message of the namespace."""
        self._thread.run(self._namespace.reset())

    def close(self) -> None:
        """Forget the namespace, and the other one of a pair."""
        self._thread.run(self._broker.close())


class NamespacePairFixture:
    """Two namespaces: the one an application uses, and the one that helps it out."""

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
        f"{name!r} exists already", hint="Give its properties when it is named first"
    )
