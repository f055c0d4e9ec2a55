"""Finds or creates backlog queues on the secondary, before they are needed (P2, P4, P5).

    with Manage       each queue is read, and created if it is missing
    without Manage    a sender attaches to each, and the reachable ones are used
    in both cases     a link to each through the factory that will send (P18)

Rule 1: an existing queue is never changed and never deleted; further queues are ignored.
Rule 2: some queues are better than none: a queue that failed is reported with its reason, and it
        is an error only if no queue can be used.
Rule 3: another process may do the same at this moment: EntityExists is not an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from twinbus.common.event_loop import bounded_gather
from twinbus.drivers.administration import QueueProperties
from twinbus.drivers.interface import Driver, LinkProperties
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityExists,
    EntityNotFound,
    NoBacklogQueue,
    OperationTimeout,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)
from twinbus.pairing.backlog_queues import (
    PropertyDrift,
    backlog_paths,
    backlog_queue,
    drift_of,
    unsafe_property,
)

__all__ = ["BacklogManager", "Missing", "Provisioned", "open_links", "provision"]

# Enough to create ten queues in a second or two, too few to be throttled.
AT_ONCE_MAX: Final = 4
ATTEMPTS_MAX: Final = 3
PAUSE_S: Final = 1.0
DEFAULT_TIMEOUT_S: Final = 120.0
LINKS_TIMEOUT_S: Final = 30.0

# Errors of the administration as a whole, and not of one queue.
_ADMINISTRATION_ERRORS: Final = (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    OperationTimeout,
    ServerBusy,
    ServiceInternalError,
)


class BacklogManager(Protocol):
    """What provisioning needs of a namespace manager."""

    async def get_queue(self, path: str) -> QueueProperties:
        """Raises EntityNotFound."""

    async def create_queue(self, queue: QueueProperties) -> QueueProperties:
        """Raises EntityExists."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A backlog queue that cannot be used, and why."""

    path: str
    reason: str
    error: ServiceError | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """The backlog queues; every path is in exactly one of created, found and missing."""

    created: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    drift: tuple[PropertyDrift, ...] = ()
    unmanaged: str | None = None
    """Why the queues could not be read, only attached to; None if they could."""
    paths: tuple[str, ...] = ()
    """The usable queues, in the order of their index."""
    links: Mapping[str, LinkProperties] = field(default_factory=dict)
    """The properties of the sending links that were opened, by queue."""

    def warnings(self) -> tuple[str, ...]:
        """What an operator should check, one sentence each."""
        unseen = (
            ()
            if self.unmanaged is None
            else (f"The properties of the backlog queues are unknown: {self.unmanaged}",)
        )
        return (
            *unseen,
            *(f"Backlog queue {each} (not used)" for each in self.missing),
            *(f"Backlog queue {each} (used unchanged)" for each in self.drift),
        )


async def provision(
    *,
    manager: BacklogManager,
    driver: Driver,
    primary_name: str,
    count: int,
    allow_lossy: bool = False,
    owner: str = "",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    pause_s: float = PAUSE_S,
) -> Provisioned:
    """Find or create ``count`` backlog queues; raises NoBacklogQueue, or the error that all
    attempts ended with.

    Half of the time is for the administration; if that does not respond, the other half is enough
    to attach to existing queues. Queues that it has found to be unsafe by then are not used.
    ``owner`` is the mark of this pair, which new queues get (P21).
    """
    wanted = _Wanted(allow_lossy, owner)
    paths = backlog_paths(primary_name, count)
    refused: list[Missing] = []
    try:
        async with asyncio.timeout(timeout_s / 2):
            outcome = await _provision_managed(manager, paths, pause_s, refused, wanted)
    except TimeoutError:
        outcome = OperationTimeout(
            f"The administration of the secondary did not respond within {timeout_s / 2:g} s"
        )
    is_unmanaged_for_now = isinstance(outcome, ServiceError) and outcome.is_transient
    if isinstance(outcome, ServiceError):
        outcome = await _provision_attached(driver, paths, timeout_s / 2, outcome, refused)
    if not outcome.paths:
        error = _no_queue_error(outcome, driver.address)
        if isinstance(error, NoBacklogQueue) and is_unmanaged_for_now:
            error.is_transient = True  # The queues may be created when the administration responds.
        raise error
    return outcome


async def open_links(
    driver: Driver,
    done: Provisioned,
    *,
    address: object,
    timeout_s: float = LINKS_TIMEOUT_S,
    pause_s: float = PAUSE_S,
) -> Provisioned:
    """Open a sending link to every queue, through the factory that will send (P18); unreachable
    queues are not used. Raises NoBacklogQueue, or the error that all links ended with."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s

    async def open_link(path: str) -> LinkProperties | ServiceError:
        is_new = path in done.created
        for attempt in range(ATTEMPTS_MAX):
            answer = await _attach(driver, path, max(0.0, until_s - loop.time()))
            # A new queue may not be known everywhere in the service yet.
            if not (is_new and isinstance(answer, EntityNotFound)):
                break
            await asyncio.sleep(pause_s * 2**attempt)
        return answer

    unseen = [path for path in done.paths if path not in done.links]
    results = await bounded_gather(unseen, open_link, concurrency_max=AT_ONCE_MAX)
    answers = dict(zip(unseen, results, strict=True))
    failed = {path: each for path, each in answers.items() if isinstance(each, ServiceError)}
    missing = [Missing(path, _unreachable(error), error) for path, error in failed.items()]
    linked = {path: each for path, each in answers.items() if isinstance(each, LinkProperties)}
    reached = replace(
        done,
        missing=(*done.missing, *missing),
        paths=tuple(path for path in done.paths if path not in failed),
        links={**done.links, **linked},
    )
    if not reached.paths:
        raise _no_queue_error(replace(reached, missing=tuple(missing)), address)
    return reached


# -- with Manage --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    allow_lossy: bool
    owner: str


@dataclass(frozen=True, slots=True)
class _Seen:
    queue: QueueProperties
    is_new: bool


async def _provision_managed(
    manager: BacklogManager,
    paths: Sequence[str],
    pause_s: float,
    refused: list[Missing],
    wanted: _Wanted,
) -> Provisioned | ServiceError:
    """Read or create every queue; returns an error if the first queue shows that this is refused.

    Queues that cannot be used are added to ``refused`` as soon as that is known.
    """

    async def ensure(path: str) -> _Seen | Missing | ServiceError:
        seen = await _ensure_queue(manager, path, pause_s, wanted)
        if isinstance(seen, Missing):
            refused.append(seen)
        return seen

    first = await ensure(paths[0])
    if isinstance(first, _ADMINISTRATION_ERRORS):
        return first
    rest = await bounded_gather(paths[1:], ensure, concurrency_max=AT_ONCE_MAX)
    return _summarise(paths, [first, *rest], wanted.owner)


async def _ensure_queue(
    manager: BacklogManager, path: str, pause_s: float, wanted: _Wanted
) -> _Seen | Missing | ServiceError:
    last: ServiceError = EntityNotFound(
        "The queue was not found and could not be created", path=path
    )
    for attempt in range(ATTEMPTS_MAX):
        try:
            return await _find_or_create(manager, path, wanted)
        except EntityExists:
            # Another process has created it between our two requests: read it again. If it is
            # still not found as a queue, it is a topic.
            last = EntityNotFound(f"{path!r} is a topic, not a queue", path=path)
            continue
        except ServiceError as error:
            last = error
            if not error.is_transient:
                break
        await asyncio.sleep(pause_s * 2**attempt)
    if isinstance(last, EntityNotFound):
        return Missing(path, last.sentence.rstrip("."), last)
    return last


async def _find_or_create(manager: BacklogManager, path: str, wanted: _Wanted) -> _Seen | Missing:
    try:
        queue = await manager.get_queue(path)
    except EntityNotFound:
        return _Seen(await manager.create_queue(backlog_queue(path, wanted.owner)), is_new=True)
    danger = unsafe_property(queue, allow_lossy=wanted.allow_lossy)
    return _Seen(queue, is_new=False) if danger is None else Missing(path, danger)


def _summarise(
    paths: Sequence[str], results: Sequence[_Seen | Missing | ServiceError], owner: str
) -> Provisioned:
    seen = [(path, each) for path, each in zip(paths, results, strict=True)]
    usable = [(path, each) for path, each in seen if isinstance(each, _Seen)]
    queues = [each.queue for _, each in usable]
    failed = [
        Missing(path, each.sentence.rstrip("."), each) if isinstance(each, ServiceError) else each
        for path, each in seen
        if not isinstance(each, _Seen)
    ]
    return Provisioned(
        created=tuple(path for path, each in usable if each.is_new),
        found=tuple(path for path, each in usable if not each.is_new),
        missing=tuple(failed),
        drift=tuple(
            each
            for _, found in usable
            if not found.is_new
            for each in drift_of(found.queue, owner, queues)
        ),
        paths=tuple(path for path, _ in usable),
    )


# -- with Send only -----------------------------------------------------------------------


async def _provision_attached(
    driver: Driver,
    paths: Sequence[str],
    timeout_s: float,
    unmanaged: ServiceError,
    refused: Sequence[Missing],
) -> Provisioned:
    """The queues that a sender can attach to, without those in ``refused``."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    left_out = {each.path for each in refused}
    paths = [path for path in paths if path not in left_out]
    answers = await bounded_gather(
        paths,
        lambda path: _attach(driver, path, max(0.0, until_s - loop.time())),
        concurrency_max=AT_ONCE_MAX,
    )
    answered = list(zip(paths, answers, strict=True))
    links = {path: answer for path, answer in answered if isinstance(answer, LinkProperties)}
    unreached = [
        Missing(path, _unreachable(answer), answer)
        for path, answer in answered
        if isinstance(answer, ServiceError)
    ]
    return Provisioned(
        found=tuple(links),
        missing=(*refused, *unreached),
        unmanaged=unmanaged.sentence.rstrip("."),
        paths=tuple(links),
        links=links,
    )


async def _attach(driver: Driver, path: str, timeout_s: float) -> LinkProperties | ServiceError:
    sender = driver.sender(path)
    try:
        return await sender.attach(timeout_s=timeout_s)
    except ServiceError as error:
        return error
    finally:
        await sender.close()


def _unreachable(error: ServiceError) -> str:
    match error:
        case EntityNotFound():
            return "not found; creating it requires the Manage claim on the secondary"
        case AccessRefused():
            return "the Send claim is missing"
    return error.sentence.rstrip(".")


# -- no usable queue ----------------------------------------------------------------------


def _no_queue_error(outcome: Provisioned, address: object) -> ServiceError | NoBacklogQueue:
    """The error of a pair without a backlog queue; a missing claim and a wrong key have their own
    classes."""
    first, where = outcome.missing[0], f"namespace {address}"
    reasons = f"{first}" + (f"; {outcome.unmanaged}" if outcome.unmanaged else "")
    for kind in (AuthenticationFailed, AccessRefused):
        if all(isinstance(each.error, kind) for each in outcome.missing):
            error: ServiceError = kind(
                f"No access to {len(outcome.missing)} backlog queues in {where}: {reasons}",
                path=first.path,
                hint="Add the Send or the Manage claim to the access rule of the secondary",
            )
            error.__cause__ = first.error
            return error
    nothing = NoBacklogQueue(
        f"None of {len(outcome.missing)} backlog queues in {where} can be used: {reasons}",
        hint="Run `twinbus preflight`, which lists what to fix for each queue",
    )
    nothing.is_transient = any(
        each.error is not None and each.error.is_transient for each in outcome.missing
    )
    nothing.__cause__ = first.error
    return nothing
