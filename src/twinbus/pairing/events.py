"""Events of a pair: to subscribers, to the log, to the journal and back from it.

An event of the core with the calendar's time and the names of the pair, ready to be told.

    EventRecord   what subscribers, callbacks, the log and the journal receive
    facts()      the same as plain values, for a line of JSON

The failover journal: every event of a pair as one line of JSON, appended to a file (P16).

    {"event": "diverted", "at": "2026-03-01T12:00:00+00:00", "path": "orders", "reason": ...}

Where everything that happens in a pair is told: live, to callbacks, to the log, on disk.

    publish --> stream 1, stream 2, ...   each bounded: the oldest is dropped and counted
            --> callbacks                 whose errors are logged and stop nothing
            --> logger "twinbus"          errors and warnings for trouble, info for its end
            --> journal                   when the options name a file

Which entities are diverted, by what a journal says; pure.

Rule 1: the core's clock means nothing outside this process: every moment leaves as UTC.
Rule 2: a moment that is not earlier on the core's clock is not earlier in UTC, unless somebody has
        set the machine's clock meanwhile.
Rule 3: lines are written and synced by a thread of its own: the event loop never waits for a
        disk, and a full or broken disk costs lines, never sends.
Rule 4: a line is written whole or, if the power fails, torn at the end of the file; the next
        writer begins a new line and the reader leaves torn ones out.
Rule 5: with ``keep_days``, older lines are dropped when the file is opened and when a day begins:
        what is kept is written to a new file, which then takes the place of the old one. Several
        senders may write one journal: each holds a shared lock, and lines are dropped only by
        one that finds itself alone.
Rule 6: telling never waits and never fails a send.
Rule 7: the first diversion tells since when, the last event of an entity whether it still is.
Rule 8: a process that was killed writes no last line: ``last_event`` tells how old the news is.
        While an entity is diverted its pings are events, one each interval.
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
# A difference between the clocks that is larger was made by somebody who has set one of them.
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
        """What happened, in an operator's word: ``diverted``, ``backlog-drained``, ..."""
        return _NAMES[type(self.event)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, moments as ISO 8601 in UTC."""
        told: dict[str, Any] = {
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
            told[_MOMENTS.get(field.name, field.name)] = (
                list(value) if isinstance(value, tuple) else value
            )
        return told

    def __str__(self) -> str:
        facts = self.to_dict()
        about = ", ".join(
            f"{name}={facts[name]}"
            for name in facts
            if name not in ("event", "at", "primary", "secondary") and facts[name] not in ("", [])
        )
        return f"{self.name}: {about}" if about else self.name


# These words are stored, in journals and logs: they stay when a class gets another name.
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
    """How far the two clocks of the machine are apart.

    They cannot be read at once: two readings differ by microseconds, or by as much as a busy
    machine takes between them. So the first difference is kept until one is seen that this does
    not explain (rule 2).
    """

    def __init__(self) -> None:
        self._kept: tuple[float, float] | None = None
        """The difference, and by how much it may be wrong."""

    def apart_s(self) -> float:
        before_s, wall_s, after_s = time.monotonic(), time.time(), time.monotonic()
        seen_s, doubt_s = wall_s - before_s, after_s - before_s
        if self._kept is not None:
            kept_s, kept_doubt_s = self._kept
            if abs(seen_s - kept_s) <= CLOCK_SET_S_MIN + doubt_s + kept_doubt_s:
                return kept_s
        self._kept = seen_s, doubt_s
        return seen_s


_calendar: Final = _Calendar()


def utc_at(monotonic_s: float) -> datetime:
    """The calendar's name for a moment of the monotonic clock."""
    return datetime.fromtimestamp(monotonic_s + _calendar.apart_s(), UTC)


def check_listener(listener: object) -> None:
    """Refuse what cannot be called, and what would have to be awaited: it would never hear
    anything."""
    if not callable(listener):
        raise ConfigurationError(
            f"a listener for events must be a function, got {type_shown(listener)}",
            hint="Give a function of one argument, or read factory.events() in a task",
        )
    if inspect.iscoroutinefunction(listener):
        raise ConfigurationError(
            "a listener for events is called, and nobody awaits it",
            hint="Give a plain function, or read factory.events() in a task",
        )


def level_of(event: Event) -> int:
    """How loudly the log tells it."""
    if isinstance(event, PingRefused):
        # Sends are accepted meanwhile, so that no caller sees an error: the log has to say it.
        return logging.ERROR
    if isinstance(event, _WARNINGS):
        return logging.WARNING
    return logging.DEBUG if isinstance(event, PingSent | PingFailed) else logging.INFO


if sys.platform != "win32":
    import fcntl

_journal_log = logging.getLogger("twinbus.journal")

# Events are rare; this many waiting means that the disk has stopped.
LINES_WAITING_MAX: Final = 10_000
CLOSE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line."""

    name: str
    at: datetime
    facts: dict[str, Any]
    """All of the line, these two included."""


class Journal:
    """Appends occurrences to a file."""

    def __init__(self, path: Path, *, keep_days: int | None = None) -> None:
        self.path = path
        self._keep_days = keep_days
        self._pruned_day = ""
        self.lines_dropped = 0
        """Lines that could not be written."""
        self._lines: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)
        self._file = _opened(path)
        self._thread = threading.Thread(target=self._write, name="twinbus-journal", daemon=True)
        self._thread.start()

    def append(self, occurrence: EventRecord) -> None:
        """Have it written soon."""
        line = json.dumps(occurrence.to_dict(), ensure_ascii=False, default=str) + "\n"
        try:
            self._lines.put_nowait(line.encode(errors="backslashreplace"))
        except queue.Full:
            self.lines_dropped += 1

    def close(self) -> None:
        """Write what waits; may be called twice, and blocks for a moment."""
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
            _journal_log.warning(
                "%d lines of the journal %s were lost: %s", len(lines), self.path, error
            )

    def _prune(self) -> None:
        """Drop old lines, once a day and if nobody else has the file open (rule 5)."""
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
            _journal_log.warning(
                "old lines of the journal %s could not be dropped: %s", self.path, error
            )
        finally:
            _is_locked(self._file)

    def _drop_before(self, first_kept: datetime) -> None:
        if self.path.is_symlink():
            return  # What it leads to is somebody else's to replace.
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
        old, self._file = self._file, _opened(self.path)
        os.close(old)
        _journal_log.info(
            "%d lines of the journal %s were dropped: too old", dropped_count, self.path
        )


def read_journal(path: str | os.PathLike[str]) -> Iterator[JournalEntry]:
    """The entries of a journal, oldest first; torn or foreign lines are left out."""
    with open(path, "rb") as file:
        for line in file:
            entry = _entry(line)
            if entry is not None:
                yield entry


def _kept(lines: list[bytes], first_kept: datetime) -> list[bytes]:
    """Without the old ones; the last line of each entity stays, as it may still be diverted."""
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


def _opened(path: Path) -> int:
    try:
        file = _opened_shared(path)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            os.write(file, b"\n")
    except OSError as error:
        raise ConfigurationError(
            f"the journal {str(path)!r} cannot be written: {error.strerror}",
            hint="Name a file in a directory that exists and is yours",
        ) from error
    return file


def _opened_shared(path: Path) -> int:
    """The file that has the path, held together with all others who write it (rule 5)."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if not _is_locked(file):
            return file  # A disk that knows no locks: nobody drops lines there.
        try:
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        os.close(file)  # Another one has taken its place meanwhile.


def _is_locked(file: int, *, alone: bool = False) -> bool:
    """Hold the file with others, or alone: False if somebody else has it, or nothing is locked."""
    if sys.platform == "win32":
        return False  # Nobody drops lines there.
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

# A reader that is this far behind has missed the point of "live"; the journal has it all.
EVENTS_WAITING_MAX: Final = 1_000


class EventStream:
    """Events from now on: ``async for occurrence in factory.events()``."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        self._waiting: deque[EventRecord] = deque(maxlen=EVENTS_WAITING_MAX)
        self._arrived = asyncio.Event()
        self._is_closed = False
        self.dropped = 0
        """Events that this reader was too slow for."""

    def put(self, occurrence: EventRecord) -> None:
        self.dropped += len(self._waiting) == EVENTS_WAITING_MAX
        self._waiting.append(occurrence)
        self._arrived.set()

    def close(self) -> None:
        """End the iteration after what has arrived."""
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
    """Tells everybody who wants to know."""

    def __init__(self, primary: str) -> None:
        self._primary = primary
        self.secondary = ""
        self._journal: Journal | None = None
        self._streams: set[EventStream] = set()
        self._listeners: list[Listener] = []
        self._is_closed = False

    def paired(self, secondary: str, journal: Journal | None) -> None:
        """From now on events are those of a pair."""
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
        """Call ``listener`` with every event; returns how to stop that."""
        check_listener(listener)
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def publish(self, events: Iterable[Event]) -> None:
        for event in events:
            self._notify(EventRecord(event, utc_at(event.at_s), self._primary, self.secondary))

    def _notify(self, occurrence: EventRecord) -> None:
        _log.log(level_of(occurrence.event), "%s %s", self._primary, occurrence)
        if self._journal is not None:
            self._journal.append(occurrence)
        for stream in self._streams:
            stream.put(occurrence)
        for listener in tuple(self._listeners):
            try:
                listener(occurrence)
            except Exception:
                _log.exception("a listener failed on %s", occurrence.name)

    async def close(self) -> None:
        """End all streams, and write the journal's last lines."""
        self._is_closed = True
        for stream in tuple(self._streams):
            stream.close()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)


_AT_HOME: Final = ("restored", "suspicion-cleared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversion:
    """An entity whose sends go to the backlog."""

    path: str
    since: datetime
    reason: str
    is_held: bool = False
    """Whether it stays there until somebody says otherwise."""
    last_event: datetime
    ended: datetime | None = None
    """When the application that had diverted it was closed."""


def diversions(entries: Iterable[JournalEntry]) -> list[Diversion]:
    """The entities that were diverted last and not restored since, the oldest first."""
    found: dict[str, Diversion] = {}
    for entry in entries:
        if (
            entry.name in ("factory-closed", "factory-faulted")
            and entry.facts.get("side") == "primary"
        ):
            found = {path: replace(each, ended=entry.at) for path, each in found.items()}
        path = entry.facts.get("path")
        if isinstance(path, str):
            _take(found, path, entry)
    return list(found.values())


def _take(found: dict[str, Diversion], path: str, entry: JournalEntry) -> None:
    is_held_away = entry.name == "entity-held" and entry.facts.get("is_diverted") is True
    if entry.name in _AT_HOME or (entry.name == "entity-held" and not is_held_away):
        found.pop(path, None)
        return
    if path not in found and (entry.name == "diverted" or is_held_away):
        reason = str(entry.facts.get("reason") or "")
        found[path] = Diversion(path=path, since=entry.at, reason=reason, last_event=entry.at)
    if path in found:
        is_held = found[path].is_held or is_held_away
        found[path] = replace(found[path], is_held=is_held, last_event=entry.at, ended=None)
