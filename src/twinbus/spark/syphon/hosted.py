"""The syphon inside an application: what ``enable_syphon=True`` starts.

    start()   a thread gets a Spark session and starts the query
    stop()    the query ends after the chunks under way; what was made for it is removed

Spark starts in seconds and its calls block, so everything of it happens in that one thread, and
the application's event loop only waits.

Rule 1: a session that was there before is used and left running; one that was made here ends here.
Rule 2: a local Spark is given the credentials in files that only their owner can read, removed by
        stop(); an application that is killed leaves them behind. A cluster's
        machines cannot read them: there the user says where they are.
Rule 3: stop() returns within about 5 s. While Spark is still starting nothing is under way, and
        it does not wait: the thread puts away what it has begun.
"""

from __future__ import annotations

import asyncio
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.port import Driver
from twinbus.errors import ConfigurationError
from twinbus.pairing.hosting import HostedSyphon, SyphonJob
from twinbus.spark.java import find_java
from twinbus.spark.references import NamespaceRef, RefKind
from twinbus.spark.session import local_session
from twinbus.spark.syphon import APP_NAME, MODULES
from twinbus.spark.syphon.query import Syphon, start_syphon
from twinbus.spark.syphon.settings import SyphonSettings, is_local

__all__ = ["SparkSyphon", "maker"]

STOP_S_MAX: Final = 5.0
# What the thread has for stopping the query, of the 5 s.
QUERY_STOP_S_MAX: Final = 4.0
WATCH_INTERVAL_S: Final = 1.0


def maker(job: SyphonJob) -> Callable[[], HostedSyphon]:
    """What makes the syphon; says now what it would miss later."""
    session = _session_there_is(job)
    if session is None:
        find_java()
    for role, driver, said in _sides(job):
        if said is not None:
            _reference(said)
        elif session is not None and not is_local(session):
            raise ConfigurationError(
                f"the machines of a Spark cluster do not know the {role}'s credential",
                hint=f"Say where they find it: SyphonHosting({role}='env:NAME')",
            )
        elif not isinstance(driver, AmqpDriver) or driver.access() is None:
            raise ConfigurationError(
                f"Spark's processes cannot use the {role}'s credential, which is an object here",
                hint=f"Say how they get one: SyphonHosting({role}='provider:package.module:name')",
            )
    if session is not None and job.hosting.state_dir is None and not is_local(session):
        raise ConfigurationError(
            "the machines of a Spark cluster cannot write into a temporary directory of this one",
            hint="Give a state directory that all of them share: SyphonHosting(state_dir=...)",
        )
    # Found here: in the syphon's own thread Spark would not tell of the application's session.
    return lambda: SparkSyphon(job, session)


def _sides(job: SyphonJob) -> tuple[tuple[str, Driver, str | None], ...]:
    return (
        ("primary", job.primary, job.hosting.primary),
        ("secondary", job.secondary, job.hosting.secondary),
    )


def _session_there_is(job: SyphonJob) -> SparkSession | None:
    """The application's own session: what is active in this thread, or was made in any other."""
    found: Any = job.hosting.spark or SparkSession.getActiveSession()
    if found is None and SparkContext._active_spark_context is not None:
        found = SparkSession.builder.getOrCreate()
    return found  # type: ignore[no-any-return]


class SparkSyphon:
    """One run of a hosted syphon."""

    def __init__(self, job: SyphonJob, session: SparkSession | None) -> None:
        """Without a session it makes one of its own, which ends with it."""
        self._job, self._session = job, session
        self._orders: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Something in it: stop."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._is_stopping = False
        self._has_query = False
        self._is_stalled = False

    def start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._live, name="twinbus-syphon", daemon=True)
            self._thread.start()

    async def stop(self) -> None:
        self._is_stopping = True
        if self._thread is None:
            return
        self._orders.put(None)
        if not self._has_query:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S_MAX):
                await self._ended.wait()

    # -- in its thread ---------------------------------------------------------------------

    def _live(self) -> None:
        error: BaseException | None = None
        try:
            self._host()
        except BaseException as raised:
            error = raised
        finally:
            loop = self._loop
            assert loop is not None
            with suppress(RuntimeError):  # The application's loop has ended before us.
                loop.call_soon_threadsafe(self._over, error)

    def _over(self, error: BaseException | None) -> None:
        self._ended.set()
        if error is not None and not self._is_stopping:
            self._job.on_end(error)

    def _host(self) -> None:
        private = Path(tempfile.mkdtemp(prefix="twinbus-syphon-"))  # Mode 0700.
        session, is_ours = self._session, False
        try:
            if session is None:
                session, is_ours = local_session(APP_NAME, fast_start=True, modules=MODULES), True
            if self._orders.empty():
                self._has_query = True
                syphon = start_syphon(
                    session, self._settings(session, private), self._state_dir(private)
                )
                self._watch(syphon)
        finally:
            if is_ours and session is not None:
                with suppress(Exception):  # A JVM that was killed cannot be asked to end.
                    session.stop()
            shutil.rmtree(private, ignore_errors=True)

    def _watch(self, syphon: Syphon) -> None:
        """Until somebody wants it to stop; raises what else ended it."""
        try:
            while True:
                with suppress(queue.Empty):
                    self._orders.get(timeout=WATCH_INTERVAL_S)
                    return
                syphon.check()
                self._tell_stall(syphon.status().stalled)
        finally:
            with suppress(Exception):
                syphon.stop(within_s=QUERY_STOP_S_MAX)

    def _tell_stall(self, reason: str) -> None:
        is_new, self._is_stalled = bool(reason) and not self._is_stalled, bool(reason)
        if is_new and self._loop is not None:
            with suppress(RuntimeError):  # The application's loop has ended before us.
                self._loop.call_soon_threadsafe(self._job.on_stall, reason)

    # -- what it is told ------------------------------------------------------------------

    def _settings(self, session: SparkSession, private: Path) -> SyphonSettings:
        job = self._job
        primary, secondary = [
            _reference(said) if said is not None else _file_for(role, driver, private)
            for role, driver, said in _sides(job)
        ]
        return SyphonSettings(
            primary=primary,
            secondary=secondary,
            primary_name=job.rules.primary_name,
            queues=tuple(job.queues),
            allowed=job.rules.allowed,
            ttl_policy=job.rules.ttl_policy,
            rate_per_s=job.hosting.rate_per_s,
        ).on(session)

    def _state_dir(self, private: Path) -> str:
        given = self._job.hosting.state_dir
        return str(private / "state" if given is None else given)


def _file_for(role: str, driver: Driver, private: Path) -> NamespaceRef:
    assert isinstance(driver, AmqpDriver)  # maker() has looked.
    access = driver.access()
    assert access is not None
    path = private / role
    path.touch(mode=0o600)
    path.write_text(access.to_text(), encoding="utf-8")
    return replace(NamespaceRef.of_file(path), ca_file=driver.options.ca_file)


_KINDS: Final = {"env": RefKind.ENV, "file": RefKind.FILE, "provider": RefKind.PROVIDER}


def _reference(said: str) -> NamespaceRef:
    kind, _colon, text = said.partition(":")
    if kind not in _KINDS:
        raise ConfigurationError(
            "a reference to a credential begins with env:, file: or provider:",
            hint="Such as env:SERVICEBUS_CONNECTION_STRING",
        )
    return NamespaceRef.from_options({_KINDS[kind].value: text})
