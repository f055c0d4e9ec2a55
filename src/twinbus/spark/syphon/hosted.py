"""The syphon inside an application: what ``enable_syphon=True`` starts.

    start()   a thread gets a Spark session and starts the query
    stop()    the query ends after the chunks under way; its private files are removed

Spark starts in seconds and its calls block, so all of them are made in that one thread, and the
application's event loop only waits.

Rule 1: a session that existed before is used and left running; one that was created here ends with
        the last syphon that uses it.
Rule 2: a local Spark gets the credentials in files that only their owner can read, removed by
        stop(), or by the next start after the application was killed. The machines of a cluster
        cannot read them: there the application sets references.
Rule 3: stop() returns within about 5 s. While Spark is still starting nothing is under way, and
        it does not wait: the thread ends what it has started.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.interface import Driver
from twinbus.drivers.metered import MeteredDriver
from twinbus.errors import ConfigurationError
from twinbus.failover.missing_claims import LISTEN, SEND, ClaimMonitor
from twinbus.mover.planning.receipts import ReceiptOutcome
from twinbus.pairing.syphon_hosting import HostedSyphon, SyphonRequest
from twinbus.spark.connection_refs import NamespaceRef, RefKind
from twinbus.spark.errors import translate_spark_errors
from twinbus.spark.runtime.java import find_java
from twinbus.spark.syphon.hosted_session import (
    forget_dead_spark,
    hosted_session,
    is_over,
    is_own,
    private_directory,
)
from twinbus.spark.syphon.query import Syphon, start_syphon
from twinbus.spark.syphon.settings import SyphonSettings, is_local
from twinbus.spark.syphon.state_directory import Status

__all__ = ["SparkSyphon", "maker"]

# The pair waits for 5 s. A task gets the request to stop within 0.6 s and ends within 3.3 s; then
# Spark ends the batch, and the query.
STOP_S_MAX: Final = 4.9
QUERY_STOP_S_MAX: Final = 4.5
WATCH_INTERVAL_S: Final = 1.0


def maker(job: SyphonRequest) -> Callable[[], HostedSyphon]:
    """A function that creates the syphon; raises now if a requirement is not met."""
    session = _current_session(job)
    if session is None:
        find_java()
    _check(job, session)
    # Found here: in the syphon's own thread Spark does not return the application's session.
    return lambda: SparkSyphon(job, session)


def _check(job: SyphonRequest, session: SparkSession | None) -> None:
    """Whether Spark's processes can use everything they need."""
    for role, driver, reference in _sides(job):
        if reference is not None:
            _parse_reference(reference)
        elif session is not None and not is_local(session):
            raise ConfigurationError(
                f"The machines of a Spark cluster have no access to the {role}'s credential",
                hint=f"Set a reference to it: SyphonHosting({role}='env:NAME')",
            )
        elif not isinstance(driver, AmqpDriver) or driver.access() is None:
            raise ConfigurationError(
                f"Spark's processes cannot use the {role}'s credential: it is an object of this "
                "process",
                hint="Set a provider that returns one: "
                f"SyphonHosting({role}='provider:package.module:name')",
            )
    if session is not None and job.hosting.state_dir is None and not is_local(session):
        raise ConfigurationError(
            "The machines of a Spark cluster cannot write to a temporary directory of this machine",
            hint="Set a state directory that all of them share: SyphonHosting(state_dir=...)",
        )


def _sides(job: SyphonRequest) -> tuple[tuple[str, Driver, str | None], ...]:
    return (
        ("primary", _plain(job.primary), job.hosting.primary),
        ("secondary", _plain(job.secondary), job.hosting.secondary),
    )


def _plain(driver: Driver) -> Driver:
    """The driver without metering: Spark's processes have drivers and metering of their own."""
    return driver.inner if isinstance(driver, MeteredDriver) else driver


def _current_session(job: SyphonRequest) -> SparkSession | None:
    """The application's own session: active in this thread, or created in any other."""
    forget_dead_spark()
    found: Any = job.hosting.spark or SparkSession.getActiveSession()
    if found is None and SparkContext._active_spark_context is not None:
        found = SparkSession.builder.getOrCreate()
    return None if found is None or is_own(found) else found


class SparkSyphon:
    """One run of a hosted syphon."""

    def __init__(self, job: SyphonRequest, session: SparkSession | None) -> None:
        """Without a session it uses one that all hosted syphons share, and that ends with them."""
        self._job, self._session = job, session
        self._orders: queue.SimpleQueue[None] = queue.SimpleQueue()
        """An item in it requests the stop."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._is_stopping = False
        self._has_query = False
        self._is_stalled = False
        self._dead_letter_count = 0
        self._moved_count = 0
        self._foreign: dict[str, int] = {}
        self._claims = ClaimMonitor()

    def start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="twinbus-syphon", daemon=True)
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

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with translate_spark_errors():
                self._host()
        except BaseException as raised:
            error = raised
        finally:
            loop = self._loop
            assert loop is not None
            with suppress(RuntimeError):  # The application's loop has ended already.
                loop.call_soon_threadsafe(self._finish, error)

    def _finish(self, error: BaseException | None) -> None:
        self._ended.set()
        if error is not None and not self._is_stopping:
            self._job.on_end(error)

    def _host(self) -> None:
        with ExitStack() as stack:
            private = stack.enter_context(private_directory())
            session = self._active_session()
            if session is None:
                session = stack.enter_context(hosted_session(self._job.hosting.tasks))
                _check(self._job, session)  # It may be one that the application created since.
            if self._orders.empty():
                self._has_query = True
                syphon = start_syphon(
                    session, self._settings(session, private), self._state_dir(private)
                )
                self._watch(syphon)

    def _active_session(self) -> SparkSession | None:
        """The application's session; one that its options name is never replaced, and its own
        errors show if it has ended."""
        forget_dead_spark()
        session = self._session
        is_lost = session is not None and is_over(session) and self._job.hosting.spark is None
        return None if is_lost else session

    def _watch(self, syphon: Syphon) -> None:
        """Wait for stop(); raises the error if the query ends before."""
        try:
            while True:
                with suppress(queue.Empty):
                    self._orders.get(timeout=WATCH_INTERVAL_S)
                    return
                syphon.check()
                self._notify_all(syphon.status())
        finally:
            with suppress(Exception):
                syphon.stop(within_s=QUERY_STOP_S_MAX)
            self._notify_all(syphon.status())

    def _notify_all(self, status: Status) -> None:
        self._notify_refused(status.refused)
        self._notify_stall(status.stalled)
        self._notify_foreign(status.foreign)
        self._notify_dead_letters(status.counts.get(ReceiptOutcome.DEAD_LETTERED.value, 0))
        self._notify_moved(status.counts.get(ReceiptOutcome.MOVED.value, 0))

    def _notify_foreign(self, counts: dict[str, int]) -> None:
        for owner, count in counts.items():
            new = count - self._foreign.get(owner, 0)
            if new > 0:
                self._notify(partial(self._job.on_foreign, owner), new)
        self._foreign = dict(counts)

    def _notify_stall(self, reason: str) -> None:
        is_new, self._is_stalled = bool(reason) and not self._is_stalled, bool(reason)
        if is_new:
            self._notify(self._job.on_stall, reason)

    def _notify_refused(self, refused: Mapping[str, str]) -> None:
        listen, send = (
            [path for path in refused if refused[path] == claim] for claim in (LISTEN, SEND)
        )
        for path, claim in self._claims.observe(listen=listen, send=send):
            self._notify(lambda missing: self._job.on_refused(*missing), (path, claim))

    def _notify_dead_letters(self, count: int) -> None:
        new, self._dead_letter_count = count - self._dead_letter_count, count
        if new > 0:
            self._notify(self._job.on_dead_letters, new)

    def _notify_moved(self, count: int) -> None:
        new, self._moved_count = count - self._moved_count, count
        if new > 0:
            self._notify(self._job.on_moved, new)

    def _notify(self, listener: Callable[[Any], object], what: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # The application's loop has ended already.
            self._loop.call_soon_threadsafe(listener, what)

    # -- settings -------------------------------------------------------------------------

    def _settings(self, session: SparkSession, private: Path) -> SyphonSettings:
        job = self._job
        primary, secondary = [
            _write_credential(role, driver, private)
            if reference is None
            else _parse_reference(reference)
            for role, driver, reference in _sides(job)
        ]
        settings = SyphonSettings(
            primary=primary,
            secondary=secondary,
            primary_name=job.rules.primary_name,
            queues=tuple(job.queues),
            allowed=job.rules.allowed,
            ttl_policy=job.rules.ttl_policy,
            owner=job.rules.owner,
            accepted_owners=job.rules.accepted_owners,
            rate_per_s=job.hosting.rate_per_s,
            metering=None if job.metering is None else str(job.metering.resolve()),
            keep_days=job.keep_days,
            driver=job.hosting.driver,
        ).on(session)
        return replace(settings, tasks=job.hosting.tasks or settings.tasks)

    def _state_dir(self, private: Path) -> str:
        state_dir = self._job.hosting.state_dir
        return str(private / "state" if state_dir is None else state_dir)


def _write_credential(role: str, driver: Driver, private: Path) -> NamespaceRef:
    assert isinstance(driver, AmqpDriver)  # Checked by maker().
    access = driver.access()
    assert access is not None
    path = private / role
    path.touch(mode=0o600)
    path.write_text(access.to_text(), encoding="utf-8")
    return replace(NamespaceRef.of_file(path), ca_file=driver.options.ca_file)


_KINDS: Final = {"env": RefKind.ENV, "file": RefKind.FILE, "provider": RefKind.PROVIDER}


def _parse_reference(reference: str) -> NamespaceRef:
    kind, _colon, text = reference.partition(":")
    if kind not in _KINDS:
        raise ConfigurationError(
            "A reference to a credential must start with env:, file: or provider:",
            hint="For example, use env:SERVICEBUS_CONNECTION_STRING",
        )
    return NamespaceRef.from_options({_KINDS[kind].value: text})
