"""The Spark session of ``twinbus syphon``, which starts while everything else is prepared.

Rule 1: this module loads little: the JVM takes seconds, and should begin with them at once.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from twinbus.errors import ConfigurationError
from twinbus.spark.errors import SparkError
from twinbus.spark.runtime.session import (
    LOCAL_CORES,
    SETTINGS,
    local_session,
    require_pyspark,
    with_retries,
)
from twinbus.spark.syphon import APP_NAME, MODULES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PendingSparkSession"]

CONNECT_PORT: Final = 15002
CONNECT_TIMEOUT_S: Final = 10.0


class PendingSparkSession:
    """A session that will be there when it is asked for."""

    def __init__(self, master: str | None, tasks: int | None = None) -> None:
        # Before there are two threads: what is imported next to it would keep the JVM waiting.
        with suppress(ImportError):  # The thread will tell.
            import_module("pyspark.sql")
        starter = ThreadPoolExecutor(1, "spark-start")
        self._session: Future[SparkSession] = starter.submit(_session, master, tasks)
        starter.shutdown(wait=False)

    def get(self) -> SparkSession:
        """Waits for it; raises what kept it from starting."""
        return self._session.result()

    def stop(self) -> None:
        """Wait for it, and stop it; an error of that does not hide what has happened before."""
        if self._session.exception() is None:
            from twinbus.spark.syphon.hosted_session import end_session

            end_session(self._session.result())


def _session(master: str | None, tasks: int | None = None) -> SparkSession:
    """The one that spark-submit has prepared, the one that was asked for, or a local one."""
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted and (master is None or master.startswith("local")):
        chosen = {} if master is None else {"spark.master": with_retries(master)}
        return local_session(
            APP_NAME,
            cores=max(tasks or 0, LOCAL_CORES),
            fast_start=True,
            finds_sources=False,
            modules=MODULES,
            more=chosen,
        )
    builder = require_pyspark().SparkSession.builder.appName(APP_NAME)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    if master is not None and master.startswith("sc://"):
        _check_reachable(master)
        builder = builder.remote(master)
    elif master is not None:
        builder = builder.master(master)
    try:
        session: SparkSession = builder.getOrCreate()
        return session
    except ImportError as error:
        raise ConfigurationError(
            "packages that Spark Connect needs are not installed",
            hint="pip install 'twinbus[connect]'",
        ) from error


def _check_reachable(url: str) -> None:
    """Spark's own client would try again for ten minutes before it says so."""
    try:
        parts = urlsplit(url)  # What follows the port may hold a token and is not shown.
        host, port = parts.hostname or "", parts.port or CONNECT_PORT
    except ValueError:
        raise ConfigurationError(
            "--master is no address of Spark Connect", hint="Write it as sc://host:port"
        ) from None
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise SparkError(
            f"no Spark Connect server answers at {host}:{port}: {error.strerror or error}",
            hint="Start one there, or give another address with --master",
        ) from error
