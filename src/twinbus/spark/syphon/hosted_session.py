"""The Spark session that hosted syphons share, and the private directory for their credentials.

Rule 1: Spark has one session for each process. All hosted syphons of an application that has none
        share the one that the first of them creates, and the last of them ends it. A session that
        the application creates meanwhile is used, and is not ended here.
Rule 2: a JVM that was killed is removed from PySpark's state, so that the next start creates
        another one. PySpark itself would keep using it, and every call would fail.
Rule 3: a private directory is removed by the process that created it, also when the interpreter
        ends first. That of a killed process is removed by the next process that creates one.
Rule 4: a lock on a file in the directory shows whether its process lives. That also works between
        containers that share a disk, where process ids mean nothing.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession, SQLContext

from twinbus.spark.runtime.session import LOCAL_CORES, local_session
from twinbus.spark.runtime.warm_up import wait_for_reads
from twinbus.spark.syphon import APP_NAME, MODULES

__all__ = [
    "end_session",
    "forget_dead_spark",
    "hosted_session",
    "is_over",
    "is_own",
    "private_directory",
]


class _Own:
    """The session, and how many use it."""

    session: SparkSession | None = None
    user_count = 0
    is_starting = False


_turn: Final = threading.Lock()
OWNER: Final = "spark.twinbus.owner"


@contextmanager
def hosted_session(tasks: int | None = None) -> Iterator[SparkSession]:
    """The session that hosted syphons share, in the block; or the application's, if there is one
    by now. ``tasks`` of the first syphon is the number of tasks at the same time."""
    with _turn:
        forget_dead_spark()
        session = _Own.session
        if session is None or is_over(session):
            session, is_ours = _create_session(tasks)
            _Own.session, _Own.user_count = (session if is_ours else None), 0
        if session is _Own.session:
            _Own.user_count += 1
    try:
        yield session
    finally:
        with _turn:
            # Another one may have been created meanwhile, when this one was killed.
            if session is _Own.session:
                _Own.user_count -= 1
                if not _Own.user_count:
                    # First: until it has ended it must not count as the application's.
                    end_session(session)
                    _Own.session = None


def _create_session(tasks: int | None) -> tuple[SparkSession, bool]:
    """A session, and whether it was created here."""
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate(), False
    owner = uuid4().hex
    _Own.is_starting = True
    try:
        session = local_session(
            APP_NAME,
            cores=max(tasks or 0, LOCAL_CORES),
            fast_start=True,
            modules=MODULES,
            more={OWNER: owner},
        )
        # The application may have created one first.
        return session, session.sparkContext.getConf().get(OWNER) == owner
    finally:
        _Own.is_starting = False


def is_own(session: SparkSession) -> bool:
    """Whether it ends with the last hosted syphon, and is not the application's."""
    # PySpark also returns a session that is still starting, before it is stored here.
    own = _Own.session
    return _Own.is_starting or (own is not None and _context(session) is _context(own))


def is_over(session: SparkSession) -> bool:
    """Whether it was stopped, or its JVM was killed."""
    context = _context(session)
    return context is not None and SparkContext._active_spark_context is not context


def _context(session: SparkSession) -> Any:
    """None for Spark Connect: the server has the context."""
    return getattr(session, "_sc", None)


def end_session(session: SparkSession) -> None:
    """Stop it; one whose JVM has ended is removed from PySpark's state instead."""
    if not forget_dead_spark():
        wait_for_reads()
        with suppress(Exception):  # It may be killed at this very moment.
            session.stop()


def forget_dead_spark() -> bool:
    """Remove a JVM that was not stopped, but has ended, from PySpark's state; whether there was
    one."""
    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None or process.poll() is None:
        return False
    with SparkContext._lock:
        current: Any = SparkContext._gateway
        if current is not gateway:
            return False  # Another thread was first, and may have started another one.
        # The same as stop() of a context and a session, without the calls into the JVM.
        context: Any = SparkContext._active_spark_context
        if context is not None and getattr(context, "_accumulatorServer", None) is not None:
            context._accumulatorServer.shutdown()
        SparkContext._active_spark_context = None
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SQLContext._instantiatedContext = None
    with suppress(Exception):
        gateway.close()
    return True


# No user's own directory has such a name and such a file in it: directories with both are removed.
PREFIX: Final = "twinbus-private-"
LOCK: Final = ".twinbus-private-lock"


@contextmanager
def private_directory() -> Iterator[Path]:
    """A new directory in the block, for its owner only."""
    root = Path(tempfile.gettempdir())
    _sweep(root)
    # Another name until it is locked: another process must not take it for an abandoned one.
    draft = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=root))  # Mode 0700.
    path = draft.with_name(draft.name[1:])
    lock = os.open(draft / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    at_exit = partial(_remove, path, os.getpid())
    atexit.register(at_exit)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        draft.rename(path)
        yield path
    finally:
        _remove(draft)
        _remove(path)
        os.close(lock)
        atexit.unregister(at_exit)


def _remove(path: Path, creator_pid: int | None = None) -> None:
    # A process that was forked from its creator may end while the creator goes on.
    if creator_pid in (None, os.getpid()):
        shutil.rmtree(path, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove the directories of processes that were killed."""
    for path in root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # In use, or removed already.
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path / LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
            finally:
                os.close(lock)
