"""Backlog queues found or made on the secondary, before anybody needs them (P2, P4, P5).

    with Manage      each queue is looked at, and made when it is missing
    without it       a sender attaches to each, and the reachable ones count

Rule 1: an existing queue is never altered and never deleted; extra ones are left alone.
Rule 2: some queues are better than none: what failed is told with its reason, and only nothing
        at all is an error.
Rule 3: somebody else may be doing the same at this moment: "exists already" is good news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from twinbus.drivers.management import QueueProperties
from twinbus.drivers.port import Driver
from twinbus.errors import EntityExists
from twinbus.pairing.backlog_queues import (
    Drift,
    backlog_paths,
    backlog_queue,
    danger_in,
    drift_of,
)
from twinbus.pairing.few_at_once import few_at_once
from twinbus.service_errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityNotFound,
    NoBacklogQueue,
    OperationTimeout,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)

__all__ = ["BacklogManager", "Missing", "Provisioned", "provision"]

# Enough to make ten queues in a second or two, too few to be throttled for it.
AT_ONCE_MAX: Final = 4
ATTEMPTS_MAX: Final = 3
PAUSE_S: Final = 1.0
DEFAULT_TIMEOUT_S: Final = 120.0

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
    drift: tuple[Drift, ...] = ()
    unmanaged: str | None = None
    """Why the queues could not be looked at, only attached to; None when they could."""
    paths: tuple[str, ...] = ()
    """The queues that can be used, in the order of their index."""

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
    timeout_s: float = DEFAULT_TIMEOUT_S,
    pause_s: float = PAUSE_S,
) -> Provisioned:
    """Have ``count`` backlog queues ready; raises NoBacklogQueue, or what every try ended with.

    Half of the time is for the management; should that not answer, the other half is enough to
    attach to queues that exist. What it has warned of by then is not used.
    """
    paths = backlog_paths(primary_name, count)
    refused: list[Missing] = []
    try:
        async with asyncio.timeout(timeout_s / 2):
            outcome = await _managed(manager, paths, pause_s, refused)
    except TimeoutError:
        outcome = OperationTimeout(
            f"the secondary's management gave no answer in {timeout_s / 2:g} s"
        )
    if isinstance(outcome, ServiceError):
        outcome = await _attached(driver, paths, timeout_s / 2, outcome, refused)
    if not outcome.paths:
        raise _nothing(outcome)
    return outcome


# -- with Manage --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    queue: QueueProperties
    is_new: bool


async def _managed(
    manager: BacklogManager, paths: Sequence[str], pause_s: float, refused: list[Missing]
) -> Provisioned | ServiceError:
    """Look at or make every queue; the error when the first one shows that we may not.

    ``refused`` has those that cannot be used as soon as that is known.
    """

    async def looked_at(path: str) -> _Seen | Missing | ServiceError:
        seen = await _looked_at(manager, path, pause_s)
        if isinstance(seen, Missing):
            refused.append(seen)
        return seen

    first = await looked_at(paths[0])
    if isinstance(first, _CLOSED):
        return first
    rest = await few_at_once(paths[1:], looked_at, at_once_max=AT_ONCE_MAX)
    return _summed_up(paths, [first, *rest])


async def _looked_at(
    manager: BacklogManager, path: str, pause_s: float
) -> _Seen | Missing | ServiceError:
    last: ServiceError = EntityNotFound("it is neither there nor can it be made", path=path)
    for attempt in range(ATTEMPTS_MAX):
        try:
            return await _found_or_made(manager, path)
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


async def _found_or_made(manager: BacklogManager, path: str) -> _Seen | Missing:
    try:
        queue = await manager.get_queue(path)
    except EntityNotFound:
        return _Seen(await manager.create_queue(backlog_queue(path)), is_new=True)
    danger = danger_in(queue)
    return _Seen(queue, is_new=False) if danger is None else Missing(path, danger)


def _summed_up(
    paths: Sequence[str], results: Sequence[_Seen | Missing | ServiceError]
) -> Provisioned:
    seen = [(path, each) for path, each in zip(paths, results, strict=True)]
    usable = [(path, each) for path, each in seen if isinstance(each, _Seen)]
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
            each for _, found in usable if not found.is_new for each in drift_of(found.queue)
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
    failures = await few_at_once(
        paths,
        lambda path: _attach_error(driver, path, max(0.0, until_s - loop.time())),
        at_once_max=AT_ONCE_MAX,
    )
    told = list(zip(paths, failures, strict=True))
    found = tuple(path for path, failure in told if failure is None)
    unreached = [Missing(path, _unreachable(failure), failure) for path, failure in told if failure]
    return Provisioned(
        found=found,
        missing=(*refused, *unreached),
        unmanaged=unmanaged.sentence.rstrip("."),
        paths=found,
    )


async def _attach_error(driver: Driver, path: str, timeout_s: float) -> ServiceError | None:
    sender = driver.sender(path)
    try:
        await sender.attach(timeout_s=timeout_s)
    except ServiceError as error:
        return error
    finally:
        await sender.close()
    return None


def _unreachable(error: ServiceError) -> str:
    match error:
        case EntityNotFound():
            return "it does not exist, and making it needs the claim Manage on the secondary"
        case AccessRefused():
            return "the claim Send is missing for it"
    return error.sentence.rstrip(".")


# -- nothing at all -----------------------------------------------------------------------


def _nothing(outcome: Provisioned) -> ServiceError | NoBacklogQueue:
    """The error of a pairing that has no backlog queue; a claim or a key that is missing comes
    under its own name."""
    first = outcome.missing[0]
    reasons = f"{first}" + (f"; {outcome.unmanaged}" if outcome.unmanaged else "")
    for kind in (AuthenticationFailed, AccessRefused):
        if all(isinstance(each.error, kind) for each in outcome.missing):
            error: ServiceError = kind(
                f"the secondary namespace lets us use none of {len(outcome.missing)} backlog "
                f"queues: {reasons}",
                path=first.path,
                hint="Give the secondary's rule Send on these queues, or Manage to make them",
            )
            error.__cause__ = first.error
            return error
    nothing = NoBacklogQueue(
        f"none of {len(outcome.missing)} backlog queues can be used: {reasons}",
        hint="Run `twinbus preflight`, which says for each queue what to fix",
    )
    nothing.__cause__ = first.error
    return nothing
