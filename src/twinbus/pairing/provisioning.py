"""Backlog queues found or made on the secondary, before anybody needs them (P2, P4, P5).

    with Manage      each queue is looked at, and made when it is missing
    without it       a sender attaches to each, and the reachable ones count
    in both cases    a link to each through the factory that will send: ready means ready (P18)

Rule 1: an existing queue is never altered and never deleted; extra ones are left alone.
Rule 2: some queues are better than none: what failed is told with its reason, and only nothing
        at all is an error.
Rule 3: somebody else may be doing the same at this moment: "exists already" is good news.
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

# Enough to make ten queues in a second or two, too few to be throttled for it.
AT_ONCE_MAX: Final = 4
ATTEMPTS_MAX: Final = 3
PAUSE_S: Final = 1.0
DEFAULT_TIMEOUT_S: Final = 120.0
LINKS_TIMEOUT_S: Final = 30.0

# What says that the management is closed to us, rather than something about one queue.
_CLOSED: Final = (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    OperationTimeout,
    ServerBusy,
    ServiceInternalError,
)


class BacklogManager(Protocol):
    """What provisioning asks of a namespace manager."""

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
    """What was found and made; every path stands in exactly one of created, found, missing."""

    created: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    drift: tuple[PropertyDrift, ...] = ()
    unmanaged: str | None = None
    """Why the queues could not be looked at, only attached to; None when they could."""
    paths: tuple[str, ...] = ()
    """The queues that can be used, in the order of their index."""
    links: Mapping[str, LinkProperties] = field(default_factory=dict)
    """What was said when a sending link to a queue was opened, for those that were."""

    def warnings(self) -> tuple[str, ...]:
        """What somebody should look at, a sentence each."""
        unseen = (
            ()
            if self.unmanaged is None
            else (f"the properties of the backlog queues are not known: {self.unmanaged}",)
        )
        return (
            *unseen,
            *(f"the backlog queue {each} (not used)" for each in self.missing),
            *(f"the backlog queue {each} (used as it is)" for each in self.drift),
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
    """Have ``count`` backlog queues ready; raises NoBacklogQueue, or what every try ended with.

    Half of the time is for the management; should that not answer, the other half is enough to
    attach to queues that exist. What it has warned of by then is not used. ``owner`` is the mark of
    this pair, which new queues carry (P21).
    """
    wanted = _Wanted(allow_lossy, owner)
    paths = backlog_paths(primary_name, count)
    refused: list[Missing] = []
    try:
        async with asyncio.timeout(timeout_s / 2):
            outcome = await _managed(manager, paths, pause_s, refused, wanted)
    except TimeoutError:
        outcome = OperationTimeout(
            f"the secondary's management gave no answer in {timeout_s / 2:g} s"
        )
    is_unmanaged_for_now = isinstance(outcome, ServiceError) and outcome.is_transient
    if isinstance(outcome, ServiceError):
        outcome = await _attached(driver, paths, timeout_s / 2, outcome, refused)
    if not outcome.paths:
        error = _nothing(outcome, driver.address)
        if isinstance(error, NoBacklogQueue) and is_unmanaged_for_now:
            error.is_transient = True  # The queues may be made when the management answers.
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
    """Open a sending link to every queue, through the factory that will send (P18); those that
    do not answer are left out. Raises NoBacklogQueue, or what every link ended with."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s

    async def opened(path: str) -> LinkProperties | ServiceError:
        is_new = path in done.created
        for attempt in range(ATTEMPTS_MAX):
            answer = await _attach(driver, path, max(0.0, until_s - loop.time()))
            # A queue that was just made may not be known everywhere yet.
            if not (is_new and isinstance(answer, EntityNotFound)):
                break
            await asyncio.sleep(pause_s * 2**attempt)
        return answer

    unseen = [path for path in done.paths if path not in done.links]
    told = await bounded_gather(unseen, opened, concurrency_max=AT_ONCE_MAX)
    answers = dict(zip(unseen, told, strict=True))
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
        raise _nothing(replace(reached, missing=tuple(missing)), address)
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


async def _managed(
    manager: BacklogManager,
    paths: Sequence[str],
    pause_s: float,
    refused: list[Missing],
    wanted: _Wanted,
) -> Provisioned | ServiceError:
    """Look at or make every queue; the error when the first one shows that we may not.

    ``refused`` has those that cannot be used as soon as that is known.
    """

    async def looked_at(path: str) -> _Seen | Missing | ServiceError:
        seen = await _looked_at(manager, path, pause_s, wanted)
        if isinstance(seen, Missing):
            refused.append(seen)
        return seen

    first = await looked_at(paths[0])
    if isinstance(first, _CLOSED):
        return first
    rest = await bounded_gather(paths[1:], looked_at, concurrency_max=AT_ONCE_MAX)
    return _summed_up(paths, [first, *rest], wanted.owner)


async def _looked_at(
    manager: BacklogManager, path: str, pause_s: float, wanted: _Wanted
) -> _Seen | Missing | ServiceError:
    last: ServiceError = EntityNotFound("it is neither there nor can it be made", path=path)
    for attempt in range(ATTEMPTS_MAX):
        try:
            return await _found_or_made(manager, path, wanted)
        except EntityExists:
            # Somebody made it between our two questions: look again. What still is no queue then
            # is a topic.
            last = EntityNotFound(f"a topic has the name {path!r}", path=path)
            continue
        except ServiceError as error:
            last = error
            if not error.is_transient:
                break
        await asyncio.sleep(pause_s * 2**attempt)
    if isinstance(last, EntityNotFound):
        return Missing(path, last.sentence.rstrip("."), last)
    return last


async def _found_or_made(manager: BacklogManager, path: str, wanted: _Wanted) -> _Seen | Missing:
    try:
        queue = await manager.get_queue(path)
    except EntityNotFound:
        return _Seen(await manager.create_queue(backlog_queue(path, wanted.owner)), is_new=True)
    danger = unsafe_property(queue, allow_lossy=wanted.allow_lossy)
    return _Seen(queue, is_new=False) if danger is None else Missing(path, danger)


def _summed_up(
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


async def _attached(
    driver: Driver,
    paths: Sequence[str],
    timeout_s: float,
    unmanaged: ServiceError,
    refused: Sequence[Missing],
) -> Provisioned:
    """Count the queues that a sender can reach, without those that were refused."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    left_out = {each.path for each in refused}
    paths = [path for path in paths if path not in left_out]
    answers = await bounded_gather(
        paths,
        lambda path: _attach(driver, path, max(0.0, until_s - loop.time())),
        concurrency_max=AT_ONCE_MAX,
    )
    told = list(zip(paths, answers, strict=True))
    links = {path: answer for path, answer in told if isinstance(answer, LinkProperties)}
    unreached = [
        Missing(path, _unreachable(answer), answer)
        for path, answer in told
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
            return "it does not exist, and making it needs the claim Manage on the secondary"
        case AccessRefused():
            return "the claim Send is missing for it"
    return error.sentence.rstrip(".")


# -- nothing at all -----------------------------------------------------------------------


def _nothing(outcome: Provisioned, address: object) -> ServiceError | NoBacklogQueue:
    """The error of a pairing that has no backlog queue; a claim or a key that is missing comes
    under its own name."""
    first, where = outcome.missing[0], f"namespace {address}"
    reasons = f"{first}" + (f"; {outcome.unmanaged}" if outcome.unmanaged else "")
    for kind in (AuthenticationFailed, AccessRefused):
        if all(isinstance(each.error, kind) for each in outcome.missing):
            error: ServiceError = kind(
                f"{where} lets us use none of {len(outcome.missing)} backlog queues: {reasons}",
                path=first.path,
                hint="Give the secondary's rule Send on these queues, or Manage to make them",
            )
            error.__cause__ = first.error
            return error
    nothing = NoBacklogQueue(
        f"none of {len(outcome.missing)} backlog queues in {where} can be used: {reasons}",
        hint="Run `twinbus preflight`, which says for each queue what to fix",
    )
    nothing.is_transient = any(
        each.error is not None and each.error.is_transient for each in outcome.missing
    )
    nothing.__cause__ = first.error
    return nothing
