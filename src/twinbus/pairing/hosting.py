"""The syphon that an application hosts: on Spark, or in plain Python.

    enable_syphon=True   Spark: the session there is, or a local one made for it
    SyphonHosting("local")   the mover on the application's own event loop, without Java

Rule 1: what is missing for it (PySpark, Java, a reference for a cluster) is said when the pair is
        made (P1), not when the first message waits.
Rule 2: the layer above is loaded by its name, and only here: pairing itself works without Spark.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from twinbus.argument_types import is_number
from twinbus.core.chunk import DeliveryRules
from twinbus.core.receipts import Receipt, ReceiptOutcome, foreign_in
from twinbus.drivers.port import Driver
from twinbus.errors import ConfigurationError
from twinbus.pairing.backlog_search import BacklogSearch, ListQueues
from twinbus.pairing.driver_name import DriverName, check_driver_name
from twinbus.pairing.mover_local import LocalSyphon
from twinbus.pairing.mover_options import MoverOptions

__all__ = ["HostedSyphon", "SyphonHosting", "SyphonRequest", "make_syphon_factory"]

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
