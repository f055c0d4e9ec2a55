"""The streaming source on Spark's driver: it waits for messages, plans the partitions of a batch,
keeps the locks of received messages, and has them settled when Spark has written the batch.

    Spark                        coordinator                                tasks
    latestOffset(epoch n)  ->    settle all of n, wait for messages
    partitions(n, n+1)     ->    orders, each with a first message        ->  read
                                 ledger (lock_ledger.py)  <--- reports ---------'
    latestOffset(n+1)      ->    settle all of n+1 (lock_keeper.py) ...

Spark's own commit() comes one batch late, and never after the last batch. The start of the next
latestOffset is in the commit log already, so at that time the batch is written (S2).

AvailableNow is for Trigger.AvailableNow: it finds the queues that still have messages which were
enqueued before the query began.

Rule 1: with AvailableNow a queue is finished once it is empty, or its first message is newer. It is
        not polled again, so the query also ends while messages are still being sent.
Rule 2: with AvailableNow an unresponsive service is waited for, for a minute; then the query fails:
        to end as if the queue were empty would be wrong.
Rule 3: an offset is a count of batches and contains nothing about messages: losing the checkpoint
        loses none, because a message that was not settled is still in its queue.
Rule 4: a batch is planned once. Further calls for the same batch return the same orders.
Rule 5: a stream waits for an unresponsive service without limit; permanent errors are raised.
Rule 6: a queue whose part of a batch no task read is not read for a pause that grows: each time the
        service counts a delivery, and in the end it would dead-letter messages that were never
        processed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from twinbus.common.clock import Clock, SystemClock
from twinbus.drivers.interface import Driver, Receiver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import ServiceError, TwinbusError
from twinbus.failover.backoff import Backoff
from twinbus.spark.connector.lock_keeper import SETTLE_TIMEOUT_S, LockKeeper, SettlementSummary
from twinbus.spark.connector.lock_ledger import Lock, LockLedger, ReadPermission
from twinbus.spark.connector.partition_plan import (
    BatchLimit,
    PartitionPlan,
    Pauses,
    places,
    portable,
    shares,
)
from twinbus.spark.connector.partition_reader import (
    PERMANENT_ERRORS,
    WarmReceiver,
    explain_error,
    lock_left_s,
)
from twinbus.spark.driver_channel import DriverChannel, DriverChannelAddress
from twinbus.spark.long_poll import LongPollWatcher

__all__ = ["AvailableNow", "Reading", "StreamCoordinator"]

PROBE_S: Final = 0.3
"""How long to wait for the first message of a queue."""
PATIENCE_S: Final = 60.0
ABANDON_TIMEOUT_S: Final = 10.0


class AvailableNow:
    """For one run of one query, in the running event loop."""

    def __init__(
        self,
        receivers: Mapping[str, Receiver],
        until_ms: int,
        on_fault: Callable[[str, ServiceError | None], object],
    ) -> None:
        """``on_fault`` is called with the error of a queue that cannot be received from, and with
        None once it can."""
        self.until_ms = until_ms
        self._receivers = receivers
        self._unfinished = list(receivers)
        self._on_fault = on_fault
        self._backoff, self._random = Backoff(), Random()

    def finish(self, paths: Container[str]) -> None:
        """Probe these no more."""
        self._unfinished = [path for path in self._unfinished if path not in paths]

    async def probe(self, keep: Callable[[str, ReceivedMessage], object]) -> None:
        """Call ``keep`` with a first message of every queue that has one, locked."""
        paths, self._unfinished = self._unfinished, []
        found = await asyncio.gather(*map(self._receive_first, paths), return_exceptions=True)
        for path, message in zip(paths, found, strict=True):
            if not isinstance(message, ReceivedMessage):
                continue
            if (message.enqueued_at_ms or 0) <= self.until_ms:
                self._unfinished.append(path)
                keep(path, message)
            else:
                with suppress(ServiceError):  # Its lock ends by itself.
                    receiver = self._receivers[path]
                    await receiver.abandon([message], timeout_s=ABANDON_TIMEOUT_S)
        for error in found:
            if isinstance(error, BaseException):
                raise error

    async def _receive_first(self, path: str) -> ReceivedMessage | None:
        loop = asyncio.get_running_loop()
        ends_s, failure_count = loop.time() + PATIENCE_S, 0
        while True:
            try:
                messages = await WarmReceiver(PROBE_S).receive(self._receivers[path], 1)
                break
            except ServiceError as error:
                failure_count += 1
                pause_s = self._backoff.pause_s(failure_count, self._random)
                if not error.is_transient or loop.time() + pause_s > ends_s:
                    raise explain_error(path, error) from error
                if failure_count == 1:
                    self._on_fault(path, error)
            await asyncio.sleep(pause_s)
        if failure_count:
            self._on_fault(path, None)
        return messages[0] if messages else None


_LOG = logging.getLogger("twinbus.spark")

GATHER_INTERVAL_S: Final = 0.5
LAST_SETTLE_S: Final = 60.0
"""AvailableNow: how long the last batch may take to be settled before the query ends."""
LAST_SETTLE_TICK_S: Final = 1.0
CLOCKS_APART_MS: Final = 2_000
"""AvailableNow reads what was enqueued before it began; the service has its own clock."""
LOCK_LEFT_S_MIN: Final = 1.0
"""The lock of a message from the long poll is renewed from then on, so a second is enough."""

_PENDING: Final = 2**62
"""The epoch of received messages that are not in a batch yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a query reads."""

    paths: tuple[str, ...]
    limit: BatchLimit
    """What a batch may have at most."""
    deletes: bool = False
    poll_s: float = 900.0
    receivers_per_queue: int = 1


class StreamCoordinator:
    """One run of one query, in the running event loop."""

    def __init__(self, driver: Driver, reading: Reading, *, clock: Clock | None = None) -> None:
        self._reading = reading
        self._clock = clock or SystemClock()
        self._receivers = {path: driver.receiver(path) for path in reading.paths}
        self._watcher = LongPollWatcher(
            driver,
            reading.paths,
            poll_s=reading.poll_s,
            lock_left_s_min=LOCK_LEFT_S_MIN,
            on_fault=self._fault,
        )
        self._channel = DriverChannel(self._handle_report)
        self._address: DriverChannelAddress | None = None
        self._ledger = LockLedger(deletes=reading.deletes)
        self._keeper = LockKeeper(self._receivers, self._ledger, self._clock)
        self._pending: dict[str, ReceivedMessage | None] = {}
        """Queues with messages for the next batch, each with one that was received."""
        self._plans: dict[int, list[PartitionPlan]] = {}
        self._available_now: AvailableNow | None = None
        self._failure: TwinbusError | None = None
        self._is_listening = False
        self._written_epoch = 0
        self._unread = Pauses()
        self._gathering: asyncio.Task[None] | None = None

    async def start(self, host: str) -> None:
        """Listen for tasks on an address of this machine that they can reach."""
        self._address = await self._channel.start(host)
        self._keeper.start()
        self._gathering = asyncio.create_task(self._gather_pending(), name="pending messages")

    async def close(self) -> None:
        """Abandon the messages that no task has got; may be called twice."""
        if self._gathering is not None:
            self._gathering.cancel()
        await self._keeper.close()
        await self._watcher.close()
        await self._channel.close()
        await self._keeper.give_back(_PENDING)
        for receiver in self._receivers.values():
            with suppress(ServiceError):
                await receiver.close()

    @property
    def counts(self) -> dict[str, int]:
        """Messages by outcome, for the query's progress."""
        counts = self._ledger.counts
        return {
            "received": counts.received,
            "settled": counts.settled,
            "givenBack": counts.given_back,
            "locksLost": counts.locks_lost,
        }

    # -- waiting for messages -------------------------------------------------------------

    def only_until_now(self) -> None:
        """From now on read what has been enqueued so far, and then nothing."""
        until_ms = self._clock.now().wall_ms + CLOCKS_APART_MS
        self._available_now = AvailableNow(self._receivers, until_ms, self._fault)

    async def has_messages(self, wait_s: float) -> bool:
        """Wait until there is something for another batch; False after ``wait_s``."""
        if not self._pending:
            if self._available_now is not None:
                await self._probe(self._available_now)
            else:
                await self._listen(wait_s)
            if self._failure is not None:
                raise self._failure
        return bool(self._pending)

    async def _probe(self, available_now: AvailableNow) -> None:
        await available_now.probe(self._keep)
        if not self._pending:
            await self._settle_last()

    async def _listen(self, wait_s: float) -> None:
        now_s = self._clock.now().monotonic_s
        self._watcher.start_polling(
            [path for path in self._reading.paths if self._unread.is_over(path, now_s)]
        )
        self._is_listening = True
        try:
            found = await self._watcher.ready(wait_s)
        finally:
            self._is_listening = False
        for path, message in found.items():
            self._keep(path, message)

    async def _gather_pending(self) -> None:
        """Take messages that arrive during a long batch, so that their locks are renewed."""
        while True:
            await asyncio.sleep(GATHER_INTERVAL_S)
            if not self._is_listening:
                with suppress(Exception):  # The next _listen() raises the same error.
                    for path, message in (await self._watcher.ready(0)).items():
                        self._keep(path, message)

    def _keep(self, path: str, message: ReceivedMessage | None) -> None:
        """Renew the lock of the message like all others, until a batch has room for it."""
        self._pending[path] = None if message is None else portable(message)
        if message is not None:
            self._ledger.plan(_pending_order_id(path), _PENDING)
            self._add_lock(_pending_order_id(path), message)

    def _add_lock(self, order_id: str, message: ReceivedMessage) -> None:
        now = self._clock.now()
        lock_s = lock_left_s([message], now.wall_ms)
        self._ledger.add_locks(order_id, [Lock.of(message)], lock_s=lock_s, now_s=now.monotonic_s)

    def _fault(self, path: str, error: ServiceError | None) -> None:
        if isinstance(error, PERMANENT_ERRORS):
            self._failure = explain_error(path, error)
        elif error is not None:
            _LOG.warning("Receiving from %r failed and will be retried: %s", path, error)
        else:
            _LOG.warning("Receiving from %r works again", path)

    # -- a batch --------------------------------------------------------------------------

    async def orders(self, epoch: int) -> list[PartitionPlan]:
        """What the tasks of a batch read: the queues that have messages.

        After a restart Spark requests the batch that was under way once more. It is empty then: the
        sink may have written a batch with this number, and would skip other messages in it.
        """
        if epoch not in self._plans:
            self._plans[epoch] = [
                await self._order(epoch, index, path, turn, share)
                for index, ((path, turn), share) in enumerate(self._share(list(self._pending)))
            ]
        return self._plans[epoch]

    def _share(self, paths: Sequence[str]) -> Iterable[tuple[tuple[str, int], BatchLimit]]:
        where = places(paths, self._reading.receivers_per_queue)
        # The limit may be smaller than the number of queues; the others are in a later batch.
        return list(zip(where, shares(len(where), self._reading.limit), strict=False))

    async def _order(
        self, epoch: int, index: int, path: str, turn: int, share: BatchLimit
    ) -> PartitionPlan:
        assert self._address is not None
        order_id = f"{epoch}/{index}"
        handed = self._pending.pop(path, None) if turn == 0 else None
        self._ledger.plan(order_id, epoch)
        if handed is not None:
            handed = await self._assign(order_id, path, handed)
        return PartitionPlan(
            order_id=order_id,
            path=path,
            share=share,
            channel=self._address,
            handed=handed,
            enqueued_until_ms=None if self._available_now is None else self._available_now.until_ms,
        )

    async def _assign(
        self, order_id: str, path: str, message: ReceivedMessage
    ) -> ReceivedMessage | None:
        """Assign a pending message to an order, unless its lock was lost."""
        if not self._ledger.move(_pending_order_id(path), order_id):
            return None
        if self._reading.deletes:
            settled, lost = await self._delete(path, message)
            self._ledger.forget(order_id, settled=settled, lost=lost)
            return message if settled else None
        return message

    async def _delete(self, path: str, message: ReceivedMessage) -> tuple[int, int]:
        """Delete a pending message: how many were deleted, how many locks were lost. When that is
        ambiguous both are 0: if it was deleted it is lost, as at most once allows."""
        try:
            lost = await self._receivers[path].complete(
                [Lock.of(message).as_message()], timeout_s=SETTLE_TIMEOUT_S
            )
        except PERMANENT_ERRORS:
            raise
        except ServiceError as error:
            text = "A message of %r was not deleted and will be delivered again: %s"
            if error.is_ambiguous:
                text = "A message of %r may have been deleted without being read: %s"
            _LOG.warning(text, path, error)
            return 0, 0
        return 1 - len(lost), len(lost)

    # -- a batch was written --------------------------------------------------------------

    async def settle(self, epoch: int, *, is_last: bool = False) -> SettlementSummary:
        """Settle this batch and all before it; what cannot be settled now is tried later."""
        ending = await self._keeper.settle(epoch, is_last=is_last)
        self._written_epoch = epoch
        self._plans = {key: plan for key, plan in self._plans.items() if key > epoch}
        for path in ending.settled:
            self._unread.forget(path)
        for path, count in ending.unread.items():
            pause_s = self._unread.note(path, self._clock.now().monotonic_s)
            again = f"The queue is not read for {pause_s:.0f} s"
            if self._available_now is not None:
                again = "The next run reads them"
            _LOG.warning(
                "%d messages were abandoned in %r: their batch was written, but no task read its "
                "part of it to the end. %s",
                *(count, path, again),
            )
        if self._available_now is not None:
            self._available_now.finish(ending.unread)  # Otherwise the query would not end.
        return ending

    async def _settle_last(self) -> None:
        """Settle the last batch: no further call of settle() follows it."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + LAST_SETTLE_S
        while (ending := await self.settle(self._written_epoch, is_last=True)).owed:
            if loop.time() > ends_s:
                _LOG.warning(
                    "%d messages could not be settled and will be delivered again", ending.owed
                )
                return
            await asyncio.sleep(LAST_SETTLE_TICK_S)

    # -- tasks ----------------------------------------------------------------------------

    async def _handle_report(self, kind: str, facts: dict[str, Any]) -> dict[str, Any]:
        return _ANSWERS[kind](self, str(facts["order"]), str(facts["reader"]), facts)

    def _begin(self, order_id: str, reader: str, _facts: dict[str, Any]) -> dict[str, Any]:
        turn = self._ledger.begin(order_id, reader, self._clock.now().monotonic_s)
        if turn is ReadPermission.WAIT:
            return {"turn": turn, "progress": self._ledger.progress(order_id)}
        if turn is not ReadPermission.GO:
            return {"turn": turn}
        locks, is_sealed = self._ledger.known(order_id)
        known = [[lock.sequence_number, lock.token.hex()] for lock in locks]
        return {"turn": turn, "known": known, "is_sealed": is_sealed}

    def _alive(self, order_id: str, reader: str, facts: dict[str, Any]) -> dict[str, Any]:
        is_owner = self._ledger.note_alive(
            *(order_id, reader, self._clock.now().monotonic_s), read_count=int(facts["count"])
        )
        return {"is_taken": is_owner}

    def _received(self, order_id: str, reader: str, facts: dict[str, Any]) -> dict[str, Any]:
        path = str(facts["path"])
        if path not in self._receivers:
            raise ValueError("Report for a queue that this query does not read")
        locks = [Lock(path, int(n), bytes.fromhex(token)) for n, token in facts["locks"]]
        is_taken = self._ledger.report(
            order_id,
            reader,
            locks,
            lock_s=float(facts["lock_s"]),
            now_s=self._clock.now().monotonic_s,
        )
        return {"is_taken": is_taken}

    def _missing(self, order_id: str, _reader: str, facts: dict[str, Any]) -> dict[str, Any]:
        return {"count": self._ledger.remove_missing(order_id, [int(n) for n in facts["numbers"]])}

    def _deleted(self, _order_id: str, _reader: str, facts: dict[str, Any]) -> dict[str, Any]:
        self._ledger.deleted(int(facts["count"]))
        return {}

    def _sealed(self, order_id: str, reader: str, _facts: dict[str, Any]) -> dict[str, Any]:
        return {"is_taken": self._ledger.finish(order_id, reader)}

    def _left(self, order_id: str, reader: str, _facts: dict[str, Any]) -> dict[str, Any]:
        self._ledger.leave(order_id, reader)
        return {}


_Answer = Callable[[StreamCoordinator, str, str, dict[str, Any]], dict[str, Any]]
_ANSWERS: Final[dict[str, _Answer]] = {
    "begin": StreamCoordinator._begin,
    "alive": StreamCoordinator._alive,
    "received": StreamCoordinator._received,
    "missing": StreamCoordinator._missing,
    "deleted": StreamCoordinator._deleted,
    "sealed": StreamCoordinator._sealed,
    "left": StreamCoordinator._left,
}


def _pending_order_id(path: str) -> str:
    return f"pending/{path}"
