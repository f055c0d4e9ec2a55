"""The syphon that an application hosts, and the claims that it needs.

The syphon that an application hosts: on Spark, or in plain Python.

    enable_syphon=True   Spark: the session there is, or a local one made for it
    SyphonHosting("local")   the mover on the application's own event loop, without Java

Whether the syphon that an application hosts has the claims that it needs (P18).

    Listen on every backlog queue     found out by a peek, which takes nothing
    Send on its destinations          by a link to each that is known: those that the application
                                      sends to itself, and those that are allowed by their names

Rule 1: what is missing for it (PySpark, Java, a reference for a cluster) is said when the pair is
        made (P1), not when the first message waits.
Rule 2: the layer above is loaded by its name, and only here: pairing itself works without Spark.
Rule 3: only a refusal counts. Whatever else is answered says nothing about claims, and the syphon
        reports it when it meets it.
Rule 4: the claims are those of the factories' credentials. A syphon that is given credentials of
        its own (SyphonHosting) is not judged by them.
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
    """Brings the backlog home from start() to stop()."""

    def start(self) -> None:
        """Begin, in the running event loop."""

    async def stop(self) -> None:
        """End after the chunks under way, within about 5 s."""


@dataclass(frozen=True, slots=True)
class SyphonHosting:
    """Where the syphon of an application runs."""

    engine: Literal["spark", "local"] = "spark"
    spark: Any = field(default=None, kw_only=True)
    """The SparkSession to use; None: the one there is, or a local one that ends with the pair."""
    primary: str | None = field(default=None, kw_only=True)
    secondary: str | None = field(default=None, kw_only=True)
    """On a cluster: how its machines find the namespaces' credentials, as ``env:NAME``,
    ``file:/path`` or ``provider:package.module:function``. Local Spark needs none of it."""
    state_dir: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    """Where receipts, status and checkpoints are kept; None: a directory that ends with it."""
    rate_per_s: float | None = field(default=None, kw_only=True)
    """Messages a second; None is as fast as it goes."""
    tasks: int | None = field(default=None, kw_only=True)
    """On Spark: tasks at once; None: as many as there are cores."""
    driver: DriverName = field(default="amqp", kw_only=True)
    """The library that moves messages: our lean client, or ``servicebus``, the official SDK."""

    def __post_init__(self) -> None:
        if self.rate_per_s is not None and not (
            is_number(self.rate_per_s) and 0 < self.rate_per_s < math.inf
        ):
            raise ConfigurationError(
                f"rate_per_s cannot be {self.rate_per_s!r:.40}", hint="Leave it out for no limit"
            )
        if self.tasks is not None and (type(self.tasks) is not int or self.tasks < 1):
            raise ConfigurationError(
                f"tasks cannot be {self.tasks!r:.40}", hint="Use a whole number of at least 1"
            )
        check_driver_name(self.driver)
        if self.engine not in ("spark", "local"):
            raise ConfigurationError(
                f"a syphon cannot run on {self.engine!r:.40}", hint="Use 'spark' or 'local'"
            )
        if self.engine == "local":
            for name in ("spark", "primary", "secondary", "state_dir", "tasks"):
                if getattr(self, name) is not None:
                    raise ConfigurationError(
                        f"{name} is for a syphon on Spark, and 'local' runs without it",
                        hint="Leave it out",
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonRequest:
    """What a hosted syphon has to do."""

    primary: Driver
    secondary: Driver
    queues: Sequence[str]
    rules: DeliveryRules
    list_queues: ListQueues | None = None
    """Lists the queues of the secondary, where the application has a manager of it."""
    hosting: SyphonHosting
    metering: Path | None = None
    """Where other processes that work for it keep their books; the drivers have theirs."""
    keep_days: int | None = None
    """Days after which files of those books are deleted; None keeps them."""
    on_end: Callable[[BaseException], object]
    """Told of an error that ended it."""
    on_stall: Callable[[str], object]
    """Told why, when messages wait and none moves."""
    on_dead_letters: Callable[[int], object]
    """Told how many more were dead-lettered."""
    on_refused: Callable[[str, str], object]
    """Told a path and the claim that is missing for it."""
    on_moved: Callable[[int], object] = lambda _count: None
    """Told how many more have come home."""
    on_foreign: Callable[[str, int], object] = lambda _owner, _count: None
    """Told the mark of another pair, and how many more of its messages were left alone."""


def make_syphon_factory(job: SyphonRequest) -> Callable[[], HostedSyphon]:
    """What makes a syphon, once or again after it has ended; raises ConfigurationError when this
    application cannot host one."""
    if job.hosting.engine == "local":
        options = MoverOptions(rules=job.rules, rate_per_s=job.hosting.rate_per_s)
        return lambda: LocalSyphon(
            job.primary,
            job.secondary,
            job.queues,
            options,
            on_receipts=partial(_tell_of_receipts, job),
            on_stall=job.on_stall,
            on_refused=job.on_refused,
            on_end=job.on_end,
            search=BacklogSearch(job.secondary.receiver, job.rules.primary_name, job.list_queues),
        )
    try:
        host = import_module(SPARK_HOST)
    except ImportError as error:
        raise ConfigurationError(
            "the syphon runs on Spark, and PySpark is not installed",
            hint="pip install 'twinbus[spark]', or host it with SyphonHosting('local')",
        ) from error
    maker: Callable[[], HostedSyphon] = host.maker(job)
    return maker


def _tell_of_receipts(job: SyphonRequest, receipts: Sequence[Receipt]) -> None:
    if count := sum(each.outcome is ReceiptOutcome.MOVED for each in receipts):
        job.on_moved(count)
    if count := sum(each.outcome is ReceiptOutcome.DEAD_LETTERED for each in receipts):
        job.on_dead_letters(count)
    for owner, count in foreign_in(receipts).items():
        job.on_foreign(owner, count)


AT_ONCE_MAX: Final = 4
ASK_TIMEOUT_S: Final = 5.0
# The whole question is worth no more: without an answer the syphon reports what it meets.
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
            f"the claim {self.claim} is missing for {self.path!r} in the namespace "
            f"{self.namespace}, so the syphon of this application could not {what} it",
            path=self.path,
            hint=f"Give the rule or the identity {self.claim}, or leave enable_syphon to another "
            "application",
        )


def known_destinations(
    paths: Sequence[str], allowed: Sequence[str], primary_name: str
) -> tuple[str, ...]:
    """The entities that the syphon delivers to, as far as they are known by their names."""
    named = [each for each in allowed if not _WILDCARDS & set(each)]
    found: list[str] = []
    for path in (*paths, *named):
        with suppress(EnvelopeError):
            found.append(check_destination(path, allowed=allowed, primary_name=primary_name))
    return tuple(dict.fromkeys(found))


async def missing_listen(secondary: Driver, queues: Sequence[str]) -> list[MissingClaim]:
    """The backlog queues that may not be received from."""

    async def peek(path: str) -> None:
        receiver = secondary.receiver(path)
        try:
            await receiver.peek(1, timeout_s=ASK_TIMEOUT_S)
        finally:
            await receiver.close()

    return await _missing(secondary, queues, "Listen", peek)


async def missing_send(primary: Driver, destinations: Sequence[str]) -> list[MissingClaim]:
    """The destinations that may not be sent to."""

    async def attach(path: str) -> None:
        sender = primary.sender(path)
        try:
            await sender.attach(timeout_s=ASK_TIMEOUT_S)
        finally:
            await sender.close()

    return await _missing(primary, destinations, "Send", attach)


async def _missing(
    driver: Driver,
    paths: Sequence[str],
    claim: str,
    ask: Callable[[str], Coroutine[Any, Any, None]],
) -> list[MissingClaim]:
    found: list[MissingClaim] = []

    async def asked(path: str) -> None:
        try:
            await ask(path)
        except AccessRefused:
            found.append(MissingClaim(str(driver.address), path, claim))
        except ServiceError:
            pass  # Rule 3.

    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT_S):
            await bounded_gather(paths, asked, concurrency_max=AT_ONCE_MAX)
    return sorted(found, key=lambda each: paths.index(each.path))
