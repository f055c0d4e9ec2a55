"""Events of a pair: for subscribers, the log and the journal; and reading a journal.

    EventRecord   an event with its time in UTC and the addresses of the pair
    EventHub      publish --> stream 1, stream 2, ...   bounded: the oldest is dropped and counted
                          --> callbacks                 their errors are logged and stop nothing
                          --> logger "twinbus"          warnings and errors, info for their end
                          --> journal                   if the options name a file
    Journal       a file with every event as one line of JSON (P16)
    diversions()  which entities are diverted, by the lines of a journal; pure

    {"event": "diverted", "at": "2026-03-01T12:00:00+00:00", "path": "orders", "reason": ...}

Rule 1: the monotonic clock means nothing outside this process: every time is published as UTC.
Rule 2: a time that is not earlier on the monotonic clock is not earlier in UTC, unless the clock
        of the machine was set in the meantime.
Rule 3: a separate thread writes and syncs lines: the event loop never waits for a disk, and a full
        or broken disk costs lines, never sends.
Rule 4: a line is written whole or, after a power failure, torn at the end of the file; the next
        writer begins a new line and the reader skips torn ones.
Rule 5: with ``keep_days``, older lines are dropped when the file is opened and after the first
        event of a day: the other lines are written to a new file, which then replaces the old one.
        Several senders may write one journal: each has a shared lock, and only a sender that can
        get an exclusive lock drops lines.
Rule 6: publishing never waits and never fails a send.
Rule 7: the first diversion sets the start of an outage, the last event of an entity its state.
Rule 8: a killed process writes no last line: ``last_event`` shows how old the state is. While an
        entity is diverted its pings are events, one for each interval.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import logging
import os
import queue
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

from twinbus.common.argument_types import type_shown
from twinbus.errors import ConfigurationError
from twinbus.failover.events import (
    BacklogDrained,
    BacklogExhaustedEvent,
    BacklogQueueReinstated,
    BacklogQueueWithdrawn,
    BacklogReady,
    BacklogThresholdCrossed,
    BacklogUnattended,
    BacklogUnreachable,
    ClaimMissing,
    DeadLettered,
    Diverted,
    EntityHeld,
    Event,
    FactoryClosedEvent,
    FactoryFaultedEvent,
    ForeignMessages,
    PingFailed,
    PingRefused,
    PingSent,
    PossibleDuplicate,
    Restored,
    RestoreDelayed,
    Suspected,
    SuspicionCleared,
    SyphonStalled,
)

__all__ = [
    "Diversion",
    "EventHub",
    "EventRecord",
    "EventStream",
    "Journal",
    "JournalEntry",
    "Listener",
    "check_listener",
    "diversions",
    "level_of",
    "read_journal",
    "utc_at",
]

_WARNINGS: Final = (
    Suspected,
    Diverted,
    BacklogQueueWithdrawn,
    BacklogExhaustedEvent,
    BacklogUnreachable,
    PossibleDuplicate,
    BacklogThresholdCrossed,
    BacklogUnattended,
    SyphonStalled,
    ClaimMissing,
    DeadLettered,
    ForeignMessages,
    FactoryFaultedEvent,
    EntityHeld,
)
# A larger difference between the clocks means that one of them was set.
CLOCK_SET_S_MIN: Final = 0.05
_MOMENTS: Final = {"at_s": "at", "until_s": "until"}


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event of a pair."""

    event: Event
    at: datetime
    primary: str
    """The address of the primary."""
    secondary: str = ""

    @property
    def name(self) -> str:
        """The stored name of the event: ``diverted``, ``backlog-drained``, ..."""
        return _NAMES[type(self.event)]

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, times as ISO 8601 in UTC."""
        facts: dict[str, Any] = {
            "event": self.name,
            "at": self.at.isoformat(),
            "primary": self.primary,
            "secondary": self.secondary,
        }
        event: Any = self.event
        for field in dataclasses.fields(event):
            value = getattr(event, field.name)
            if field.name == "at_s":
                continue
            if field.name in _MOMENTS:
                value = utc_at(value).isoformat()
            facts[_MOMENTS.get(field.name, field.name)] = (
                list(value) if isinstance(value, tuple) else value
            )
        return facts

    def __str__(self) -> str:
        facts = self.to_dict()
        about = ", ".join(
            f"{name}={facts[name]}"
            for name in facts
            if name not in ("event", "at", "primary", "secondary") and facts[name] not in ("", [])
        )
        return f"{self.name}: {about}" if about else self.name


# These names are stored in journals and logs: they stay when a class gets another name.
_NAMES: Final[Mapping[type[Event], str]] = {
    Suspected: "suspected",
    SuspicionCleared: "suspicion-cleared",
    Diverted: "diverted",
    PingSent: "ping-sent",
    PingFailed: "ping-failed",
    PingRefused: "ping-refused",
    RestoreDelayed: "restore-delayed",
    Restored: "restored",
    EntityHeld: "entity-held",
    BacklogQueueWithdrawn: "backlog-queue-withdrawn",
    BacklogQueueReinstated: "backlog-queue-reinstated",
    BacklogExhaustedEvent: "backlog-exhausted",
    BacklogUnreachable: "backlog-unreachable",
    BacklogReady: "backlog-ready",
    PossibleDuplicate: "possible-duplicate",
    BacklogThresholdCrossed: "backlog-threshold-crossed",
    BacklogUnattended: "backlog-unattended",
    SyphonStalled: "syphon-stalled",
    ClaimMissing: "claim-missing",
    DeadLettered: "dead-lettered",
    ForeignMessages: "foreign-messages",
    BacklogDrained: "backlog-drained",
    FactoryClosedEvent: "factory-closed",
    FactoryFaultedEvent: "factory-faulted",
}
# Journals that were written before 0.1.0 have these names.
_EARLIER_NAMES: Final[Mapping[str, str]] = {
    "cleared": "suspicion-cleared",
    "held": "entity-held",
    "queue-withdrawn": "backlog-queue-withdrawn",
    "queue-returned": "backlog-queue-reinstated",
    "backlog-out-of-reach": "backlog-exhausted",
    "backlog-level": "backlog-threshold-crossed",
    "drained": "backlog-drained",
    "closed": "factory-closed",
    "faulted": "factory-faulted",
}


class _Calendar:
    """The difference between the two clocks of the machine.

    They cannot be read at the same time: two readings differ by microseconds, or by more on a busy
    machine. So the first difference is kept until one is measured that this does not explain
    (rule 2).
    """

    def __init__(self) -> None:
        self._kept: tuple[float, float] | None = None
        """The difference, and its possible error."""

    def difference_s(self) -> float:
        before_s, wall_s, after_s = time.monotonic(), time.time(), time.monotonic()
        seen_s, error_s = wall_s - before_s, after_s - before_s
        if self._kept is not None:
            kept_s, kept_error_s = self._kept
            if abs(seen_s - kept_s) <= CLOCK_SET_S_MIN + error_s + kept_error_s:
                return kept_s
        self._kept = seen_s, error_s
        return seen_s


_calendar: Final = _Calendar()


def utc_at(monotonic_s: float) -> datetime:
    """A time of the monotonic clock in UTC."""
    return datetime.fromtimestamp(monotonic_s + _calendar.difference_s(), UTC)


def check_listener(listener: object) -> None:
    """Refuse a value that cannot be called, and a coroutine function: it would never run."""
    if not callable(listener):
        raise ConfigurationError(
            f"An event listener must be a function, got {type_shown(listener)}",
            hint="Pass a function with one argument, or read factory.events() in a task",
        )
    if inspect.iscoroutinefunction(listener):
        raise ConfigurationError(
            "An event listener must be a plain function, got a coroutine function",
            hint="Pass a plain function, or read factory.events() in a task",
        )


def level_of(event: Event) -> int:
    """The log level of an event."""
    if isinstance(event, PingRefused):
        # Sends are still accepted, so no caller sees an error: the log must report it.
        return logging.ERROR
    if isinstance(event, _WARNINGS):
        return logging.WARNING
    return logging.DEBUG if isinstance(event, PingSent | PingFailed) else logging.INFO


if sys.platform != "win32":
    import fcntl

_journal_log = logging.getLogger("twinbus.journal")

# Events are rare; this many waiting lines mean that the disk does not respond.
LINES_WAITING_MAX: Final = 10_000
CLOSE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line of a journal."""

    name: str
    at: datetime
    facts: dict[str, Any]
    """All fields of the line, these two included."""


class Journal:
    """Appends events to a file."""

    def __init__(self, path: Path, *, keep_days: int | None = None) -> None:
        self.path = path
        self._keep_days = keep_days
        self._pruned_day = ""
        self.lines_dropped = 0
        """Lines that could not be written."""
        self._lines: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)
        self._file = _open(path)
        self._thread = threading.Thread(target=self._write, name="twinbus-journal", daemon=True)
        self._thread.start()

    def append(self, record: EventRecord) -> None:
        """Queue the event for writing."""
        line = json.dumps(record.to_dict(), ensure_ascii=False, default=str) + "\n"
        try:
            self._lines.put_nowait(line.encode(errors="backslashreplace"))
        except queue.Full:
            self.lines_dropped += 1

    def close(self) -> None:
        """Write the waiting lines; may be called twice, and blocks for up to 5 s."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _write(self) -> None:
        is_over = False
        while not is_over:
            self._prune()
            lines = [self._lines.get()]
            while not self._lines.empty():
                lines.append(self._lines.get_nowait())
            is_over = None in lines
            self._write_all([line for line in lines if line is not None])
        os.close(self._file)

    def _write_all(self, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            _write_fully(self._file, b"".join(lines))
            os.fsync(self._file)
        except OSError as error:
            self.lines_dropped += len(lines)
            _journal_log.warning("Journal %s: %d lines lost: %s", self.path, len(lines), error)

    def _prune(self) -> None:
        """Drop old lines, once a day and if no other process has the file open (rule 5)."""
        now = datetime.now(UTC)
        day = now.date().isoformat()
        if self._keep_days is None or day == self._pruned_day:
            return
        self._pruned_day = day
        if not _is_locked(self._file, alone=True):
            return
        try:
            self._drop_before(now - timedelta(days=self._keep_days))
        except OSError as error:
            _journal_log.warning("Journal %s: old lines could not be dropped: %s", self.path, error)
        finally:
            _is_locked(self._file)

    def _drop_before(self, first_kept: datetime) -> None:
        if self.path.is_symlink():
            return  # Replacing it would remove the link, not the lines of its target.
        with open(self.path, "rb") as file:
            lines = file.readlines()
        kept = _kept(lines, first_kept)
        dropped_count = len(lines) - len(kept)
        if not dropped_count:
            return
        mode = os.fstat(self._file).st_mode & 0o777
        handle, draft = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(kept)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(draft, self.path)
        except BaseException:
            os.unlink(draft)
            raise
        old, self._file = self._file, _open(self.path)
        os.close(old)
        _journal_log.info("Journal %s: %d old lines dropped", self.path, dropped_count)


def read_journal(path: str | os.PathLike[str]) -> Iterator[JournalEntry]:
    """The entries of a journal, oldest first; torn and unknown lines are skipped."""
    with open(path, "rb") as file:
        for line in file:
            entry = _entry(line)
            if entry is not None:
                yield entry


def _kept(lines: list[bytes], first_kept: datetime) -> list[bytes]:
    """Without the old lines; the last line of each entity stays, because it may be diverted."""
    old: dict[int, str] = {}
    for index, line in enumerate(lines):
        entry = _entry(line)
        if entry is not None and entry.at.tzinfo is not None and entry.at < first_kept:
            old[index] = str(entry.facts.get("path", ""))
    last_of = {path: index for index, path in old.items() if path}
    dropped = old.keys() - last_of.values()
    return [line for index, line in enumerate(lines) if index not in dropped]


def _entry(line: bytes) -> JournalEntry | None:
    try:
        facts = json.loads(line)
        name = facts["event"] = _EARLIER_NAMES.get(str(facts["event"]), str(facts["event"]))
        return JournalEntry(name, datetime.fromisoformat(facts["at"]), facts)
    except (ValueError, KeyError, TypeError):
        return None


def _open(path: Path) -> int:
    try:
        file = _open_shared(path)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            os.write(file, b"\n")
    except OSError as error:
        raise ConfigurationError(
            f"Journal {str(path)!r} cannot be written: {error.strerror}",
            hint="Choose a file in an existing directory that this process may write",
        ) from error
    return file


def _open_shared(path: Path) -> int:
    """Open the file at the path, with a lock that is shared by all its writers (rule 5)."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if not _is_locked(file):
            return file  # A file system without locks: no lines are dropped there.
        try:
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        os.close(file)  # Another process has replaced it.


def _is_locked(file: int, *, alone: bool = False) -> bool:
    """Get a shared or an exclusive lock: False if another process has one, or without locks."""
    if sys.platform == "win32":
        return False  # No lines are dropped there.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
    except OSError:
        return False
    return True


def _write_fully(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


_log = logging.getLogger("twinbus.pairing")

Listener: TypeAlias = Callable[[EventRecord], object]

# A reader that is this far behind loses events; the journal contains all of them.
EVENTS_WAITING_MAX: Final = 1_000


class EventStream:
    """Events from now on: ``async for record in factory.events()``."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        self._waiting: deque[EventRecord] = deque(maxlen=EVENTS_WAITING_MAX)
        self._arrived = asyncio.Event()
        self._is_closed = False
        self.dropped = 0
        """Number of events that were dropped because this reader was too slow."""

    def put(self, record: EventRecord) -> None:
        self.dropped += len(self._waiting) == EVENTS_WAITING_MAX
        self._waiting.append(record)
        self._arrived.set()

    def close(self) -> None:
        """End the iteration after the events that have arrived."""
        self._is_closed = True
        self._hub.forget(self)
        self._arrived.set()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> EventRecord:
        while not self._waiting:
            if self._is_closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()


class EventHub:
    """Publishes events to streams, listeners, the log and the journal."""

    def __init__(self, primary: str) -> None:
        self._primary = primary
        self.secondary = ""
        self._journal: Journal | None = None
        self._streams: set[EventStream] = set()
        self._listeners: list[Listener] = []
        self._is_closed = False

    def attach_pair(self, secondary: str, journal: Journal | None) -> None:
        """Publish events as those of a pair from now on."""
        self.secondary, self._journal = secondary, journal

    def stream(self) -> EventStream:
        stream = EventStream(self)
        self._streams.add(stream)
        if self._is_closed:
            stream.close()
        return stream

    def forget(self, stream: EventStream) -> None:
        self._streams.discard(stream)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every event; returns a function that unsubscribes it."""
        check_listener(listener)
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def publish(self, events: Iterable[Event]) -> None:
        for event in events:
            self._notify(EventRecord(event, utc_at(event.at_s), self._primary, self.secondary))

    def _notify(self, record: EventRecord) -> None:
        _log.log(level_of(record.event), "%s %s", self._primary, record)
        if self._journal is not None:
            self._journal.append(record)
        for stream in self._streams:
            stream.put(record)
        for listener in tuple(self._listeners):
            try:
                listener(record)
            except Exception:
                _log.exception("Event listener failed for event %s", record.name)

    async def close(self) -> None:
        """End all streams, and write the last lines of the journal."""
        self._is_closed = True
        for stream in tuple(self._streams):
            stream.close()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)


_NOT_DIVERTED: Final = ("restored", "suspicion-cleared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversion:
    """An entity whose sends go to the backlog."""

    path: str
    since: datetime
    reason: str
    is_held: bool = False
    """Whether an operator keeps it diverted until another command."""
    last_event: datetime
    ended: datetime | None = None
    """When the application that diverted it was closed; None if it was not."""


def diversions(entries: Iterable[JournalEntry]) -> list[Diversion]:
    """The entities that are diverted by the last entries, the oldest diversion first."""
    found: dict[str, Diversion] = {}
    for entry in entries:
        if (
            entry.name in ("factory-closed", "factory-faulted")
            and entry.facts.get("side") == "primary"
        ):
            found = {path: replace(each, ended=entry.at) for path, each in found.items()}
        path = entry.facts.get("path")
        if isinstance(path, str):
            _apply(found, path, entry)
    return list(found.values())


def _apply(found: dict[str, Diversion], path: str, entry: JournalEntry) -> None:
    is_held_diverted = entry.name == "entity-held" and entry.facts.get("is_diverted") is True
    if entry.name in _NOT_DIVERTED or (entry.name == "entity-held" and not is_held_diverted):
        found.pop(path, None)
        return
    if path not in found and (entry.name == "diverted" or is_held_diverted):
        reason = str(entry.facts.get("reason") or "")
        found[path] = Diversion(path=path, since=entry.at, reason=reason, last_event=entry.at)
    if path in found:
        is_held = found[path].is_held or is_held_diverted
        found[path] = replace(found[path], is_held=is_held, last_event=entry.at, ended=None)
