"""What the tasks of one batch are told to read, and how the batch's limits are shared out.

Rule 1: the shares of a batch add up to its limit, so that it has never more messages than allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinbus.core.parcel import ReceivedMessage
from twinbus.spark.desk import DriverChannelAddress

__all__ = ["BatchLimit", "PartitionPlan", "portable", "shares"]


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """A part of what a batch may have."""

    messages_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """One task's part of one batch. It crosses processes, so it is plain values only."""

    order_id: str
    path: str
    share: BatchLimit
    channel: DriverChannelAddress
    handed: ReceivedMessage | None = None
    """The message that rang the bell, locked; it counts into the share."""
    enqueued_until_ms: int | None = None
    """Stop behind the first message that is younger (AvailableNow); None: take all there is."""


def shares(count: int, limit: BatchLimit) -> list[BatchLimit]:
    """``limit`` for ``count`` tasks; fewer when there is less than one message for each."""
    count = min(count, limit.messages_max)
    if count == 0:
        return []
    least, rest = divmod(limit.messages_max, count)
    bytes_max = max(1, limit.bytes_max // count)
    return [BatchLimit(least + (1 if index < rest else 0), bytes_max) for index in range(count)]


def portable(message: ReceivedMessage) -> ReceivedMessage:
    """Without the driver's own handle, which means nothing in another process."""
    return message._replace(handle=None, encoded=bytes(message.encoded))


def places(paths: Sequence[str], receivers_per_queue: int) -> list[tuple[str, int]]:
    """Who reads where: every queue once, then every queue a second time, and so on."""
    return [(path, turn) for turn in range(receivers_per_queue) for path in paths]
