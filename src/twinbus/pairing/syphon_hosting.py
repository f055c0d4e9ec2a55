"""The syphon that an application hosts, on Spark or in plain Python, and its claims (P18).

    enable_syphon=True       Spark: the active session, or a local one that is created for it
    SyphonHosting("local")   the mover on the application's own event loop, without Java

    Listen on every backlog queue     checked by a peek, which removes nothing
    Send on its destinations          checked by a link to each known one: entities that the
                                      application sends to, and names in allowed_destinations

Rule 1: a missing requirement (PySpark, Java, a reference for a cluster) is an error when the pair
        is created (P1), not when the first message waits.
Rule 2: the Spark layer is imported by name, and only here: pairing itself works without Spark.
Rule 3: only a refusal means a missing claim. The syphon reports other errors when they occur.
Rule 4: the checked claims are those of the factories' credentials. A syphon with credentials of
        its own (SyphonHosting) is not checked.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from twinbus.common.argument_types import is_number
from twinbus.common.event_loop import bounded_gather
from twinbus.drivers.interface import Driver
from twinbus.errors import AccessRefused, ConfigurationError, EnvelopeError, ServiceError
from twinbus.mover.backlog_search import BacklogSearch, ListQueues
from twinbus.mover.mover import LocalSyphon
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules, check_destination
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome, foreign_in
from twinbus.pairing.client.driver_name import DriverName, check_driver_name

__all__ = [
    "HostedSyphon",
    "MissingClaim",
    "SyphonHosting",
    "SyphonRequest",
    "known_destinations",
    "make_syphon_factory",
    "missing_listen",
    "missing_send",
]

SPARK_HOST = "twinbus.spark.syphon.hosted"


class HostedSyphon(Protocol):
    """Moves the backlog to the primary from start() to stop()."""

    def start(self) -> None:
        """Begin, in the running event loop."""

    async def stop(self) -> None:
        """End after the chunks in progress, within about 5 s."""


@dataclass(frozen=True, slots=True)
class SyphonHosting:
    """Where the syphon of an application runs."""

    engine: Literal["spark", "local"] = "spark"
    spark: Any = field(default=None, kw_only=True)
    """The SparkSession to use; None for the active one, or a local one that ends with the pair."""
    primary: str | None = field(default=None, kw_only=True)
    secondary: str | None = field(default=None, kw_only=True)
    """On a cluster: references to the credentials of the namespaces, ``env:NAME``,
    ``file:/path`` or ``provider:package.module:function``. Not needed with local Spark."""
    state_dir: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """Directory for receipts, status and checkpoints; None for one that is deleted at the end."""
    rate_per_s: float | None = field(default=None, kw_only=True)
    """Maximum rate in messages per second; None for no limit."""
    tasks: int | None = field(default=None, kw_only=True)
    """On Spark: number of parallel tasks; None for the number of cores."""
    driver: DriverName = field(default="amqp", kw_only=True)
    """The client library that moves messages: ``amqp``, or ``servicebus``, the official SDK."""

    def __post_init__(self) -> None:
        if self.rate_per_s is not None and not (
            is_number(self.rate_per_s) and 0 < self.rate_per_s < math.inf
        ):
            raise ConfigurationError(
                f"Invalid value for rate_per_s: {self.rate_per_s!r:.40}",
                hint="Use a number greater than 0, or None for no limit",
            )
        if self.tasks is not None and (type(self.tasks) is not int or self.tasks < 1):
            raise ConfigurationError(
                f"Invalid value for tasks: {self.tasks!r:.40}",
                hint="Use a whole number of at least 1",
            )
        check_driver_name(self.driver)
        if self.engine not in ("spark", "local"):
            raise ConfigurationError(
                f"Invalid value for engine: {self.engine!r:.40}", hint="Use 'spark' or 'local'"
            )
        if self.engine == "local":
            for name in ("spark", "primary", "secondary", "state_dir", "tasks"):
                if getattr(self, name) is not None:
                    raise ConfigurationError(
                        f"Option {name} requires a syphon on Spark, and the engine is 'local'",
                        hint=f"Remove {name}, or use SyphonHosting('spark')",
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonRequest:
    """What a hosted syphon moves, and its callbacks."""

    primary: Driver
    secondary: Driver
    queues: Sequence[str]
    rules: DeliveryRules
    list_queues: ListQueues | None = None
    """Lists the queues of the secondary; None if the application has no manager for it."""
    hosting: SyphonHosting
    metering: Path | None = None
    """Directory for the operations logs of its other processes; the drivers have their own."""
    keep_days: int | None = None
    """Days after which files in that directory are deleted; None keeps them."""
    on_end: Callable[[BaseException], object]
    """Called with the error that has ended it."""
    on_stall: Callable[[str], object]
    """Called with the reason when messages wait and none is moved."""
    on_dead_letters: Callable[[int], object]
    """Called with the number of further dead-lettered messages."""
    on_refused: Callable[[str, str], object]
    """Called with a path and the claim that is missing for it."""
    on_moved: Callable[[int], object] = lambda _count: None
    """Called with the number of further moved messages."""
    on_foreign: Callable[[str, int], object] = lambda _owner, _count: None
    """Called with the mark of another pair, and the number of its further messages that were not
    moved."""


def make_syphon_factory(job: SyphonRequest) -> Callable[[], HostedSyphon]:
    """A function that creates a syphon, and another one after it has ended; raises
    ConfigurationError if this application cannot host one."""
    if job.hosting.engine == "local":
        options = MoverOptions(rules=job.rules, rate_per_s=job.hosting.rate_per_s)
        return lambda: LocalSyphon(
            job.primary,
            job.secondary,
            job.queues,
            options,
            on_receipts=partial(_report_receipts, job),
            on_stall=job.on_stall,
            on_refused=job.on_refused,
            on_end=job.on_end,
            search=BacklogSearch(job.secondary.receiver, job.rules.primary_name, job.list_queues),
        )
    try:
        host = import_module(SPARK_HOST)
    except ImportError as error:
        raise ConfigurationError(
            "A syphon on Spark requires PySpark, which is not installed",
            hint="Run `pip install 'twinbus[spark]'`, or use SyphonHosting('local')",
        ) from error
    maker: Callable[[], HostedSyphon] = host.maker(job)
    return maker


def _report_receipts(job: SyphonRequest, receipts: Sequence[Receipt]) -> None:
    if count := sum(each.outcome is ReceiptOutcome.MOVED for each in receipts):
        job.on_moved(count)
    if count := sum(each.outcome is ReceiptOutcome.DEAD_LETTERED for each in receipts):
        job.on_dead_letters(count)
    for owner, count in foreign_in(receipts).items():
        job.on_foreign(owner, count)


AT_ONCE_MAX: Final = 4
CLAIM_TIMEOUT_S: Final = 5.0
# The whole check takes no longer: the syphon reports later what the check did not find.
TIMEOUT_S: Final = 10.0
_WILDCARDS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class MissingClaim:
    """A claim that a syphon needs and does not have."""

    namespace: str
    path: str
    claim: str

    def error(self) -> AccessRefused:
        what = "receive from" if self.claim == "Listen" else "deliver to"
        return AccessRefused(
            f"The {self.claim} claim is missing for {self.path!r} in namespace {self.namespace}: "
            f"the hosted syphon could not {what} it",
            path=self.path,
            hint=f"Add the {self.claim} claim to the access rule or the identity, or set "
            "enable_syphon=False",
        )


def known_destinations(
    paths: Sequence[str], allowed: Sequence[str], primary_name: str
) -> tuple[str, ...]:
    """The entities that the syphon delivers to, as far as their names are known."""
    named = [each for each in allowed if not _WILDCARDS & set(each)]
    found: list[str] = []
    for path in (*paths, *named):
        with suppress(EnvelopeError):
            found.append(check_destination(path, allowed=allowed, primary_name=primary_name))
    return tuple(dict.fromkeys(found))


async def missing_listen(secondary: Driver, queues: Sequence[str]) -> list[MissingClaim]:
    """The backlog queues for which Listen is missing."""

    async def peek(path: str) -> None:
        receiver = secondary.receiver(path)
        try:
            await receiver.peek(1, timeout_s=CLAIM_TIMEOUT_S)
        finally:
            await receiver.close()

    return await _missing(secondary, queues, "Listen", peek)


async def missing_send(primary: Driver, destinations: Sequence[str]) -> list[MissingClaim]:
    """The destinations for which Send is missing."""

    async def attach(path: str) -> None:
        sender = primary.sender(path)
        try:
            await sender.attach(timeout_s=CLAIM_TIMEOUT_S)
        finally:
            await sender.close()

    return await _missing(primary, destinations, "Send", attach)


async def _missing(
    driver: Driver,
    paths: Sequence[str],
    claim: str,
    request: Callable[[str], Coroutine[Any, Any, None]],
) -> list[MissingClaim]:
    found: list[MissingClaim] = []

    async def check(path: str) -> None:
        try:
            await request(path)
        except AccessRefused:
            found.append(MissingClaim(str(driver.address), path, claim))
        except ServiceError:
            pass  # Rule 3.

    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT_S):
            await bounded_gather(paths, check, concurrency_max=AT_ONCE_MAX)
    return sorted(found, key=lambda each: paths.index(each.path))
