"""Finds the backlog queues of a primary that hold messages, whichever pair created them (Y9).

    with Manage      a listing of the secondary's queues
    without it       a peek into <primary>/x-servicebus-transfer/0, 1, ..., until three in a row
                     are missing

Otherwise messages would stay in queues that no syphon serves, when one pair of a primary has fewer
queues than another.

Rule 1: a search does not add empty queues to those that are served: an idle queue would cost polls.
Rule 2: while nothing moves a search only peeks, as often as queues are polled. A peek at a queue
        that does not exist is not charged, and one into an empty queue costs what a poll does: an
        idle syphon costs what Y3 states for the queues that exist. The listing, which also finds
        queues behind a gap, is for the beginning and for times in which messages move.
Rule 3: a search raises no error and is bounded: a queue that it misses is found by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from twinbus.common.entity_path import BacklogPath, parse_backlog_path
from twinbus.drivers.interface import Receiver
from twinbus.errors import (
    CommunicationError,
    InvalidEntityPath,
    OperationTimeout,
    ServerBusy,
    ServiceError,
    TwinbusError,
)

if TYPE_CHECKING:
    from twinbus.drivers.administration import QueueProperties

__all__ = ["BacklogSearch", "ListQueues", "holds_messages", "index_of"]

MISSING_MAX: Final = 3
"""After this many missing queues in a row the search ends."""
PROBES_MAX: Final = 1_000
"""Queues that one search peeks into at most: the largest number that a pair may have."""
LISTED_MAX: Final = 1_000
"""With more queues than this, of any kind, a listing needs more requests than peeks would."""
PEEK_TIMEOUT_S: Final = 10.0
LISTING_TIMEOUT_S: Final = 20.0
IDLE_S: Final = 900.0
"""How often a syphon searches while nothing moves: as often as it polls."""
BUSY_S: Final = 60.0
"""The shortest time between two searches while messages move."""

ListQueues = Callable[[str], "AsyncGenerator[QueueProperties, None]"]

# Errors of the whole namespace, not of one queue.
_NAMESPACE_ERRORS: Final = (CommunicationError, OperationTimeout, ServerBusy)


def index_of(path: str, primary_name: str) -> int | None:
    """The number of a primary's backlog queue; None for every other path."""
    try:
        parts = parse_backlog_path(path)
    except InvalidEntityPath:
        return None
    return parts.index if parts.primary == primary_name.lower() else None


def holds_messages(queue: QueueProperties) -> bool:
    """Whether it holds messages that may be moved; deferred ones count as active."""
    return queue.counts.active + queue.counts.scheduled > 0


class BacklogSearch:
    """The search for one primary's backlog queues in one secondary."""

    def __init__(
        self,
        make_receiver: Callable[[str], Receiver],
        primary_name: str,
        list_queues: ListQueues | None = None,
    ) -> None:
        """``make_receiver`` is that of a driver; ``list_queues`` requires the Manage claim, and is
        not called again after the namespace has refused it."""
        self._make_receiver = make_receiver
        self.primary_name = primary_name
        self._list_queues = list_queues
        self._has_moved = asyncio.Event()

    # -- from time to time --------------------------------------------------------------------

    def note_moved(self) -> None:
        """Messages were moved: other queues may hold some, too."""
        self._has_moved.set()

    async def keep_finding(
        self, known: Callable[[], Collection[str]], on_found: Callable[[str], object]
    ) -> None:
        """Search until cancelled, beginning one pause from now."""
        while True:
            began_s = asyncio.get_running_loop().time()
            has_moved = await self._pause(began_s)
            self._has_moved.clear()
            for queue in await self.find_holding(known(), is_idle=not has_moved):
                on_found(queue)

    async def _pause(self, began_s: float) -> bool:
        """Whether messages have moved meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await self._has_moved.wait()
        if not self._has_moved.is_set():
            return False
        await asyncio.sleep(max(0.0, began_s + BUSY_S - asyncio.get_running_loop().time()))
        return True

    # -- once -----------------------------------------------------------------------------------

    async def find_holding(
        self, known: Collection[str], *, is_idle: bool = False
    ) -> tuple[str, ...]:
        """The backlog queues beside ``known`` that hold messages, in the order of their numbers."""
        if self._list_queues is not None and not is_idle:
            listed = await self._list(self._list_queues)
            if listed is not None:
                held = [queue.path for queue in listed if holds_messages(queue)]
                return self._others(held, known)
        return self._others(await self._probe(known, bool), known)

    async def find_existing(self) -> tuple[str, ...]:
        """All backlog queues that a peek can find, with messages or without."""
        return self._others(await self._probe((), lambda _has_messages: True), ())

    def _others(self, found: Collection[str], known: Collection[str]) -> tuple[str, ...]:
        have = self._indices(known)
        wanted = sorted(index for index in self._indices(found) if index not in have)
        return tuple(str(BacklogPath(self.primary_name, index)) for index in wanted)

    def _indices(self, paths: Collection[str]) -> set[int]:
        indices = (index_of(path, self.primary_name) for path in paths)
        return {index for index in indices if index is not None}

    async def _list(self, list_queues: ListQueues) -> list[QueueProperties] | None:
        found: list[QueueProperties] = []
        try:
            async with (
                asyncio.timeout(LISTING_TIMEOUT_S),
                aclosing(list_queues("")) as listing,
            ):
                async for queue in listing:
                    found.append(queue)
                    if len(found) > LISTED_MAX:
                        self._list_queues = None
                        return None
        except (*_NAMESPACE_ERRORS, TimeoutError):
            return None
        except TwinbusError:  # The namespace has no listing, or the claim is missing.
            self._list_queues = None
            return None
        return found

    async def _probe(self, known: Collection[str], is_wanted: Callable[[bool], bool]) -> list[str]:
        """The queues that are wanted, of all that peeks at increasing numbers find."""
        have = self._indices(known)
        found: list[str] = []
        missing = first = 0
        while first < PROBES_MAX:
            # As many at the same time as end the search if all of them are missing.
            indices = range(first, first + MISSING_MAX)
            peeks = (self._peek(index, is_known=index in have) for index in indices)
            for index, result in zip(indices, await asyncio.gather(*peeks), strict=True):
                if isinstance(result, ServiceError):
                    return found
                missing = missing + 1 if result is None else 0
                if missing == MISSING_MAX:
                    return found
                if result is not None and index not in have and is_wanted(result):
                    found.append(str(BacklogPath(self.primary_name, index)))
            first += MISSING_MAX
        return found

    async def _peek(self, index: int, *, is_known: bool) -> bool | ServiceError | None:
        """Whether a queue holds messages; None: it does not exist, or the claim is missing."""
        if is_known:
            return False
        receiver = self._make_receiver(str(BacklogPath(self.primary_name, index)))
        try:
            return bool(await receiver.peek(1, timeout_s=PEEK_TIMEOUT_S))
        except _NAMESPACE_ERRORS as error:
            return error
        except ServiceError:
            return None
        finally:
            await receiver.close()
