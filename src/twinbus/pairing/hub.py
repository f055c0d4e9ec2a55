"""Where everything that happens in a pair is told: live, to callbacks, to the log, on disk.

    publish --> stream 1, stream 2, ...   each bounded: the oldest is dropped and counted
            --> callbacks                 whose errors are logged and stop nothing
            --> logger "twinbus"          errors and warnings for trouble, info for its end
            --> journal                   when the options name a file

Rule 1: telling never waits and never fails a send.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from twinbus.core.events import Event
from twinbus.pairing.journal import Journal
from twinbus.pairing.occurrence import EventRecord, check_listener, level_of, utc_at

__all__ = ["EventHub", "EventStream", "Listener"]

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
