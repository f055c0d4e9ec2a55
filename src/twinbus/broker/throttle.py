"""When to say ServerBusy (rule M11): the decision, and the token buckets behind the rates.

The answer is given before anything is stored, so that a client which waits and sends again
never creates a duplicate.
"""

from __future__ import annotations

from collections.abc import Mapping

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.engine.stored_message import PARTITION_COUNT
from twinbus.broker.fairness.shares import Holder, SharedCapacity
from twinbus.broker.options import ThrottleThresholds

# With so much waiting for the disk, keys that have their share of it are not read from. It is what
# a commit takes and what gathers meanwhile: more would only make everybody's commits longer.
PENDING_BYTES_READ_MAX = 4 << 20
# What a message costs besides its bytes, in bytes that cost as much: objects in memory, and its
# part of the work to write it and to tell so.
MESSAGE_OVERHEAD_BYTES = 512

# A process that was paused (a stopped virtual machine, SIGSTOP) finds its commit late although the
# disk was not: the writer's answer has this long to arrive before senders are refused.
LATE_COMMIT_GRACE_S = 0.5


class Bucket:
    """A token bucket that holds one second's worth."""

    def __init__(self, rate_per_s: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._level = rate_per_s
        self._filled_at_s = now_s

    def has_any(self, now_s: float) -> bool:
        """Whether there is any left at all."""
        elapsed_s = now_s - self._filled_at_s
        self._filled_at_s = now_s
        self._level = min(self._rate_per_s, self._level + elapsed_s * self._rate_per_s)
        return self._level > 0

    def take(self, count: int, now_s: float) -> bool:
        """Take ``count`` if there is any left at all; a large batch may leave a debt."""
        if not self.has_any(now_s):
            return False
        self._level -= count
        return True


class Throttle:
    """The thresholds of one namespace, and how near it is to them."""

    def __init__(self, thresholds: ThrottleThresholds) -> None:
        self._thresholds = thresholds
        self._buckets: dict[int | None, Bucket] = {}
        self._partitions: dict[int, dict[int, Bucket]] = {}
        self.pending = SharedCapacity(min(PENDING_BYTES_READ_MAX, thresholds.pending_bytes_max))
        """What waits for the disk, by key and connection."""
        self.commit_began_at_s: float | None = None
        self._late_commit_began_at_s: float | None = None
        self._late_commit_seen_at_s = 0.0
        self.disk_free_bytes: int | None = None

    def check(
        self,
        queue_id: int,
        count: int,
        now_s: float,
        shares: Mapping[int, int] | None = None,
        holder: Holder | None = None,
    ) -> None:
        """Raise ServerBusy when a threshold is passed.

        ``shares`` says how much of a partitioned entity's messages each partition gets;
        ``holder`` is the connection that asks. One that is below its share of the pending bytes
        is not told that others have used them up.
        """
        limits = self._thresholds
        if self.pending.used > limits.pending_bytes_max and not (
            holder is not None and self.pending.may_take(holder)
        ):
            raise busy("Too many bytes wait to be written")
        began = self.commit_began_at_s
        if (
            began is not None
            and now_s - began > limits.commit_latency_s_max
            and self._is_still_late(began, now_s)
        ):
            raise busy("The disk does not keep up")
        if self.disk_free_bytes is not None and self.disk_free_bytes < limits.disk_free_bytes_min:
            raise busy("The disk is almost full")
        rate = limits.entity_messages_per_s_max
        if shares is not None:
            self._check_partitions(queue_id, shares, rate, now_s)
        elif not self._allows(queue_id, rate, count, now_s):
            raise busy("This entity receives more messages a second than allowed")
        if not self._allows(None, limits.namespace_messages_per_s_max, count, now_s):
            raise busy("This namespace receives more messages a second than allowed")

    def _is_still_late(self, began_at_s: float, now_s: float) -> bool:
        if self._late_commit_began_at_s != began_at_s:
            self._late_commit_began_at_s = began_at_s
            self._late_commit_seen_at_s = now_s
        return now_s - self._late_commit_seen_at_s > LATE_COMMIT_GRACE_S

    def _allows(self, key: int | None, rate: float | None, count: int, now_s: float) -> bool:
        if rate is None:
            return True
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(rate, now_s)
        return bucket.take(count, now_s)

    def _check_partitions(
        self, queue_id: int, shares: Mapping[int, int], rate: float | None, now_s: float
    ) -> None:
        """All partitions take their shares, or none does (rule F2)."""
        if rate is None:
            return
        buckets = self._partitions.setdefault(queue_id, {})
        for partition in shares:
            if partition not in buckets:
                buckets[partition] = Bucket(rate / PARTITION_COUNT, now_s)
            if not buckets[partition].has_any(now_s):
                raise busy(f"Partition {partition} receives more messages a second than allowed")
        for partition, count in shares.items():
            buckets[partition].take(count, now_s)

    def forget(self, queue_id: int) -> None:
        self._buckets.pop(queue_id, None)
        self._partitions.pop(queue_id, None)


def busy(reason: str) -> AmqpError:
    return AmqpError(Condition.SERVER_BUSY, f"{reason}. Wait 10 seconds and try again.")
