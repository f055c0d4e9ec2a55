"""A broker: several namespaces in one process, each on a port of its own (see
broker/listener/listeners.py).

    async with Broker(BrokerOptions(data_directory=Path("data"))) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))
        print(namespace.connection_string)

Rule 1: the listener of a namespace opens after its store was recovered and checked.
Rule 2: loopback only, unless the options name another address.
Rule 3: what is available in plain text is available over TLS on the same port too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType

from twinbus.broker.emulator_config import SubscriptionConfig, check_namespace_name
from twinbus.broker.engine.descriptions import QueueDescription, TopicDescription
from twinbus.broker.engine.filters import RuleDescription
from twinbus.broker.engine.forwarding import targets_first
from twinbus.broker.fairness.loop_turns import Turns
from twinbus.broker.listener.certificates import CertificateStore, names_for
from twinbus.broker.listener.listeners import (
    ListenerSet,
    administration_listeners,
    make_broker_application,
    namespace_listeners,
)
from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.options import BrokerOptions
from twinbus.broker.running_namespace import RunningNamespace, StoppedNamespace
from twinbus.broker.secure_random import SecureRandom
from twinbus.broker.storage.data_directory import DataDirectory, KeyRing
from twinbus.broker.storage.interface import Store
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.common.clock import AdjustableClock, Clock, SystemClock
from twinbus.errors import ConfigurationError

logger = logging.getLogger("twinbus.broker")


@dataclass(frozen=True, slots=True)
class NamespaceSpec:
    """A namespace to serve."""

    name: str
    port: int = 0
    """0 takes a free port."""
    queues: Sequence[str | QueueDescription] = field(default=())
    """Created if they do not exist; existing ones are left as they are."""
    topics: Sequence[str | TopicDescription] = field(default=())
    subscriptions: Sequence[SubscriptionConfig] = field(default=())
    """Like the queues; an existing subscription keeps its rules too."""
    tls_port: int | None = None
    """One more port, for TLS alone: clients without the emulator flag connect to 5671."""


class Broker:
    """The broker of this process."""

    def __init__(
        self,
        options: BrokerOptions | None = None,
        *,
        clock: Clock | None = None,
        chance: Random | None = None,
    ) -> None:
        self.options = options or BrokerOptions()
        self._clock = clock or SystemClock()
        self._chance = chance or SecureRandom()
        directory = self.options.data_directory
        self._directory = None if directory is None else DataDirectory(directory)
        self._keys = KeyRing(directory)
        self.tls = _certificate_store(self.options)
        self.administration: ListenerSet | None = None
        self.namespaces: dict[str, RunningNamespace] = {}
        self._turns: Turns | None = None
        self.stopped: dict[str, StoppedNamespace] = {}
        self._memory_stores: dict[str, MemoryStore] = {}
        self._unsubscribe: Callable[[], None] | None = None

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def add_namespace(self, spec: NamespaceSpec) -> RunningNamespace:
        """Recover a namespace, open its port and create the entities that do not exist."""
        name = check_namespace_name(spec.name).lower()
        if name in self.namespaces:
            raise ConfigurationError(
                f"Namespace {name!r} is already running", hint="Use each namespace name once"
            )
        self._watch_clock()
        namespace = Namespace(
            name,
            self._store(name),
            self._keys.rules_of(name),
            self.options,
            self._clock,
            self._chance,
            turns=self.shared_turns(),
        )
        try:
            await provide(namespace, spec)
            listeners = namespace_listeners(namespace, self.tls, spec.port, spec.tls_port)
            await listeners.open()
        except BaseException:
            await namespace.close()
            raise
        running = RunningNamespace(namespace, listeners, self.options.host, self._keys)
        self.namespaces[name] = running
        self.stopped.pop(name, None)
        return running

    def shared_turns(self) -> Turns:
        """The turns of all namespaces: they share the event loop and its time."""
        if self._turns is None:
            self._turns = Turns(asyncio.get_running_loop())
        return self._turns

    def _store(self, name: str) -> Store:
        if self._directory is None:
            # A namespace that is stopped and started again keeps its messages, in memory too.
            return self._memory_stores.setdefault(name, MemoryStore())
        path: Path = self._directory.namespace_store_path(name)
        return SqliteStore(path)

    @property
    def ca_path(self) -> Path | None:
        """The CA certificate that clients must trust, created if missing; None if the options
        have a certificate."""
        return self.tls.ca_path

    async def open_administration(self) -> ListenerSet | None:
        """Open the HTTP port of the whole broker, if the options have one."""
        port = self.options.admin_port
        if port is None or self.administration is not None:
            return self.administration
        listeners = administration_listeners(self, partial(make_broker_application, self), port)
        await listeners.open()
        self.administration = listeners
        return listeners

    # -- stopping and starting namespaces -------------------------------------------------

    async def stop_namespace(self, name: str) -> None:
        """Close one namespace, its port and its store; the others are not affected (rule M9)."""
        running = self.namespaces.pop(name.lower(), None)
        if running is None:
            raise ConfigurationError(
                f"Namespace {name[:60]!r} is not running", hint="Add the namespace first"
            )
        access = running.access
        await running.close()
        self.stopped[running.name] = StoppedNamespace(
            NamespaceSpec(running.name, running.port, tls_port=running.tls_port),
            access.rules,
            access.audience,
            self._clock,
        )

    async def start_namespace(self, name: str) -> RunningNamespace:
        """Start a stopped namespace again, on the same port."""
        stopped = self.stopped.get(name.lower())
        if stopped is None:
            raise ConfigurationError(
                f"Namespace {name[:60]!r} is not stopped", hint="Add it as a new namespace"
            )
        return await self.add_namespace(stopped.spec)

    async def remove_namespace(self, name: str) -> None:
        """Stop a namespace and remove it from this broker; its data directory stays."""
        if name.lower() not in self.stopped:
            await self.stop_namespace(name)
        self.stopped.pop(name.lower(), None)
        self._memory_stores.pop(name.lower(), None)

    # -- time -----------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Move the clock forward; everything that becomes due happens at once."""
        if not isinstance(self._clock, AdjustableClock):
            raise ConfigurationError(
                "The clock of this broker cannot be advanced",
                hint="Start the broker with `twinbus serve --adjustable-clock`, or create it with "
                "an AdjustableClock",
            )
        self._clock.advance(seconds)

    @property
    def clock(self) -> Clock:
        return self._clock

    def _watch_clock(self) -> None:
        if isinstance(self._clock, AdjustableClock) and self._unsubscribe is None:
            loop = asyncio.get_running_loop()
            self._unsubscribe = self._clock.subscribe(partial(self._clock_moved, loop))

    def _clock_moved(self, loop: asyncio.AbstractEventLoop) -> None:
        """Done at once when the loop's thread moves the clock; another thread only schedules it."""
        if asyncio._get_running_loop() is not loop:
            loop.call_soon_threadsafe(self._apply_clock)
        else:
            self._apply_clock()

    def _apply_clock(self) -> None:
        for running in self.namespaces.values():
            running.access.clock_moved()

    async def close(self) -> None:
        """Stop cleanly: what was accepted is on disk, and every connection was closed."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        running, self.namespaces = list(self.namespaces.values()), {}
        if self.administration is not None:
            await self.administration.close()
            self.administration = None
        await asyncio.gather(*(namespace.close() for namespace in running))
        if self._directory is not None:
            self._directory.close()
            self._directory = None
        self.tls.close()


def _certificate_store(options: BrokerOptions) -> CertificateStore:
    given = None
    if options.tls_certificate is not None and options.tls_key is not None:
        given = (options.tls_certificate, options.tls_key)
    names = names_for(options.host, options.tls_names)
    return CertificateStore(options.data_directory, names=names, given=given)


async def provide(namespace: Namespace, spec: NamespaceSpec) -> None:
    """Create the entities of the spec that do not exist: all of them, or nothing is changed."""
    queues = [
        QueueDescription(path=each) if isinstance(each, str) else each for each in spec.queues
    ]
    topics = [
        TopicDescription(path=each) if isinstance(each, str) else each for each in spec.topics
    ]
    wanted: list[tuple[QueueDescription, Sequence[RuleDescription] | None]] = [
        *((each, None) for each in [*queues, *topics]),
        *spec.subscriptions,
    ]

    def plan(draft: Draft) -> None:
        at_ms = namespace.now().wall_ms
        for description, rules in targets_first(wanted):
            draft.provide(description, rules, at_ms)

    if wanted:
        await namespace.changed(plan)
