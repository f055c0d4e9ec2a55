"""The metering of a client: its operations on a namespace, counted and written (rule C1).

    a driver's calls --count--> meter --thread--> DIR/NAMESPACE/operations-RUN-2026-11-16.jsonl
                     --sent---> waiting lines ---> DIR/NAMESPACE/audit-RUN-2026-11-16.jsonl

    {"version":1,"run":"5f0c…","number":2,"source":"client","namespace":"contoso","at":"…",
     "entity":"orders","event":"sent","message_id":"order-7",
     "via":"contoso/x-servicebus-transfer/3","bytes":311}

Rule 1: a thread of its own writes: no send waits for a disk. If the disk is full or broken, log
        lines are lost, but no send fails. Other errors of metering fail no send either: call the
        meter inside of ``harmless``.
Rule 2: only operations with a successful answer are counted: an attempt that failed is not, even
        if it may have arrived.
Rule 3: every client has a run of its own, and files that are named after it: processes share none,
        and a forked one starts a new run. Nothing is written before the first operation.
Rule 4: the audit log names messages by their ids and has no bodies. A message is in it after its
        acknowledgement, never before. A diverted message is in the audit log of the primary that
        it is meant for.
Rule 5: a meter that was not closed is closed when its process ends, unless it is killed.
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
from twinbus.metering.json_lines import JsonLines, LogLimiter, timestamp
from twinbus.metering.log_retention import check_keep_days
from twinbus.metering.operations_log import Meter, OperationsLog, operations_log

__all__ = ["ClientMeter"]

logger = logging.getLogger("twinbus.metering")

# A disk that does not respond must not fill the memory: about 20 MB.
SENT_WAITING_MAX: Final = 100_000
# Between two writes of the audit log; a kill loses the lines of that time.
AUDIT_PAUSE_S: Final = 0.1
CLOSE_TIMEOUT_S: Final = 5.0
# How long a namespace has to return its name; close() waits no longer than that.
ASK_TIMEOUT_S: Final = 4.0

_PING_BYTES: Final = PING_CONTENT_TYPE.encode()
_PING_SIZE_MAX: Final = 1_024

AskName = Callable[[], Awaitable[str]]
"""Requests the name of a namespace; may raise any error."""


class _Sent(NamedTuple):
    """What a line of the audit log is made from."""

    at_ms: int
    path: str
    destination: str
    """The destination of a message in a backlog queue; empty for all others."""
    message_id: str | None
    size: int

    @property
    def primary(self) -> str:
        """The primary whose audit log it belongs to; empty for the namespace it was sent to."""
        return backlog_owner(self.path) if self.destination else ""


class _Harmless:
    """Around all metering calls: an error is logged, and not raised."""

    def __init__(self) -> None:
        self._log_limiter = LogLimiter()

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
        if self._log_limiter.is_due():
            logger.error("Metering is incomplete: %s", _describe(error))
        return True


class ClientMeter:
    """The metering of one client of one namespace. Any thread may count."""

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
        """``name`` is that of the namespace, if it is known; otherwise it is requested with
        ``ask_name``, and ``other_name`` is used if that fails."""
        self.directory = directory
        self.harmless = _Harmless()
        self._name = name
        self._other_name = other_name
        self._ask_name = ask_name
        self.has_audit = audit
        self.keep_days = check_keep_days(keep_days)
        self._clock = clock or SystemClock()
        self.restart()
        _not_closed.add(self)

    def restart(self) -> None:
        """Start a new run; also in a forked process, which has no thread of this meter, and whose
        parent writes what was counted before."""
        self.run = f"{secrets.randbits(64):016x}"
        self._lock = threading.Lock()
        self._meter = Meter()
        self._meter.on_full = self._on_full
        self._is_full = False
        self._sent: list[_Sent] = []
        self._lost: Counter[str] = Counter()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._written_name: str | None = None

    def set_name(self, name: str) -> None:
        """Set the name of the namespace. A log that was started keeps its name."""
        with self._lock:
            begun = self._written_name
            if begun is None:
                self._name = name
        if begun not in (None, name):
            logger.warning(
                "Metering of namespace %r started under this name and keeps it, although the "
                "namespace is named %r. Set namespace_name of the factory",
                begun,
                name,
            )

    # -- counting -----------------------------------------------------------------------------

    def sent(self, path: str, messages: Sequence[bytes], *, is_own: bool) -> None:
        """One send was acknowledged. ``is_own``: this client created the messages, they are not
        moved ones."""
        path = path.lower()
        pings = [message for message in messages if _is_ping(message)]
        if pings:
            messages = [message for message in messages if not _is_ping(message)]
        sizes = [len(message) for message in messages]
        lines = self._sent_lines(path, messages) if is_own and self.has_audit else ()
        with self._lock:
            if pings:
                self._meter.counter(path, Operation.PING).add_incoming(1, len(pings), len(pings), 0)
            if sizes:
                counter = self._meter.counter(path, Operation.SEND)
                counter.add_incoming(1, len(sizes), units_of(sizes), sum(sizes))
            room = SENT_WAITING_MAX - len(self._sent)
            self._sent += lines[:room]
            if len(lines) > room:
                self._lost.update(each.primary for each in lines[room:])
        self._begin()
        if lines:
            self._wake.set()

    def received(self, path: str, operation: Operation, sizes: Sequence[int]) -> None:
        """Messages were received, or a request for some returned none."""
        units = max(1, units_of(sizes))
        with self._lock:
            self._meter.counter(path.lower(), operation).add_outgoing(len(sizes), units, sum(sizes))
        self._begin()

    def settled(self, path: str, count: int) -> None:
        with self._lock:
            self._meter.counter(path.lower(), Operation.SETTLE).add_incoming(1, count, 0, 0)
        self._begin()

    def add_request(self, path: str, operation: Operation) -> None:
        """A request without a message was answered."""
        with self._lock:
            self._meter.counter(path.lower(), operation).add_request()
        self._begin()

    def _sent_lines(self, path: str, messages: Sequence[bytes]) -> list[_Sent]:
        at_ms = self._clock.now().wall_ms
        if not backlog_owner(path):
            return [_Sent(at_ms, path, "", read_message_id(each), len(each)) for each in messages]
        return [_Sent(at_ms, path, *read_destination(each), len(each)) for each in messages]

    def _on_full(self) -> None:
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
        """Write the remaining lines and the last one; may be called twice, and blocks until they
        are written, for CLOSE_TIMEOUT_S at most."""
        _not_closed.discard(self)
        self._closing.set()
        self._wake.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                logger.error(
                    "Metering of namespace %s: the last lines were not written within %g s",
                    self._written_name or self._other_name,
                    CLOSE_TIMEOUT_S,
                )

    def _write(self) -> None:
        try:
            self._write_logs(self._find_name())
        except Exception as error:  # Of any kind: a thread must not end without a log line.
            logger.error(
                "Metering of namespace %s stopped: %s",
                self._name or self._other_name,
                _describe(error),
            )

    def _write_logs(self, name: str) -> None:
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
        unreported, log_limiter = 0, LogLimiter()
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
                unreported += lost.total()
            if job is not None:  # The next interval begins now, however slow the disk is.
                due_s = time.monotonic() + log.until_interval_ends_s()
            if unreported and (is_over or log_limiter.is_due()):
                logger.error("Audit log: %d lines dropped because the disk is too slow", unreported)
                unreported = 0
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

    def _find_name(self) -> str:
        """The name of the namespace, requested once, in this thread, so that no send waits for it.
        Without an answer another name is used: lines are more important than their name."""
        returned = None
        if self._name is None and self._ask_name is not None:
            try:
                returned = asyncio.run(_request_name(self._ask_name))
            except Exception as error:  # A library below may raise any error.
                logger.warning(
                    "Metering uses the namespace name %s, because the namespace did not return its "
                    "name: %s. Set namespace_name of the factory",
                    self._other_name,
                    _describe(error),
                )
        with self._lock:
            self._written_name = self._name or returned or self._other_name
            return self._written_name

    def _write_sent(
        self, name: str, sent: list[_Sent], lost: Counter[str], audits: dict[str, AuditLines]
    ) -> None:
        by_namespace: dict[str, list[_Sent]] = {}
        for each in sent:
            by_namespace.setdefault(each.primary or name, []).append(each)
        for namespace, some in by_namespace.items():
            if namespace not in audits:
                audits[namespace] = self._open_audit(namespace, some[0].at_ms)
            audits[namespace].append(some[0].at_ms, [_record(each) for each in some])
        # Lines are lost only while others wait: their audit log is open.
        for primary, count in lost.items():
            if (primary or name) in audits:
                audits[primary or name].lost(count)

    def _open_audit(self, namespace: str, at_ms: int) -> AuditLines:
        lines = JsonLines(self.directory / namespace, f"audit-{self.run}", keep_days=self.keep_days)
        audit = AuditLines(lines, self.run, namespace, source="client")
        audit.opened(at_ms)
        return audit


# -- the end of a process, and forks --------------------------------------------------------------

_not_closed: Final[WeakSet[ClientMeter]] = WeakSet()


def _close_all() -> None:
    for meter in tuple(_not_closed):
        meter.close()


def _restart_all() -> None:
    for meter in tuple(_not_closed):
        meter.restart()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_restart_all)


async def _request_name(ask_name: AskName) -> str:
    async with asyncio.timeout(ASK_TIMEOUT_S):
        return await ask_name()


def _describe(error: Exception) -> str:
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
    # A ping has no body: a large message is not a ping, and need not be searched.
    if len(message) > _PING_SIZE_MAX or _PING_BYTES not in message:
        return False
    try:
        return is_ping(message)
    except DAMAGE:  # The service accepted it; no send fails because of metering.
        return False
