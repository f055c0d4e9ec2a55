"""Making a pair: what is checked first, and what is found out before the first send (P1 to P5).

    validate_pairing    refusals, before anything is contacted (P3)
    share_metering  the secondary keeps books as the primary does (C1)
    discover         backlog queues, the size they take, whether the primary can be contacted (P17)
    assemble_pair             the pair, of what was found; nothing runs yet

Rule 1: an error leaves both factories as they were.
Rule 2: a primary that is away is no error: pairing during an outage is what pairing is for.
Rule 3: a secondary that is unreachable is one only where the options require it. Otherwise the
        pair begins without a backlog, and is completed later (P19).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.common.argument_types import type_shown
from twinbus.drivers.administration import QueueProperties
from twinbus.drivers.interface import NamespaceAddress
from twinbus.errors import (
    AccessRefused,
    AlreadyPaired,
    AuthenticationFailed,
    CommunicationError,
    ConfigurationError,
    EntityNotFound,
    NoBacklogQueue,
    OperationTimeout,
    ServiceError,
)
from twinbus.failover.events import error_summary
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.primary_probe import PROBE_PATH
from twinbus.pairing.backlog_monitor import BacklogMonitor, BacklogReader
from twinbus.pairing.backlog_queues import (
    backlog_paths,
    has_no_name,
    is_same_host,
    is_same_place,
    owner_mark,
    primary_name_of,
)
from twinbus.pairing.events import Journal
from twinbus.pairing.operator_commands import OperatorCommandWatcher
from twinbus.pairing.options import (
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.pairing.pair import Pair
from twinbus.pairing.pair_completion import Completion
from twinbus.pairing.pinger import Pinger
from twinbus.pairing.provisioning import open_links, provision
from twinbus.pairing.routing import Backlog, SendRouter
from twinbus.pairing.syphon_hosting import (
    MissingClaim,
    SyphonRequest,
    known_destinations,
    make_syphon_factory,
    missing_listen,
    missing_send,
)

if TYPE_CHECKING:
    from twinbus.pairing.client.factory import MessagingFactory

__all__ = ["PairSetup", "assemble_pair", "discover", "share_metering", "validate_pairing"]

_log = logging.getLogger("twinbus.pairing")

# A primary in a black hole must not hold up the start of an application.
CONTACT_TIMEOUT_S: Final = 5.0
# Where the secondary is not required: how long it has to answer at all, which takes some eight
# round trips for a first link with TLS, and how long to show its queues.
REACH_TIMEOUT_S: Final = 2.0
SECONDARY_TIMEOUT_S: Final = 10.0


class NoNamespaceManager:
    """Stands for a namespace manager that the application does not have."""

    async def get_queue(self, path: str) -> QueueProperties:
        raise AccessRefused("no namespace manager was given", path=path)

    async def create_queue(self, queue: QueueProperties) -> QueueProperties:
        raise AccessRefused("no namespace manager was given", path=queue.path)


def validate_pairing(
    primary: MessagingFactory, options: PairedNamespaceOptions
) -> SendAvailabilityPairedNamespaceOptions:
    """Refuse what can never be a pair (P3)."""
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        raise ConfigurationError(
            f"options must be SendAvailabilityPairedNamespaceOptions, got {type_shown(options)}",
            hint="Build them with the manager and the factory of the secondary",
        )
    secondary = options.messaging_factory
    SendAvailabilityPairedNamespaceOptions.check_partners(
        options.secondary_namespace_manager, secondary
    )
    if primary.is_paired:
        raise AlreadyPaired(f"{primary.address} is paired already", hint="A factory pairs once")
    if primary.is_secondary:
        raise AlreadyPaired(f"{primary.address} is the secondary of another factory")
    if secondary is primary or is_same_place(secondary.address, primary.address):
        raise ConfigurationError(
            f"{primary.address} cannot be its own secondary", hint="Name another namespace"
        )
    if secondary.is_paired or secondary.is_secondary:
        raise AlreadyPaired(
            f"the factory of {secondary.address} belongs to a pair already",
            hint="Make a factory of its own for every pair; they may use one namespace",
        )
    return options


@contextmanager
def share_metering(primary: MessagingFactory, secondary: MessagingFactory) -> Iterator[None]:
    """Count and audit on both sides of a pair what its user wants counted and audited on the
    primary: a message that takes the detour would be missing. Taken back after an error."""
    wanted, own = primary.meter, secondary.meter
    with ExitStack() as back:
        if wanted is not None and own is None:
            made = secondary.new_meter(wanted.directory, wanted.has_audit, wanted.keep_days)
            secondary.set_meter(made)
            back.callback(secondary.set_meter, None)
        elif wanted is not None and own is not None:
            back.callback(setattr, own, "has_audit", own.has_audit)
            own.has_audit |= wanted.has_audit
        yield
        back.pop_all()


@dataclass(frozen=True, slots=True)
class PairSetup:
    """What a pair is made of."""

    name: str
    """The primary's, in the paths of the backlog queues."""
    backlog: Backlog | None
    outage: str
    """Why the primary cannot be contacted, or nothing."""
    backlog_error: str = ""
    """Why there is no backlog."""


async def discover(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions
) -> PairSetup:
    """Ask both namespaces for what must be known before the first send."""
    contact = asyncio.create_task(_outage_of(primary))
    try:
        name = await _primary_name(primary, options)
        backlog, backlog_error = await _backlog_if_reachable(primary, options, name)
        outage = await contact
    finally:
        contact.cancel()
        await asyncio.gather(contact, return_exceptions=True)
    if options.enable_syphon:
        queues = () if backlog is None else backlog.queues
        for missing in await _missing_claims(primary, options, name, queues, outage):
            raise missing.error()
    return PairSetup(name, backlog, outage, backlog_error)


async def _missing_claims(
    primary: MessagingFactory,
    options: SendAvailabilityPairedNamespaceOptions,
    name: str,
    queues: Sequence[str],
    outage: str,
) -> list[MissingClaim]:
    """What the hosted syphon lacks, as far as that can be known now (P18)."""
    found: list[MissingClaim] = []
    if options.syphon.secondary is None:
        found += await missing_listen(options.messaging_factory.driver, queues)
    if options.syphon.primary is None and not outage:
        allowed = options.allowed_destinations
        destinations = known_destinations(primary.known_paths, allowed, name)
        found += await missing_send(primary.driver, destinations)
    return found


async def find_out_later(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions, name: str
) -> PairSetup:
    """The same for a pair that waits for its secondary; raises why there is still no backlog. The
    primary is asked last: what counts is whether it can be contacted when sends can be diverted."""
    await _reach(options.messaging_factory, name)
    backlog = await _backlog(primary, options, name)
    try:
        outage = await _outage_of(primary)
    except ServiceError:
        outage = ""  # Its sends tell the application what is wrong.
    # A claim that the hosted syphon lacks keeps no send from its backlog: the syphon reports it.
    return PairSetup(name, backlog, outage)


async def _backlog_if_reachable(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions, name: str
) -> tuple[Backlog | None, str]:
    """The backlog; or None and why, where the secondary is unreachable and not required."""
    if options.require_secondary:
        return await _backlog(primary, options, name), ""
    try:
        async with asyncio.timeout(SECONDARY_TIMEOUT_S):
            await _reach(options.messaging_factory, name)
            return await _backlog(primary, options, name), ""
    except (ServiceError, NoBacklogQueue) as error:
        if not error.is_transient:
            raise
        return None, error_summary(error)
    except TimeoutError:
        late = f"the backlog queues were not ready within {SECONDARY_TIMEOUT_S:g} s"
        return None, error_summary(OperationTimeout(late))


async def _reach(secondary: MessagingFactory, name: str) -> None:
    """Return once the secondary has answered, whatever it says; otherwise raise why it does not.
    Without this question provisioning would find out with all its patience. Two are asked, because
    one alone may be a silent entity."""
    asked = [
        asyncio.create_task(_answer(secondary, path))
        for path in (backlog_paths(name, 1)[0], PROBE_PATH)
    ]
    try:
        for answer in asyncio.as_completed(asked):
            if await answer is None:
                return
        unanswered = await asked[0]
        assert unanswered is not None
        raise unanswered
    finally:
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _answer(secondary: MessagingFactory, path: str) -> ServiceError | None:
    """None for an answer, or the error of a namespace that gives none."""
    sender = secondary.driver.sender(path)
    try:
        await sender.attach(timeout_s=REACH_TIMEOUT_S)
    except (CommunicationError, OperationTimeout) as error:
        return error
    except ServiceError:
        pass  # Whatever it says, it can say something.
    finally:
        await sender.close()
    return None


async def _backlog(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions, name: str
) -> Backlog:
    """Have backlog queues ready, with a link to each (P2, P4, P5, P18)."""
    await _check_manager(options)
    secondary = options.messaging_factory
    provisioned = await provision(
        manager=options.secondary_namespace_manager or NoNamespaceManager(),
        driver=secondary.driver,
        primary_name=name,
        count=options.wanted_queue_count,
        allow_lossy=options.allow_lossy_backlog,
        owner=owner_mark(primary.address, name),
    )
    provisioned = await open_links(secondary.driver, provisioned, address=secondary.address)
    for warning in provisioned.warnings():
        _log.warning("%s", warning)
    return Backlog(
        driver=secondary.driver,
        queues=provisioned.paths,
        # A message must fit whichever queue it is sent to (P20).
        message_bytes_max=min(each.message_bytes_max for each in provisioned.links.values()),
        batch_bytes_max=min(each.batch_limit_bytes for each in provisioned.links.values()),
        owner=owner_mark(primary.address, name),
    )


async def _outage_of(primary: MessagingFactory) -> str:
    """Why the primary cannot be contacted now, or nothing (P17, P18)."""
    path, credential = primary.known_path, primary.routing.rules.credential
    sender = primary.driver.sender(path or PROBE_PATH)
    try:
        await sender.attach(timeout_s=CONTACT_TIMEOUT_S)
        credential.has_succeeded = True
    except EntityNotFound:
        # Told only to somebody whose credential was taken (P7).
        credential.has_succeeded = True
    except (CommunicationError, OperationTimeout) as error:
        return f"out of reach when the pair was made: {error}"
    except AuthenticationFailed as error:
        if credential.has_succeeded:  # A broken token service looks the same (P7).
            return f"its token service does not answer as before: {error}"
        if path is not None:
            raise
    except ServiceError:
        pass  # Whatever else it says, it can say something.
    finally:
        await sender.close()
    return ""


async def _check_manager(options: SendAvailabilityPairedNamespaceOptions) -> None:
    """A manager of another namespace would make the queues where no message is sent (P18)."""
    manager, factory = options.secondary_namespace_manager, options.messaging_factory
    if manager is None or is_same_place(manager.address, factory.address):
        return
    names: list[str | None] = [None, None]
    if is_same_host(manager.address, factory.address):
        # One namespace can have several doors, of which one is for TLS.
        try:
            names = [await manager.namespace_name(), await factory.namespace_name()]
        except ServiceError as error:
            if error.is_transient:
                raise  # It said nothing that would be another name.
    if names[0] is None or names[0] != names[1]:
        raise ConfigurationError(
            f"the manager is of {_shown(manager.address, names[0])} and the factory of "
            f"{_shown(factory.address, names[1])}, which are not the same namespace",
            hint="Make both of them with the connection string of the secondary",
        )


def _shown(address: NamespaceAddress, name: str | None) -> str:
    return str(address) if name is None else f"{name!r} at {address}"


async def _primary_name(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions
) -> str:
    """The primary is asked for its name only where its host does not tell it."""
    said = None
    given = options.namespace_name or primary.given_name
    if given is None and has_no_name(primary.address):
        try:
            said = await primary.namespace_name()
        except ServiceError as error:
            _log.warning("%s did not tell its name: %s", primary.address, error)
    return primary_name_of(primary.address, given=given, told=said)


def assemble_pair(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions, found: PairSetup
) -> Pair:
    """Put the pair together; nothing runs yet. What can fail comes first: after an error nobody
    listens, no file is open and the options are as they were."""
    routing = primary.routing.paired(options, found.backlog, found.outage, found.backlog_error)
    pair = _pair(primary, options, found, routing)
    if primary.meter is not None:
        primary.meter.set_name(found.name)
    journal = None
    if options.journal_path is not None:
        journal = Journal(options.journal_path, keep_days=options.journal_keep_days)
    routing.hub.paired(str(options.messaging_factory.address), journal)
    if options.on_event is not None:
        routing.hub.subscribe(options.on_event)
    options.found_queues(0 if found.backlog is None else len(found.backlog.queues))
    return pair


def _pair(
    primary: MessagingFactory,
    options: SendAvailabilityPairedNamespaceOptions,
    found: PairSetup,
    routing: SendRouter,
) -> Pair:
    pair = Pair(
        primary,
        options.messaging_factory,
        routing=routing,
        pinger=Pinger(routing, primary.driver, options.ping_mode, lambda: _outage_of(primary)),
        orders=None
        if options.control_path is None
        else OperatorCommandWatcher(options.control_path, routing),
        hosts_syphon=options.enable_syphon,
    )
    if found.backlog is not None:
        _equip(pair, primary, options, found.name, found.backlog.queues)
        return pair
    # Whether this application can host a syphon is said now, for the queues that are to be.
    wanted = backlog_paths(found.name, options.wanted_queue_count)
    _equip(pair, primary, options, found.name, wanted)

    def complete(later: PairSetup) -> None:
        assert later.backlog is not None
        _equip(pair, primary, options, later.name, later.backlog.queues)
        options.found_queues(len(later.backlog.queues))
        pair.completed(later.backlog, later.outage)

    pair.completion = Completion(
        lambda: find_out_later(primary, options, found.name),
        complete,
        pair.unreachable,
        routing.rng,
    )
    return pair


def _equip(
    pair: Pair,
    primary: MessagingFactory,
    options: SendAvailabilityPairedNamespaceOptions,
    name: str,
    queues: tuple[str, ...],
) -> None:
    """Give a pair what works on its backlog queues."""
    secondary, routing = options.messaging_factory, pair.routing
    manager = options.secondary_namespace_manager
    pair.reader = BacklogReader(
        secondary.driver, manager, queues, search=BacklogSearch(secondary.driver.receiver, name)
    )
    pair.watch = BacklogMonitor(routing, pair.reader, options.thresholds)
    if options.enable_syphon:
        # Of a syphon on Spark only the credentials are needed here, which the lean one hands out.
        driver = options.syphon.driver if options.syphon.engine == "local" else "amqp"
        job = SyphonRequest(
            primary=primary.mover_driver(driver),
            secondary=secondary.mover_driver(driver),
            queues=queues,
            rules=DeliveryRules(
                primary_name=name,
                allowed=options.allowed_destinations,
                ttl_policy=options.ttl_policy,
                owner=owner_mark(primary.address, name),
                accepted_owners=options.accept_owners,
            ),
            list_queues=None if manager is None else manager.get_queues,
            hosting=options.syphon,
            metering=None if primary.meter is None else primary.meter.directory,
            keep_days=None if primary.meter is None else primary.meter.keep_days,
            on_end=pair.syphon_ended,
            on_stall=pair.syphon_stalled,
            on_dead_letters=pair.dead_lettered,
            on_moved=pair.moved,
            on_foreign=pair.foreign_found,
            on_refused=pair.claim_missing,
        )
        pair.make_syphon = make_syphon_factory(job)
