"""What one partition of a batch reads: queues, limits and pauses.

What the tasks of one batch are told to read, and how the batch's limits are shared out.

Queues with which something went wrong: each is left alone for a while.

Which queues a query reads: named by its options, or found by a pattern.

Rule 1: the shares of a batch add up to its limit, so that it has never more messages than allowed.
Rule 2: the pause is a second and doubles up to a minute; a success ends it.
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


class Pauses:
    """How long each queue is left alone."""

    def __init__(self) -> None:
        self._backoff, self._random = Backoff(), Random()
        self._rounds: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def note(self, path: str, now_s: float) -> float:
        """It went wrong; the pause that begins now."""
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
    """Looked up once for each run of a query; a pattern that fits nothing is refused."""
    if options.queue_pattern is None:
        return options.paths
    names = [each.path async for each in namespace.management.list_queues()]
    paths = options.paths_among(names)
    if not paths:
        raise ConfigurationError(
            f"no queue has a name that fits {options.queue_pattern!r}",
            hint="Check queuePattern, and which namespace the options name",
        )
    return paths
