"""The syphon inside an application: what ``enable_syphon=True`` starts.

    start()   a thread gets a Spark session and starts the query
    stop()    the query ends after the chunks under way; what was made for it is removed

Spark starts in seconds and its calls block, so everything of it happens in that one thread, and
the application's event loop only waits.

Rule 1: a session that was there before is used and left running, as long as it lives; one that was
        made here ends with the last syphon that uses it.
Rule 2: a local Spark is given the credentials in files that only their owner can read, removed by
        stop(), or by the next start after the application was killed. A cluster's machines cannot
        read them: there the user says where they are.
Rule 3: stop() returns within about 5 s. While Spark is still starting nothing is under way, and
        it does not wait: the thread puts away what it has begun.
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

# The pair waits for 5 s. A task hears of the end within 0.6 s and ends within 3.3 s; then Spark
# ends the batch, and the query.
STOP_S_MAX: Final = 4.9
QUERY_STOP_S_MAX: Final = 4.5
WATCH_INTERVAL_S: Final = 1.0


def maker(job: SyphonRequest) -> Callable[[], HostedSyphon]:
    """What makes the syphon; says now what it would miss later."""
    session = _session_there_is(job)
    if session is None:
        find_java()
    _check(job, session)
    # Found here: in the syphon's own thread Spark would not tell of the application's session.
    return lambda: SparkSyphon(job, session)


def _check(job: SyphonRequest, session: SparkSession | None) -> None:
    """Whether Spark's processes can get at everything they need."""
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


def _sides(job: SyphonRequest) -> tuple[tuple[str, Driver, str | None], ...]:
    return (
        ("primary", _plain(job.primary), job.hosting.primary),
        ("secondary", _plain(job.secondary), job.hosting.secondary),
    )


def _plain(driver: Driver) -> Driver:
    """Spark's processes use drivers of their own, and keep books of their own."""
    return driver.inner if isinstance(driver, MeteredDriver) else driver


def _session_there_is(job: SyphonRequest) -> SparkSession | None:
    """The application's own session: what is active in this thread, or was made in any other."""
    forget_dead_spark()
    found: Any = job.hosting.spark or SparkSession.getActiveSession()
    if found is None and SparkContext._active_spark_context is not None:
        found = SparkSession.builder.getOrCreate()
    return None if found is None or is_own(found) else found


class SparkSyphon:
    """One run of a hosted syphon."""

    def __init__(self, job: SyphonRequest, session: SparkSession | None) -> None:
        """Without a session it uses one that all those syphons share, and that ends with them."""
        self._job, self._session = job, session
        self._orders: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Something in it: stop."""
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
            with translate_spark_errors():
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
        with ExitStack() as stack:
            private = stack.enter_context(private_directory())
            session = self._living_session()
            if session is None:
                session = stack.enter_context(hosted_session(self._job.hosting.tasks))
                _check(self._job, session)  # It may be one that the application has made since.
            if self._orders.empty():
                self._has_query = True
                syphon = start_syphon(
                    session, self._settings(session, private), self._state_dir(private)
                )
                self._watch(syphon)

    def _living_session(self) -> SparkSession | None:
        """The application's; one that it named is not replaced, and tells itself what is wrong."""
        forget_dead_spark()
        session = self._session
        is_lost = session is not None and is_over(session) and self._job.hosting.spark is None
        return None if is_lost else session

    def _watch(self, syphon: Syphon) -> None:
        """Until somebody wants it to stop; raises what else ended it."""
        try:
            while True:
                with suppress(queue.Empty):
                    self._orders.get(timeout=WATCH_INTERVAL_S)
                    return
                syphon.check()
                self._tell_events(syphon.status())
        finally:
            with suppress(Exception):
                syphon.stop(within_s=QUERY_STOP_S_MAX)
            self._tell_events(syphon.status())

    def _tell_events(self, status: Status) -> None:
        self._tell_refused(status.refused)
        self._tell_stall(status.stalled)
        self._tell_foreign(status.foreign)
        self._tell_dead_letters(status.counts.get(ReceiptOutcome.DEAD_LETTERED.value, 0))
        self._tell_moved(status.counts.get(ReceiptOutcome.MOVED.value, 0))

    def _tell_foreign(self, counts: dict[str, int]) -> None:
        for owner, count in counts.items():
            new = count - self._foreign.get(owner, 0)
            if new > 0:
                self._tell(partial(self._job.on_foreign, owner), new)
        self._foreign = dict(counts)

    def _tell_stall(self, reason: str) -> None:
        is_new, self._is_stalled = bool(reason) and not self._is_stalled, bool(reason)
        if is_new:
            self._tell(self._job.on_stall, reason)

    def _tell_refused(self, refused: Mapping[str, str]) -> None:
        listen, send = (
            [path for path in refused if refused[path] == claim] for claim in (LISTEN, SEND)
        )
        for path, claim in self._claims.observe(listen=listen, send=send):
            self._tell(lambda missing: self._job.on_refused(*missing), (path, claim))

    def _tell_dead_letters(self, count: int) -> None:
        new, self._dead_letter_count = count - self._dead_letter_count, count
        if new > 0:
            self._tell(self._job.on_dead_letters, new)

    def _tell_moved(self, count: int) -> None:
        new, self._moved_count = count - self._moved_count, count
        if new > 0:
            self._tell(self._job.on_moved, new)

    def _tell(self, listener: Callable[[Any], object], what: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # The application's loop has ended before us.
            self._loop.call_soon_threadsafe(listener, what)

    # -- what it is told ------------------------------------------------------------------

    def _settings(self, session: SparkSession, private: Path) -> SyphonSettings:
        job = self._job
        primary, secondary = [
            _reference(said) if said is not None else _file_for(role, driver, private)
            for role, driver, said in _sides(job)
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
