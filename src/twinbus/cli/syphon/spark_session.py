"""The Spark session of ``twinbus syphon``, which starts in the background.

Rule 1: this module imports little, so that the start of the JVM, which takes seconds, begins early.
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
    """A session that starts in the background."""

    def __init__(self, master: str | None, tasks: int | None = None) -> None:
        # Imported before the thread starts: parallel imports would delay the JVM.
        with suppress(ImportError):  # The thread reports it.
            import_module("pyspark.sql")
        starter = ThreadPoolExecutor(1, "spark-start")
        self._session: Future[SparkSession] = starter.submit(_session, master, tasks)
        starter.shutdown(wait=False)

    def get(self) -> SparkSession:
        """Wait for the session; raises the error of its start."""
        return self._session.result()

    def stop(self) -> None:
        """Wait for the session and stop it; an error of the stop does not hide an earlier one."""
        if self._session.exception() is None:
            from twinbus.spark.syphon.hosted_session import end_session

            end_session(self._session.result())


def _session(master: str | None, tasks: int | None = None) -> SparkSession:
    """The session of spark-submit, the one of --master, or a local one."""
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
            "Packages that Spark Connect requires are not installed",
            hint="Run `pip install 'twinbus[connect]'`",
        ) from error


def _check_reachable(url: str) -> None:
    """Checked here because Spark's client retries for ten minutes before it reports an error."""
    try:
        parts = urlsplit(url)  # The text after the port may contain a token and is not printed.
        host, port = parts.hostname or "", parts.port or CONNECT_PORT
    except ValueError:
        raise ConfigurationError(
            "Invalid value for --master: not an address of Spark Connect",
            hint="Use sc://HOST:PORT",
        ) from None
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise SparkError(
            f"Connection to Spark Connect at {host}:{port} failed: {error.strerror or error}",
            hint="Check that the server is running, and the address in --master",
        ) from error
