"""Creates a pair: checks, and requests to both namespaces before the first send (P1 to P5).

    validate_pairing   refuses invalid pairs, before a namespace is contacted (P3)
    share_metering     the secondary counts operations as the primary does (C1)
    discover           backlog queues, their limits, whether the primary is reachable (P17)
    assemble_pair      the pair of what was found; nothing runs yet

Rule 1: an error leaves both factories unchanged.
Rule 2: an unreachable primary is not an error: applications must be able to pair in an outage.
Rule 3: an unreachable secondary is an error only if the options require the secondary. Otherwise
        the pair starts without a backlog, and is completed later (P19).
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

# A primary that drops packets must not delay the start of an application.
CONTACT_TIMEOUT_S: Final = 5.0
# If the secondary is not required: the time for its first response, which takes about eight round
# trips for a first link with TLS, and the time for all backlog queues.
REACH_TIMEOUT_S: Final = 2.0
SECONDARY_TIMEOUT_S: Final = 10.0


class NoNamespaceManager:
    """Used if the application has no namespace manager: refuses every request."""

    async def get_queue(self, path: str) -> QueueProperties:
        raise AccessRefused("The pair has no namespace manager", path=path)

    async def create_queue(self, queue: QueueProperties) -> QueueProperties:
        raise AccessRefused("The pair has no namespace manager", path=queue.path)


def validate_pairing(
    primary: MessagingFactory, options: PairedNamespaceOptions
) -> SendAvailabilityPairedNamespaceOptions:
    """Refuse factories and options that cannot form a pair (P3)."""
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        raise ConfigurationError(
            "Pairing options must be SendAvailabilityPairedNamespaceOptions, got "
            f"{type_shown(options)}",
            hint="Create them with the manager and the factory of the secondary",
        )
    secondary = options.messaging_factory
    SendAvailabilityPairedNamespaceOptions.check_partners(
        options.secondary_namespace_manager, secondary
    )
    if primary.is_paired:
        raise AlreadyPaired(
            f"MessagingFactory for {primary.address} is already paired",
            hint="Create another factory for another pair",
        )
    if primary.is_secondary:
        raise AlreadyPaired(
            f"MessagingFactory for {primary.address} is the secondary of another pair",
            hint="Create another factory for the primary",
        )
    if secondary is primary or is_same_place(secondary.address, primary.address):
        raise ConfigurationError(
            f"{primary.address} is both the primary and the secondary",
            hint="Use another namespace as the secondary",
        )
    if secondary.is_paired or secondary.is_secondary:
        raise AlreadyPaired(
            f"MessagingFactory for {secondary.address} already belongs to a pair",
            hint="Create a separate factory for each pair; they may use the same namespace",
        )
    return options


@contextmanager
def share_metering(primary: MessagingFactory, secondary: MessagingFactory) -> Iterator[None]:
    """Use metering and audit of the primary on the secondary as well: diverted messages would be
    missing otherwise. Undone after an error."""
    wanted, own = primary.meter, secondary.meter
    with ExitStack() as back:
        if wanted is not None and own is None:
            meter = secondary.new_meter(wanted.directory, wanted.has_audit, wanted.keep_days)
            secondary.set_meter(meter)
            back.callback(secondary.set_meter, None)
        elif wanted is not None and own is not None:
            back.callback(setattr, own, "has_audit", own.has_audit)
            own.has_audit |= wanted.has_audit
        yield
        back.pop_all()


@dataclass(frozen=True, slots=True)
class PairSetup:
    """What was found out before a pair is assembled."""

    name: str
    """The name of the primary in the paths of the backlog queues."""
    backlog: Backlog | None
    outage: str
    """Why the primary is unreachable; empty if it is not."""
    backlog_error: str = ""
    """Why the pair has no backlog; empty if it has one."""


async def discover(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions
) -> PairSetup:
    """Find out what must be known of both namespaces before the first send."""
    contact = asyncio.create_task(_check_primary(primary))
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
    """The claims that the hosted syphon lacks, as far as they can be checked now (P18)."""
    found: list[MissingClaim] = []
    if options.syphon.secondary is None:
        found += await missing_listen(options.messaging_factory.driver, queues)
    if options.syphon.primary is None and not outage:
        allowed = options.allowed_destinations
        destinations = known_destinations(primary.known_paths, allowed, name)
        found += await missing_send(primary.driver, destinations)
    return found


async def discover_later(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions, name: str
) -> PairSetup:
    """The same for an incomplete pair; raises the error if there is still no backlog. The primary
    is checked last: its state matters at the time when sends can be diverted."""
    await _check_reachable(options.messaging_factory, name)
    backlog = await _backlog(primary, options, name)
    try:
        outage = await _check_primary(primary)
    except ServiceError:
        outage = ""  # Sends of the application report the error.
    # A missing claim of the hosted syphon does not affect sends: the syphon reports it.
    return PairSetup(name, backlog, outage)


async def _backlog_if_reachable(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions, name: str
) -> tuple[Backlog | None, str]:
    """The backlog; or None and the reason if the secondary is unreachable and not required."""
    if options.require_secondary:
        return await _backlog(primary, options, name), ""
    try:
        async with asyncio.timeout(SECONDARY_TIMEOUT_S):
            await _check_reachable(options.messaging_factory, name)
            return await _backlog(primary, options, name), ""
    except (ServiceError, NoBacklogQueue) as error:
        if not error.is_transient:
            raise
        return None, error_summary(error)
    except TimeoutError:
        late = f"The backlog queues were not ready within {SECONDARY_TIMEOUT_S:g} s"
        return None, error_summary(OperationTimeout(late))


async def _check_reachable(secondary: MessagingFactory, name: str) -> None:
    """Return once the secondary has responded, with any answer; raise an error if it does not.
    Provisioning would find that out only after its long timeouts. Two paths are tried, because a
    single entity may be unresponsive."""
    attempts = [
        asyncio.create_task(_try_attach(secondary, path))
        for path in (backlog_paths(name, 1)[0], PROBE_PATH)
    ]
    try:
        for answer in asyncio.as_completed(attempts):
            if await answer is None:
                return
        unanswered = await attempts[0]
        assert unanswered is not None
        raise unanswered
    finally:
        for each in attempts:
            each.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)


async def _try_attach(secondary: MessagingFactory, path: str) -> ServiceError | None:
    """None for any answer, or the error of an unreachable namespace."""
    sender = secondary.driver.sender(path)
    try:
        await sender.attach(timeout_s=REACH_TIMEOUT_S)
    except (CommunicationError, OperationTimeout) as error:
        return error
    except ServiceError:
        pass  # Any answer means that it is reachable.
    finally:
        await sender.close()
    return None


async def _backlog(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions, name: str
) -> Backlog:
    """Find or create backlog queues, with a link to each (P2, P4, P5, P18)."""
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
        # A message must fit into every queue (P20).
        message_bytes_max=min(each.message_bytes_max for each in provisioned.links.values()),
        batch_bytes_max=min(each.batch_limit_bytes for each in provisioned.links.values()),
        owner=owner_mark(primary.address, name),
    )


async def _check_primary(primary: MessagingFactory) -> str:
    """Why the primary is unreachable now; empty if it is not (P17, P18)."""
    path, credential = primary.known_path, primary.routing.rules.credential
    sender = primary.driver.sender(path or PROBE_PATH)
    try:
        await sender.attach(timeout_s=CONTACT_TIMEOUT_S)
        credential.has_succeeded = True
    except EntityNotFound:
        # The service returns it only for an accepted credential (P7).
        credential.has_succeeded = True
    except (CommunicationError, OperationTimeout) as error:
        return f"unreachable when the pair was created: {error}"
    except AuthenticationFailed as error:
        if credential.has_succeeded:  # A failed token service causes the same error (P7).
            return f"authentication failed with a credential that worked before: {error}"
        if path is not None:
            raise
    except ServiceError:
        pass  # Any other answer means that it is reachable.
    finally:
        await sender.close()
    return ""


async def _check_manager(options: SendAvailabilityPairedNamespaceOptions) -> None:
    """A manager of another namespace would create queues that no message is sent to (P18)."""
    manager, factory = options.secondary_namespace_manager, options.messaging_factory
    if manager is None or is_same_place(manager.address, factory.address):
        return
    names: list[str | None] = [None, None]
    if is_same_host(manager.address, factory.address):
        # One namespace can have several ports, one of them for TLS.
        try:
            names = [await manager.namespace_name(), await factory.namespace_name()]
        except ServiceError as error:
            if error.is_transient:
                raise  # No name was returned that could differ.
    if names[0] is None or names[0] != names[1]:
        raise ConfigurationError(
            f"The manager uses namespace {_format_namespace(manager.address, names[0])}, the "
            f"factory uses {_format_namespace(factory.address, names[1])}",
            hint="Create both with the connection string of the secondary",
        )


def _format_namespace(address: NamespaceAddress, name: str | None) -> str:
    return str(address) if name is None else f"{name!r} at {address}"


async def _primary_name(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions
) -> str:
    """The primary is asked for its name only if its host name does not contain it."""
    reported = None
    configured = options.namespace_name or primary.configured_name
    if configured is None and has_no_name(primary.address):
        try:
            reported = await primary.namespace_name()
        except ServiceError as error:
            _log.warning("Namespace %s did not return its name: %s", primary.address, error)
    return primary_name_of(primary.address, configured=configured, reported=reported)


def assemble_pair(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions, found: PairSetup
) -> Pair:
    """Assemble the pair; nothing runs yet. Steps that can fail come first: an error leaves no
    listener, no open file and unchanged options."""
    routing = primary.routing.paired(options, found.backlog, found.outage, found.backlog_error)
    pair = _create_pair(primary, options, found, routing)
    if primary.meter is not None:
        primary.meter.set_name(found.name)
    journal = None
    if options.journal_path is not None:
        journal = Journal(options.journal_path, keep_days=options.journal_keep_days)
    routing.hub.attach_pair(str(options.messaging_factory.address), journal)
    if options.on_event is not None:
        routing.hub.subscribe(options.on_event)
    options.found_queues(0 if found.backlog is None else len(found.backlog.queues))
    return pair


def _create_pair(
    primary: MessagingFactory,
    options: SendAvailabilityPairedNamespaceOptions,
    found: PairSetup,
    routing: SendRouter,
) -> Pair:
    pair = Pair(
        primary,
        options.messaging_factory,
        routing=routing,
        pinger=Pinger(routing, primary.driver, options.ping_mode, lambda: _check_primary(primary)),
        commands=None
        if options.control_path is None
        else OperatorCommandWatcher(options.control_path, routing),
        hosts_syphon=options.enable_syphon,
    )
    if found.backlog is not None:
        _equip(pair, primary, options, found.name, found.backlog.queues)
        return pair
    # Whether this application can host a syphon is checked now, for the queues to be created.
    wanted = backlog_paths(found.name, options.wanted_queue_count)
    _equip(pair, primary, options, found.name, wanted)

    def complete(later: PairSetup) -> None:
        assert later.backlog is not None
        _equip(pair, primary, options, later.name, later.backlog.queues)
        options.found_queues(len(later.backlog.queues))
        pair.complete(later.backlog, later.outage)

    pair.completion = Completion(
        lambda: discover_later(primary, options, found.name),
        complete,
        pair.set_backlog_error,
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
    """Set the parts of a pair that use its backlog queues."""
    secondary, routing = options.messaging_factory, pair.routing
    manager = options.secondary_namespace_manager
    pair.reader = BacklogReader(
        secondary.driver, manager, queues, search=BacklogSearch(secondary.driver.receiver, name)
    )
    pair.monitor = BacklogMonitor(routing, pair.reader, options.thresholds)
    if options.enable_syphon:
        # A syphon on Spark needs only the credentials, which the amqp driver provides.
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
            on_moved=pair.count_moved,
            on_foreign=pair.foreign_messages,
            on_refused=pair.claim_missing,
        )
        pair.make_syphon = make_syphon_factory(job)
