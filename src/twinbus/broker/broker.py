"""A broker: several namespaces in one process, each on a port of its own (see doors.py).

    async with Broker(BrokerOptions(data_directory=Path("data"))) as broker:
        namespace = await broker.add_namespace(NamespaceSpec("demo", queues=("orders",)))
        print(namespace.connection_string)

Rule 1: the listener of a namespace opens after its store was recovered and checked.
Rule 2: loopback only, unless the options name another address.
Rule 3: whatever is served in plain text is served over TLS on the same port too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType

from twinbus.broker.access.claims import AuthorizationRule, Claim, RuleSet, WhichKey
from twinbus.broker.access.sas import LOOPBACK_NAMES, Audience
from twinbus.broker.catalogue_plan import Draft
from twinbus.broker.config_json import check_namespace_name
from twinbus.broker.config_topics import SubscriptionConfig
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.filters import RuleDescription
from twinbus.broker.entities.forwarding import targets_first
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.topic_description import TopicDescription
from twinbus.broker.entrance import (
    ListenerSet,
    application_of,
    application_of_broker,
    entrance_of_administration,
    entrance_of_namespace,
    shown_host,
)
from twinbus.broker.faults.board import FaultRegistry
from twinbus.broker.keys import ROOT_RULE, KeyRing
from twinbus.broker.namespace import Namespace
from twinbus.broker.options import BrokerOptions
from twinbus.broker.purging import Progress, Purged, purge_machine, would_purge
from twinbus.broker.resetting import reset_namespace
from twinbus.broker.running_topics import RunningTopics
from twinbus.broker.secure_random import SecureRandom
from twinbus.broker.stopped import StoppedNamespace
from twinbus.broker.store.datadir import DataDirectory
from twinbus.broker.store.memory import MemoryStore
from twinbus.broker.store.port import Store
from twinbus.broker.store.sqlite import SqliteStore
from twinbus.broker.tls.keeper import CertificateStore, names_for
from twinbus.broker.turns import Turns
from twinbus.clock import AdjustableClock, Clock, SystemClock
from twinbus.entity_path import parse_entity_path
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
    """One more port, for TLS alone: 5671 is where clients without the emulator flag go."""


class RunningNamespace(RunningTopics):
    """A namespace with its entrance."""

    def __init__(
        self, namespace: Namespace, entrance: ListenerSet, host: str, keys: KeyRing
    ) -> None:
        super().__init__(namespace)
        self.entrance = entrance
        self._keys = keys
        self.started_at_ms = namespace.now().wall_ms
        self.port: int = entrance.port
        self.tls_port: int | None = entrance.tls_port
        self._shown = shown_host(host)
        self.endpoint = f"sb://{self._shown}:{self.port}"
        namespace.audience = replace(
            audience_of(host),
            port=self.port,
            other_ports=frozenset() if self.tls_port is None else frozenset({self.tls_port}),
        )
        entrance.reception.http.make_application = partial(application_of, self)

    @property
    def connection_string(self) -> str:
        """For the stock SDKs, with the root key: handle it like a password."""
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
            raise ConfigurationError(
                f"There is no access rule {rule_name!r} here", hint="Add it first"
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
        return len(self._namespace.peers) + self.entrance.reception.connection_count

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

    # -- emptying -------------------------------------------------------------------------

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

        What a receiver holds is left to it; what is sent meanwhile stays.
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
        """Remove all messages, and all entities unless they are kept; how many those were."""
        return await reset_namespace(self._namespace, keep_entities=keep_entities)

    def _machine(self, path: str, dead_letters: bool) -> Queue:
        sub_queue = "dead-letter" if dead_letters else None
        machine = self._namespace.catalogue.find(parse_entity_path(path), sub_queue)
        if machine is None:
            kind = "dead-letter queue of" if dead_letters else "queue or subscription"
            raise ConfigurationError(
                f"There is no {kind} {path[:260]!r} in {self.name!r}", hint="Create it first"
            )
        return machine

    def _expect(self, path: str) -> Queue:
        queue = self.queue(path)
        if queue is None:
            raise ConfigurationError(
                f"There is no queue {path!r} in {self.name!r}", hint="Create it first"
            )
        return queue

    # -- keys -----------------------------------------------------------------------------

    def add_rule(self, name: str, claims: Claim) -> AuthorizationRule:
        """A new access rule for the whole namespace, with fresh keys."""
        rule = AuthorizationRule.generate(name, claims, SystemRandom().randbytes)
        self._set_rules(self._namespace.rules.with_rule(rule))
        return rule

    def remove_rule(self, name: str) -> None:
        """Forget a rule; who used it is cut off at once. One with Manage must remain."""
        rules = self._namespace.rules.without(name)
        if not any(Claim.MANAGE in rule.claims for rule in rules):
            raise ConfigurationError(
                f"The rule {name!r} is the last one with Manage", hint="Add another one first"
            )
        self._set_rules(rules)

    def regenerate_key(self, name: str, which: WhichKey) -> str:
        """Replace one key, and return the new one; who used the old one is cut off at once."""
        rules = self._namespace.rules.with_new_key(name, which, SystemRandom().randbytes)
        self._set_rules(rules)
        rule = next(rule for rule in rules if rule.name == name)
        return rule.primary_key if which == "primary" else rule.secondary_key

    def _set_rules(self, rules: RuleSet) -> None:
        self._keys.replace(self.name, rules)
        self._namespace.replace_rules(rules)

    @property
    def access(self) -> Namespace:
        """What the HTTP side needs to check tokens."""
        return self._namespace

    async def close(self) -> None:
        await self.entrance.close()
        await self._namespace.close()


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
        self.tls = _keeper(self.options)
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
        """Recover a namespace, open its port and make sure its queues exist."""
        name = check_namespace_name(spec.name).lower()
        if name in self.namespaces:
            raise ConfigurationError(
                f"The namespace {name!r} is served already", hint="Name each one once"
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
            entrance = entrance_of_namespace(namespace, self.tls, spec.port, spec.tls_port)
            await entrance.open()
        except BaseException:
            await namespace.close()
            raise
        running = RunningNamespace(namespace, entrance, self.options.host, self._keys)
        self.namespaces[name] = running
        self.stopped.pop(name, None)
        return running

    def shared_turns(self) -> Turns:
        """The namespaces share a loop, and so its time."""
        if self._turns is None:
            self._turns = Turns(asyncio.get_running_loop())
        return self._turns

    def _store(self, name: str) -> Store:
        if self._directory is None:
            # A namespace that is stopped and started again remembers, in memory too.
            return self._memory_stores.setdefault(name, MemoryStore())
        path: Path = self._directory.namespace_store_path(name)
        return SqliteStore(path)

    @property
    def ca_path(self) -> Path | None:
        """What clients trust to use TLS here; made if need be. None with a certificate given."""
        return self.tls.ca_path

    async def open_administration(self) -> ListenerSet | None:
        """Open the HTTP port of the whole broker, if the options want one."""
        port = self.options.admin_port
        if port is None or self.administration is not None:
            return self.administration
        entrance = entrance_of_administration(self, partial(application_of_broker, self), port)
        await entrance.open()
        self.administration = entrance
        return entrance

    # -- namespaces come and go -----------------------------------------------------------

    async def stop_namespace(self, name: str) -> None:
        """Really close one namespace; the others notice nothing (rule M9)."""
        running = self.namespaces.pop(name.lower(), None)
        if running is None:
            raise ConfigurationError(
                f"The namespace {name[:60]!r} is not served", hint="Add it first"
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
        """Serve a stopped namespace again, on the port it had."""
        stopped = self.stopped.get(name.lower())
        if stopped is None:
            raise ConfigurationError(
                f"The namespace {name[:60]!r} was not stopped", hint="Add it, if it is a new one"
            )
        return await self.add_namespace(stopped.spec)

    async def remove_namespace(self, name: str) -> None:
        """Stop a namespace and forget that it was here; what it keeps on disk stays there."""
        if name.lower() not in self.stopped:
            await self.stop_namespace(name)
        self.stopped.pop(name.lower(), None)
        self._memory_stores.pop(name.lower(), None)

    # -- time -----------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Move the clock; whatever falls due by that happens at once."""
        if not isinstance(self._clock, AdjustableClock):
            raise ConfigurationError(
                "This broker's clock cannot be moved",
                hint="Start it with an AdjustableClock, or serve --adjustable-clock",
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
        """Whoever moves the clock from the loop finds everything done; a thread has to wait."""
        if asyncio._get_running_loop() is not loop:
            loop.call_soon_threadsafe(self._look_at_clock)
        else:
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        for running in self.namespaces.values():
            running.access.clock_moved()

    async def close(self) -> None:
        """Stop cleanly: what was accepted is on disk, and every peer was told goodbye."""
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


def audience_of(host: str) -> Audience:
    """The names that lead to whoever listens on this host; loopback has no others."""
    names = LOOPBACK_NAMES | {host.lower()}
    return Audience(names, 0, any_name=host.lower() not in LOOPBACK_NAMES)


def _keeper(options: BrokerOptions) -> CertificateStore:
    given = None
    if options.tls_certificate is not None and options.tls_key is not None:
        given = (options.tls_certificate, options.tls_key)
    names = names_for(options.host, options.tls_names)
    return CertificateStore(options.data_directory, names=names, given=given)


async def provide(namespace: Namespace, spec: NamespaceSpec) -> None:
    """Make sure that the namespace has what the spec names: all of it, or nothing is changed."""
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
