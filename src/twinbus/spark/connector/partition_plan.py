"""What the tasks of a batch read: the queues of a query, each task's share, and pauses of queues.

Rule 1: the shares of a batch add up to its limit, so that it never has more messages than allowed.
Rule 2: a queue that failed is not read for a while. The pause is a second and doubles up to a
        minute; a success ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import ConfigurationError
from twinbus.failover.backoff import Backoff
from twinbus.pairing.client.namespace_connection import NamespaceConnection
from twinbus.spark.connector.options import ReadOptions
from twinbus.spark.driver_channel import DriverChannelAddress

__all__ = ["BatchLimit", "PartitionPlan", "Pauses", "portable", "selected_paths", "shares"]


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """A part of what a batch may have."""

    messages_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """One task's part of one batch. It is sent to another process, so it is plain values only."""

    order_id: str
    path: str
    share: BatchLimit
    channel: DriverChannelAddress
    handed: ReceivedMessage | None = None
    """The message that the long poll received, locked; it is part of the share."""
    enqueued_until_ms: int | None = None
    """Stop after the first message that is newer (AvailableNow); None: no such limit."""


def shares(count: int, limit: BatchLimit) -> list[BatchLimit]:
    """``limit`` for ``count`` tasks; fewer when there is less than one message for each."""
    count = min(count, limit.messages_max)
    if count == 0:
        return []
    least, rest = divmod(limit.messages_max, count)
    bytes_max = max(1, limit.bytes_max // count)
    return [BatchLimit(least + (1 if index < rest else 0), bytes_max) for index in range(count)]


def portable(message: ReceivedMessage) -> ReceivedMessage:
    """Without the driver's own handle, which another process cannot use."""
    return message._replace(handle=None, encoded=bytes(message.encoded))


def places(paths: Sequence[str], receivers_per_queue: int) -> list[tuple[str, int]]:
    """One entry for each task: every queue once, then every queue a second time, and so on."""
    return [(path, turn) for turn in range(receivers_per_queue) for path in paths]


class Pauses:
    """How long each queue is not read after a failure."""

    def __init__(self) -> None:
        self._backoff, self._random = Backoff(), Random()
        self._rounds: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def note(self, path: str, now_s: float) -> float:
        """Start a pause after a failure; its length in seconds."""
        self._rounds[path] = self._rounds.get(path, 0) + 1
        pause_s = self._backoff.pause_s(self._rounds[path], self._random)
        self._until_s[path] = now_s + pause_s
        return pause_s

    def is_over(self, path: str, now_s: float) -> bool:
        return now_s >= self._until_s.get(path, 0.0)

    def forget(self, path: str) -> None:
        self._rounds.pop(path, None)
        self._until_s.pop(path, None)


async def selected_paths(options: ReadOptions, namespace: NamespaceConnection) -> tuple[str, ...]:
    """Listed once for each run of a query; a pattern that matches no queue is refused."""
    if options.queue_pattern is None:
        return options.paths
    names = [each.path async for each in namespace.management.list_queues()]
    paths = options.paths_among(names)
    if not paths:
        raise ConfigurationError(
            f"No queue matches queuePattern {options.queue_pattern!r}",
            hint="Check queuePattern, and which namespace the options name",
        )
    return paths
