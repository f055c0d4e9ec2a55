"""Finds the backlog queues of a primary that hold messages, whoever made them (Y9).

    with Manage      a listing of the secondary's queues
    without it       a peek into <primary>/x-servicebus-transfer/0, 1, ..., until three in a row
                     are missing

A pair with fewer queues than another pair of the same primary would otherwise leave messages
where no syphon looks.

Rule 1: a queue that is empty is not served because of a search: an idle one would cost polls.
Rule 2: while nothing moves a search is peeks alone, as often as queues are polled. One at a queue
        that does not exist is not charged, and one into an empty queue costs what a poll does: an
        idle syphon costs Y3's figures for the queues that there are. The listing, which also sees
        behind a gap, is for the beginning and for times at which messages move.
Rule 3: a search raises nothing and is bounded: what it misses now, the next one finds.
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
"""So many missing queues in a row are the end of them."""
PROBES_MAX: Final = 1_000
"""Queues that one search peeks into at most: the commands allow a pair so many."""
LISTED_MAX: Final = 1_000
"""With more queues than this, of whatever kind, a listing takes more requests than it is worth."""
PEEK_TIMEOUT_S: Final = 10.0
LISTING_TIMEOUT_S: Final = 20.0
IDLE_S: Final = 900.0
"""How often a syphon searches while nothing moves: as often as it polls."""
BUSY_S: Final = 60.0
"""The shortest time between two searches while messages move."""

ListQueues = Callable[[str], "AsyncGenerator[QueueProperties, None]"]

# These say something about the namespace, not about one queue.
_AWAY: Final = (CommunicationError, OperationTimeout, ServerBusy)


def index_of(path: str, primary_name: str) -> int | None:
    """The number of a primary's backlog queue; None for every other path."""
    try:
        parts = parse_backlog_path(path)
    except InvalidEntityPath:
        return None
    return parts.index if parts.primary == primary_name.lower() else None


def holds_messages(queue: QueueProperties) -> bool:
    """Whether something in it may come home; messages that are set aside count as active."""
    return queue.counts.active + queue.counts.scheduled > 0


class BacklogSearch:
    """The search for one primary's backlog queues in one secondary."""

    def __init__(
        self,
        make_receiver: Callable[[str], Receiver],
        primary_name: str,
        list_queues: ListQueues | None = None,
    ) -> None:
        """``make_receiver`` is a driver's; ``list_queues`` needs Manage, and a namespace that
        refuses it is not asked again."""
        self._make_receiver = make_receiver
        self.primary_name = primary_name
        self._list_queues = list_queues
        self._has_moved = asyncio.Event()

    # -- from time to time --------------------------------------------------------------------

    def note_moved(self) -> None:
        """Messages have come home: other queues may hold some, too."""
        self._has_moved.set()

    async def keep_finding(
        self, known: Callable[[], Collection[str]], on_found: Callable[[str], object]
    ) -> None:
        """Search until cancelled, beginning one pause from now."""
        while True:
            began_s = asyncio.get_running_loop().time()
            has_moved = await self._pause(began_s)
            self._has_moved.clear()
            for queue in await self.holding(known(), is_idle=not has_moved):
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

    async def holding(self, known: Collection[str], *, is_idle: bool = False) -> tuple[str, ...]:
        """The backlog queues beside ``known`` that hold messages, in the order of their numbers."""
        if self._list_queues is not None and not is_idle:
            listed = await self._listed(self._list_queues)
            if listed is not None:
                held = [queue.path for queue in listed if holds_messages(queue)]
                return self._others(held, known)
        return self._others(await self._probed(known, bool), known)

    async def existing(self) -> tuple[str, ...]:
        """All backlog queues that a peek can find, with messages or without."""
        return self._others(await self._probed((), lambda _shown: True), ())

    def _others(self, found: Collection[str], known: Collection[str]) -> tuple[str, ...]:
        have = self._indices(known)
        wanted = sorted(index for index in self._indices(found) if index not in have)
        return tuple(str(BacklogPath(self.primary_name, index)) for index in wanted)

    def _indices(self, paths: Collection[str]) -> set[int]:
        indices = (index_of(path, self.primary_name) for path in paths)
        return {index for index in indices if index is not None}

    async def _listed(self, list_queues: ListQueues) -> list[QueueProperties] | None:
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
        except (*_AWAY, TimeoutError):
            return None
        except TwinbusError:  # It does not list, or not for us.
            self._list_queues = None
            return None
        return found

    async def _probed(self, known: Collection[str], is_wanted: Callable[[bool], bool]) -> list[str]:
        """The queues that are wanted, of all that a look upwards finds."""
        have = self._indices(known)
        found: list[str] = []
        missing = first = 0
        while first < PROBES_MAX:
            # As many at once as end the search if all of them are missing.
            indices = range(first, first + MISSING_MAX)
            looks = (self._look(index, is_known=index in have) for index in indices)
            for index, shown in zip(indices, await asyncio.gather(*looks), strict=True):
                if isinstance(shown, ServiceError):
                    return found
                missing = missing + 1 if shown is None else 0
                if missing == MISSING_MAX:
                    return found
                if shown is not None and index not in have and is_wanted(shown):
                    found.append(str(BacklogPath(self.primary_name, index)))
            first += MISSING_MAX
        return found

    async def _look(self, index: int, *, is_known: bool) -> bool | ServiceError | None:
        """Whether a queue shows messages; None: it is not there, or not for us."""
        if is_known:
            return False
        receiver = self._make_receiver(str(BacklogPath(self.primary_name, index)))
        try:
            return bool(await receiver.peek(1, timeout_s=PEEK_TIMEOUT_S))
        except _AWAY as error:
            return error
        except ServiceError:
            return None
        finally:
            await receiver.close()
