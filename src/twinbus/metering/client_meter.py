"""A client's own books: what it does to a namespace, counted and written down (rule C1).

    a driver's calls --count--> meter --thread--> DIR/NAMESPACE/operations-RUN-2026-11-16.jsonl
                     --sent---> waiting lines ---> DIR/NAMESPACE/audit-RUN-2026-11-16.jsonl

    {"version":1,"run":"5f0c…","number":2,"source":"client","namespace":"contoso","at":"…",
     "entity":"orders","event":"sent","message_id":"order-7",
     "via":"contoso/x-servicebus-transfer/3","bytes":311}

Rule 1: a thread of its own writes: nobody who sends waits for a disk, and a full or broken one
        costs lines, never sends. Neither does any other trouble of the books: count inside of
        ``harmless``.
Rule 2: what was counted is what was answered: an attempt that failed is not in the books, also
        where it may have arrived.
Rule 3: every client has a run of its own, and files that are named after it: processes share
        none, and a forked one begins anew. Nothing is written before the first operation.
Rule 4: the audit names messages by their ids, never by their bodies. It is ahead of nobody: a
        message stands in it once its acknowledgement is here. A message that went round by a
        backlog queue is in the books of the primary that it is meant for.
Rule 5: books that nobody has closed are closed when their process ends, unless it is killed.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple
from weakref import WeakSet

from twinbus.common.clock import Clock, SystemClock
from twinbus.common.entity_path import backlog_owner
from twinbus.cost.units import Operation, units_of
from twinbus.encoding.envelope import is_ping, read_destination, read_message_id
from twinbus.encoding.ping import PING_CONTENT_TYPE
from twinbus.encoding.splicing import DAMAGE
from twinbus.metering.audit_log import AuditLines
from twinbus.metering.json_lines import JsonLines, Seldom, timestamp
from twinbus.metering.log_retention import check_keep_days
from twinbus.metering.operations_log import Meter, OperationsLog, operations_log

__all__ = ["ClientMeter"]

logger = logging.getLogger("twinbus.metering")

# A disk that has stopped must not fill the memory: about 20 MB.
SENT_WAITING_MAX: Final = 100_000
# Between two writes of the audit log; a kill costs the lines of that time.
AUDIT_PAUSE_S: Final = 0.1
CLOSE_TIMEOUT_S: Final = 5.0
# A namespace that does not tell its name keeps nobody longer, who closes its books included.
ASK_TIMEOUT_S: Final = 4.0

_PING_BYTES: Final = PING_CONTENT_TYPE.encode()
_PING_SIZE_MAX: Final = 1_024

AskName = Callable[[], Awaitable[str]]
"""Asks a namespace what it is called; may raise anything."""


class _Sent(NamedTuple):
    """A line of the audit, before it is one."""

    at_ms: int
    path: str
    destination: str
    """Where a message in a backlog queue is meant to go; empty for all others."""
    message_id: str | None
    size: int

    @property
    def primary(self) -> str:
        """Whose books it belongs to; empty for the namespace that it was sent to."""
        return backlog_owner(self.path) if self.destination else ""


class _Harmless:
    """Around what is done for the books: trouble is said, and goes no further."""

    def __init__(self) -> None:
        self._saying = Seldom()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if self._saying.is_due():
            logger.error("the books are not complete: %s", _said(error))
        return True


class ClientMeter:
    """The books of one client of one namespace. Any thread may count."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str | None,
        other_name: str,
        ask_name: AskName | None = None,
        audit: bool = False,
        keep_days: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``name`` is the namespace's, where it is known; otherwise it is asked for, and
        ``other_name`` takes its place where nobody tells it."""
        self.directory = directory
        self.harmless = _Harmless()
        self._name = name
        self._other_name = other_name
        self._ask_name = ask_name
        self.has_audit = audit
        self.keep_days = check_keep_days(keep_days)
        self._clock = clock or SystemClock()
        self.begin_anew()
        _not_closed.add(self)

    def begin_anew(self) -> None:
        """A run that nobody else has; for a forked process, where no thread of these books goes
        on, and whose parent writes what was counted before."""
        self.run = f"{secrets.randbits(64):016x}"
        self._lock = threading.Lock()
        self._meter = Meter()
        self._meter.on_full = self._filled
        self._is_full = False
        self._sent: list[_Sent] = []
        self._lost: Counter[str] = Counter()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._written_name: str | None = None

    def named(self, name: str) -> None:
        """Somebody knows better what the namespace is called. Books that are begun keep theirs."""
        with self._lock:
            begun = self._written_name
            if begun is None:
                self._name = name
        if begun not in (None, name):
            logger.warning(
                "the books of %r were begun under that name and keep it, although it is called "
                "%r. Give the factory its namespace_name",
                begun,
                name,
            )

    # -- counting -----------------------------------------------------------------------------

    def sent(self, path: str, messages: Sequence[bytes], *, is_own: bool) -> None:
        """One send was acknowledged. ``is_own``: these messages begin here, and are not moved."""
        path = path.lower()
        pings = [message for message in messages if _is_ping(message)]
        if pings:
            messages = [message for message in messages if not _is_ping(message)]
        sizes = [len(message) for message in messages]
        lines = self._sent_lines(path, messages) if is_own and self.has_audit else ()
        with self._lock:
            if pings:
                self._meter.counter(path, Operation.PING).took_in(1, len(pings), len(pings), 0)
            if sizes:
                tally = self._meter.counter(path, Operation.SEND)
                tally.took_in(1, len(sizes), units_of(sizes), sum(sizes))
            room = SENT_WAITING_MAX - len(self._sent)
            self._sent += lines[:room]
            if len(lines) > room:
                self._lost.update(each.primary for each in lines[room:])
        self._begin()
        if lines:
            self._wake.set()

    def received(self, path: str, operation: Operation, sizes: Sequence[int]) -> None:
        """Messages came; or a request for some was answered with none."""
        units = max(1, units_of(sizes))
        with self._lock:
            self._meter.counter(path.lower(), operation).gave_out(len(sizes), units, sum(sizes))
        self._begin()

    def settled(self, path: str, count: int) -> None:
        with self._lock:
            self._meter.counter(path.lower(), Operation.SETTLE).took_in(1, count, 0, 0)
        self._begin()

    def happened(self, path: str, operation: Operation) -> None:
        """A request that carries no message."""
        with self._lock:
            self._meter.counter(path.lower(), operation).happened()
        self._begin()

    def _sent_lines(self, path: str, messages: Sequence[bytes]) -> list[_Sent]:
        at_ms = self._clock.now().wall_ms
        if not backlog_owner(path):
            return [_Sent(at_ms, path, "", read_message_id(each), len(each)) for each in messages]
        return [_Sent(at_ms, path, *read_destination(each), len(each)) for each in messages]

    def _filled(self) -> None:
        self._is_full = True
        self._wake.set()

    # -- writing ------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._write, name="twinbus-metering", daemon=True
                    )
                    thread.start()  # May be refused; then the next count tries again.
                    self._thread = thread

    def close(self) -> None:
        """Write what is left, and that nothing comes after it; may be called twice, and blocks
        for a moment."""
        _not_closed.discard(self)
        self._closing.set()
        self._wake.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                logger.error(
                    "the books of %s have no end: they were not written within %g s",
                    self._written_name or self._other_name,
                    CLOSE_TIMEOUT_S,
                )

    def _write(self) -> None:
        try:
            self._keep(self._found_name())
        except Exception as error:  # Whatever it is: a thread must not end in silence.
            logger.error(
                "the books of %s end here: %s", self._name or self._other_name, _said(error)
            )

    def _keep(self, name: str) -> None:
        log = operations_log(
            self.directory,
            name,
            self._meter,
            self.run,
            self._clock,
            source="client",
            keep_days=self.keep_days,
        )
        audits: dict[str, AuditLines] = {}
        unsaid, saying = 0, Seldom()
        log.opened()()
        is_over, due_s = False, time.monotonic() + log.until_interval_ends_s()
        while not is_over:
            self._wake.wait(max(0.0, due_s - time.monotonic()))
            self._wake.clear()
            is_over, is_due = self._closing.is_set(), time.monotonic() >= due_s
            with self._lock:
                job = self._job(log, is_due=is_due, is_over=is_over)
                sent, self._sent = self._sent, []
                lost, self._lost = self._lost, Counter()
                unsaid += lost.total()
            if job is not None:  # The next interval has begun, however long the disk takes.
                due_s = time.monotonic() + log.until_interval_ends_s()
            if unsaid and (is_over or saying.is_due()):
                logger.error("%d lines of the audit log are missing: the disk is too slow", unsaid)
                unsaid = 0
            self._write_sent(name, sent, lost, audits)
            if is_over:
                for audit in audits.values():
                    audit.closed(self._clock.now().wall_ms)
            if job is not None:
                job()
            if sent:
                self._closing.wait(min(AUDIT_PAUSE_S, max(0.0, due_s - time.monotonic())))

    def _job(self, log: OperationsLog, *, is_due: bool, is_over: bool) -> Callable[[], None] | None:
        if is_over:
            return log.close()
        is_full, self._is_full = self._is_full, False
        return log.take(is_early=not is_due) if is_due or is_full else None

    def _found_name(self) -> str:
        """Asked for once, in this thread, where nobody waits for it: lines are worth more than
        the name that they stand under."""
        asked = None
        if self._name is None and self._ask_name is not None:
            try:
                asked = asyncio.run(_answer(self._ask_name))
            except Exception as error:  # A library below may raise what it likes.
                logger.warning(
                    "the books of %s are kept under that name, because the namespace did not tell "
                    "its own: %s. Give the factory its namespace_name",
                    self._other_name,
                    _said(error),
                )
        with self._lock:
            self._written_name = self._name or asked or self._other_name
            return self._written_name

    def _write_sent(
        self, name: str, sent: list[_Sent], lost: Counter[str], audits: dict[str, AuditLines]
    ) -> None:
        of: dict[str, list[_Sent]] = {}
        for each in sent:
            of.setdefault(each.primary or name, []).append(each)
        for namespace, some in of.items():
            if namespace not in audits:
                audits[namespace] = self._opened_audit(namespace, some[0].at_ms)
            audits[namespace].append(some[0].at_ms, [_record(each) for each in some])
        # Lines are lost when others wait: their audit is open.
        for primary, count in lost.items():
            if (primary or name) in audits:
                audits[primary or name].lost(count)

    def _opened_audit(self, namespace: str, at_ms: int) -> AuditLines:
        lines = JsonLines(self.directory / namespace, f"audit-{self.run}", keep_days=self.keep_days)
        audit = AuditLines(lines, self.run, namespace, source="client")
        audit.opened(at_ms)
        return audit


# -- the end of a process, and the beginning of another ------------------------------------------

_not_closed: Final[WeakSet[ClientMeter]] = WeakSet()


def _close_all() -> None:
    for books in tuple(_not_closed):
        books.close()


def _begin_anew() -> None:
    for books in tuple(_not_closed):
        books.begin_anew()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_begin_anew)


async def _answer(ask_name: AskName) -> str:
    async with asyncio.timeout(ASK_TIMEOUT_S):
        return await ask_name()


def _said(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _record(sent: _Sent) -> dict[str, object]:
    return {
        "at": timestamp(sent.at_ms),
        "entity": sent.destination.lower() or sent.path,
        "event": "sent",
        "message_id": sent.message_id,
        "via": sent.path if sent.destination else "",
        "bytes": sent.size,
    }


def _is_ping(message: bytes) -> bool:
    # A ping has no body: whatever is large is none, and need not be looked through.
    if len(message) > _PING_SIZE_MAX or _PING_BYTES not in message:
        return False
    try:
        return is_ping(message)
    except DAMAGE:  # Whoever took it knows better; no send fails because of its books.
        return False
