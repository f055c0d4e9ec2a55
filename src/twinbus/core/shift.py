"""What one task of the syphon is told to do, and what it tells when it has done it.

    ShiftOrder --a task works on some backlog queues for some seconds--> ShiftReport

What has to be remembered between two shifts (which destinations are closed, which messages were
set aside for them) stays with whoever gives the orders; a task remembers nothing.

Rule 1: an order may be worked twice, or by a task that knows nothing of the first try: numbers
        that are no longer set aside and a lock that is gone are no errors.
Rule 2: a report that never arrives costs time only: what was set aside is found again by looking
        through the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from twinbus.core.parcel import Delivered

__all__ = ["Aside", "BoardNote", "ShiftOrder", "ShiftReport"]

Aside = Mapping[str, Mapping[str, tuple[int, ...]]]
"""Numbers of messages that are set aside: by backlog queue, by destination."""


class BoardNote(NamedTuple):
    """A destination that takes nothing, in times that mean the same on every machine."""

    path: str
    failure_count: int
    due_in_s: float
    """When it may be probed: from the moment at which the note was written."""
    gone_for_s: float | None
    """How long it has been missing; None when it exists as far as is known."""
    is_lost: bool
    is_silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftOrder:
    """What a task shall do. It crosses processes, so it is plain values only."""

    queues: tuple[str, ...]
    """The backlog queues to empty; no other shift of the batch has them."""
    handed: tuple[Delivered, ...] = ()
    """Messages that rang the bell, locked; ``handle`` is None."""
    returning: Aside = field(default_factory=dict)
    """What was set aside and may be tried now."""
    holding: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By queue, the destinations for which more was set aside than is in ``returning``."""
    board: tuple[BoardNote, ...] = ()
    """The destinations that are closed."""
    discover: tuple[str, ...] = ()
    """Queues to look through for what somebody else set aside."""
    messages_max: int = 1_000_000
    """No chunk is received once so many messages were."""
    seconds_max: float = 15.0
    """No chunk is received later than this."""
    rate_per_s: float | None = None
    """This shift's share of the allowed rate."""
    is_dry_run: bool = False
    """Only look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftReport:
    """What a task leaves behind for whoever gives the next orders."""

    aside: Aside = field(default_factory=dict)
    """By queue: what is set aside now, of ``returning`` and of what was found or received."""
    board: tuple[BoardNote, ...] = ()
    opened: tuple[str, ...] = ()
    """Destinations of the order's board that take messages again."""
    emptied: tuple[str, ...] = ()
    """Queues in which a receive found nothing."""
    discovered: tuple[str, ...] = ()
    """Queues that were looked through to their end."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Queues that could not be read, each with a sentence."""
    is_primary_away: bool = False
    """Nobody could be reached at the primary."""
