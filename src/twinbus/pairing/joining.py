"""Making a pair: what is checked first, and what is found out before the first send (P1 to P5).

    check_pairing    refusals, before anything is contacted (P3)
    books_handed_on  the secondary keeps books as the primary does (C1)
    find_out         backlog queues, the size they take, whether the primary can be contacted (P17)
    join             the pair, of what was found; nothing runs yet

Rule 1: an error leaves both factories as they were.
Rule 2: a primary that is away is no error: pairing during an outage is what pairing is for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.core.chunk import HomeRules
from twinbus.drivers.management import QueueProperties
from twinbus.drivers.port import Driver, LinkFacts
from twinbus.errors import ConfigurationError
from twinbus.pairing.backlog_queues import has_no_name, is_same_place, primary_name_of
from twinbus.pairing.backlog_reader import BacklogReader
from twinbus.pairing.hosting import SyphonJob, syphon_maker
from twinbus.pairing.journal import Journal
from twinbus.pairing.mover_gate import UNKNOWN_PATH
from twinbus.pairing.options import (
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.pairing.orders import OrderWatch
from twinbus.pairing.pair import Pair
from twinbus.pairing.pinger import Pinger
from twinbus.pairing.provisioning import provision
from twinbus.pairing.routing import Backlog, Routing
from twinbus.pairing.watch import BacklogWatch
from twinbus.service_errors import (
    AccessRefused,
    AlreadyPaired,
    AuthenticationFailed,
    CommunicationError,
    EntityNotFound,
    OperationTimeout,
    ServiceError,
)

if TYPE_CHECKING:
    from twinbus.pairing.factory import MessagingFactory

__all__ = ["Findings", "books_handed_on", "check_pairing", "find_out", "join"]

_log = logging.getLogger("twinbus.pairing")

# A primary in a black hole must not hold up the start of an application.
CONTACT_TIMEOUT_S: Final = 5.0
# What a queue of Azure's standard tier takes; asked for, but the answer is not waited for long.
MESSAGE_BYTES_MAX: Final = 262_144
LIMIT_TIMEOUT_S: Final = 10.0


class NoManager:
    """Stands for a namespace manager that the application does not have."""

    async def get_queue(self, path: str) -> QueueProperties:
        raise AccessRefused("no namespace manager was given", path=path)

    async def create_queue(self, queue: QueueProperties) -> QueueProperties:
        raise AccessRefused("no namespace manager was given", path=queue.path)


def check_pairing(
    primary: MessagingFactory, options: PairedNamespaceOptions
) -> SendAvailabilityPairedNamespaceOptions:
    """Refuse what can never be a pair (P3)."""
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        raise ConfigurationError(
            f"a {type(options).__name__} is no way to pair namespaces",
            hint="Use SendAvailabilityPairedNamespaceOptions",
        )
    secondary = options.messaging_factory
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
def books_handed_on(primary: MessagingFactory, secondary: MessagingFactory) -> Iterator[None]:
    """Count and audit on both sides of a pair what its user wants counted and audited on the
    primary: a message that takes the detour would be missing. Taken back after an error."""
    wanted, own = primary.books, secondary.books
    with ExitStack() as back:
        if wanted is not None and own is None:
            made = secondary.new_books(wanted.directory, wanted.has_audit)
            secondary.keep_books(made)
            back.callback(secondary.keep_books, None)
        elif wanted is not None and own is not None:
            back.callback(setattr, own, "has_audit", own.has_audit)
            own.has_audit |= wanted.has_audit
        yield
        back.pop_all()


@dataclass(frozen=True, slots=True)
class Findings:
    """What a pair is made of."""

    name: str
    """The primary's, in the paths of the backlog queues."""
    backlog: Backlog
    outage: str
    """Why the primary cannot be contacted, or nothing."""


async def find_out(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions
) -> Findings:
    """Ask both namespaces for what must be known before the first send."""
    contact = asyncio.create_task(_outage_of(primary))
    try:
        name = await _primary_name(primary, options)
        provisioned = await provision(
            manager=options.secondary_namespace_manager or NoManager(),
            driver=options.messaging_factory.driver,
            primary_name=name,
            count=options.backlog_queue_count,
        )
        limits = await _limits(options.messaging_factory.driver, provisioned.paths[0])
        outage = await contact
    finally:
        contact.cancel()
        await asyncio.gather(contact, return_exceptions=True)
    backlog = Backlog(
        driver=options.messaging_factory.driver,
        queues=provisioned.paths,
        message_bytes_max=limits.message_bytes_max,
        batch_bytes_max=limits.batch_limit_bytes,
    )
    for warning in provisioned.warnings():
        _log.warning("%s", warning)
    return Findings(name, backlog, outage)


async def _outage_of(primary: MessagingFactory) -> str:
    """Why the primary cannot be contacted, or nothing (P17)."""
    if primary.routing.rules.credential.has_worked:
        return ""  # It has taken a message in this process: let the sends find out.
    path = primary.known_path
    sender = primary.driver.sender(path or UNKNOWN_PATH)
    try:
        await sender.attach(timeout_s=CONTACT_TIMEOUT_S)
        primary.routing.rules.credential.has_worked = True
    except EntityNotFound:
        # Told only to somebody whose credential was taken (P7).
        primary.routing.rules.credential.has_worked = True
    except (CommunicationError, OperationTimeout) as error:
        return f"out of reach when the pair was made: {error}"
    except AuthenticationFailed:
        if path is not None:
            raise
    except ServiceError:
        pass  # Whatever else it says, it can say something.
    finally:
        await sender.close()
    return ""


async def _primary_name(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions
) -> str:
    """The primary is asked for its name only where its host does not tell it."""
    told = None
    given = options.namespace_name or primary.given_name
    if given is None and has_no_name(primary.address):
        try:
            told = await primary.namespace_name()
        except ServiceError as error:
            _log.warning("%s did not tell its name: %s", primary.address, error)
    return primary_name_of(primary.address, given=given, told=told)


async def _limits(secondary: Driver, queue: str) -> LinkFacts:
    """What a backlog queue takes; a secondary that does not say is taken for a small one."""
    sender = secondary.sender(queue)
    try:
        return await sender.attach(timeout_s=LIMIT_TIMEOUT_S)
    except ServiceError as error:
        _log.warning("the size limit of %s is not known, 256 KB assumed: %s", queue, error)
        return LinkFacts(MESSAGE_BYTES_MAX)
    finally:
        await sender.close()


def join(
    primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions, found: Findings
) -> Pair:
    """Put the pair together; nothing runs yet. What can fail comes first: after an error nobody
    listens, no file is open and the options are as they were."""
    routing = primary.routing.paired(options, found.backlog, found.outage)
    pair = _pair(primary, options, found.name, routing, found.backlog.queues)
    if primary.books is not None:
        primary.books.named(found.name)
    journal = None if options.journal_path is None else Journal(options.journal_path)
    routing.hub.paired(str(options.messaging_factory.address), journal)
    if options.on_event is not None:
        routing.hub.listen(options.on_event)
    options.found_queues(len(found.backlog.queues))
    return pair


def _pair(
    primary: MessagingFactory,
    options: SendAvailabilityPairedNamespaceOptions,
    name: str,
    routing: Routing,
    queues: tuple[str, ...],
) -> Pair:
    secondary = options.messaging_factory
    reader = BacklogReader(secondary.driver, options.secondary_namespace_manager, queues)
    pair = Pair(
        primary,
        secondary,
        routing=routing,
        reader=reader,
        pinger=Pinger(routing, primary.driver, options.ping_mode, lambda: _outage_of(primary)),
        watch=BacklogWatch(routing, reader, options.thresholds),
        orders=None if options.control_path is None else OrderWatch(options.control_path, routing),
        hosts_syphon=options.enable_syphon,
    )
    if options.enable_syphon:
        job = SyphonJob(
            primary=primary.mover_driver(),
            secondary=secondary.mover_driver(),
            queues=queues,
            rules=HomeRules(
                primary_name=name,
                allowed=options.allowed_destinations,
                ttl_policy=options.ttl_policy,
            ),
            hosting=options.syphon,
            metering=None if primary.books is None else primary.books.directory,
            on_end=pair.syphon_ended,
            on_stall=pair.syphon_stalled,
            on_dead_letters=pair.dead_lettered,
        )
        pair.make_syphon = syphon_maker(job)
    return pair
