"""The syphon that an application hosts: on Spark, or in plain Python.

    enable_syphon=True   Spark: the session there is, or a local one made for it
    SyphonHosting("local")   the mover on the application's own event loop, without Java

Rule 1: what is missing for it (PySpark, Java, a reference for a cluster) is said when the pair is
        made (P1), not when the first message waits.
Rule 2: the layer above is loaded by its name, and only here: pairing itself works without Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol

from twinbus.core.chunk import HomeRules
from twinbus.drivers.port import Driver
from twinbus.errors import ConfigurationError
from twinbus.pairing.mover_local import LocalSyphon
from twinbus.pairing.mover_options import MoverOptions

__all__ = ["HostedSyphon", "SyphonHosting", "SyphonJob", "syphon_maker"]

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

    def __post_init__(self) -> None:
        if self.engine not in ("spark", "local"):
            raise ConfigurationError(
                f"a syphon cannot run on {self.engine!r:.40}", hint="Use 'spark' or 'local'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonJob:
    """What a hosted syphon has to do."""

    primary: Driver
    secondary: Driver
    queues: Sequence[str]
    rules: HomeRules
    hosting: SyphonHosting
    on_end: Callable[[BaseException], object]
    """Told of an error that ended it."""
    on_stall: Callable[[str], object]
    """Told why, when messages wait and none moves."""


def syphon_maker(job: SyphonJob) -> Callable[[], HostedSyphon]:
    """What makes a syphon, once or again after it has ended; raises ConfigurationError when this
    application cannot host one."""
    if job.hosting.engine == "local":
        options = MoverOptions(rules=job.rules, rate_per_s=job.hosting.rate_per_s)
        return lambda: LocalSyphon(
            job.primary, job.secondary, job.queues, options, on_end=job.on_end
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
