"""The streaming source on Spark's driver: it waits for messages, gives orders to tasks, renews the
locks of what they received, and settles when Spark has written a batch.

    Spark                        brain                                      tasks
    latestOffset(epoch n)  ->    settle all of n, wait until a bell rings
    partitions(n, n+1)     ->    orders, each with the message that rang  ->  read
                                 ledger (holding.py)  <--- reports ---------'
    latestOffset(n+1)      ->    settle all of n+1 ...

Spark's own commit() comes one batch late, after the last batch never. The start of the next
latestOffset is in the commit log already, so that is when a batch is known to be written (S2).

Rule 1: an offset is a count of batches and says nothing about messages: losing the checkpoint
        loses none, because what was not settled is still in its queue.
Rule 2: a batch is planned once. Who asks again gets the same orders.
Rule 3: a service that does not answer is waited for; what can never work is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from twinbus.clock import Clock, SystemClock
from twinbus.core.parcel import Delivered
from twinbus.drivers.port import Driver
from twinbus.errors import ConfigurationError, TwinbusError
from twinbus.service_errors import MessageRefused, ServiceError
from twinbus.spark.bell import Bell
from twinbus.spark.connector.holding import Holding, Ledger, Lock, Turn
from twinbus.spark.connector.orders import Order, Share, places, portable, shares
from twinbus.spark.connector.receiving import HOPELESS
from twinbus.spark.desk import Desk, DeskAddress

__all__ = ["Brain", "Reading"]

_LOG = logging.getLogger("twinbus.spark")

SETTLE_TIMEOUT_S: Final = 30.0
RENEW_TICK_S: Final = 0.5
KNOCK_S: Final = 0.3
"""AvailableNow: how long to wait for the first message of a queue."""
CLOCKS_APART_MS: Final = 2_000
"""AvailableNow takes what was enqueued before it began; the service has its own clock."""
LOCK_S_USUAL: Final = 30.0
LOCK_LEFT_S_MIN: Final = 1.0
"""What the bell hands over is renewed from then on, so a second is enough."""

_APART: Final = 2**62
"""The epoch of messages that rang and found no room in a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a query reads."""

    paths: tuple[str, ...]
    limit: Share
    """What a batch may have at most."""
    deletes: bool = False
    poll_s: float = 900.0
    receivers_per_queue: int = 1


class Brain:
    """One run of one query, in the running event loop."""

    def __init__(self, driver: Driver, reading: Reading, *, clock: Clock | None = None) -> None:
        self._reading = reading
        self._clock = clock or SystemClock()
        self._receivers = {path: driver.receiver(path) for path in reading.paths}
        self._bell = Bell(
            driver,
            reading.paths,
            poll_s=reading.poll_s,
            lock_left_s_min=LOCK_LEFT_S_MIN,
            on_fault=self._fault,
        )
        self._desk = Desk(self._heard)
        self._address: DeskAddress | None = None
        self._holding = Holding(deletes=reading.deletes)
        self._rung: dict[str, Delivered | None] = {}
        self._plans: dict[int, list[Order]] = {}
        self._unfinished: list[str] = []
        self._until_ms: int | None = None
        self._failure: TwinbusError | None = None
        self._is_listening = False
        self._turn = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def start(self, host: str) -> None:
        """Listen for tasks on an address of this machine that they can reach."""
        self._address = await self._desk.start(host)
        self._renewing = asyncio.create_task(self._renew(), name="locks")

    async def close(self) -> None:
        """Give back what no task was handed; may be called twice."""
        if self._renewing is not None:
            self._renewing.cancel()
        await self._bell.close()
        await self._desk.close()
        for order_id, ledger in self._holding.written(_APART).items():
            if ledger.epoch == _APART:
                await self._end(order_id, ledger)
        for receiver in self._receivers.values():
            with suppress(ServiceError):
                await receiver.close()

    @property
    def counts(self) -> dict[str, int]:
        """What became of messages, for the query's progress."""
        counts = self._holding.counts
        return {
            "received": counts.received,
            "settled": counts.settled,
            "givenBack": counts.given_back,
            "locksLost": counts.locks_lost,
        }

    # -- messages are there ---------------------------------------------------------------

    def only_until_now(self) -> None:
        """From here on: take what has been enqueued up to now, and then nothing."""
        self._until_ms = self._clock.now().wall_ms + CLOCKS_APART_MS
        self._unfinished = list(self._reading.paths)

    async def has_messages(self, wait_s: float) -> bool:
        """Wait until there is something for another batch; False after ``wait_s``."""
        if not self._rung:
            if self._until_ms is not None:
                found = await self._knock(self._until_ms)
            else:
                self._bell.arm()
                found = await self._listen(wait_s)
            if self._failure is not None:
                raise self._failure
            for path, message in found.items():
                self._keep(path, message)
        return bool(self._rung)

    async def _listen(self, wait_s: float) -> dict[str, Delivered | None]:
        self._is_listening = True
        try:
            return await self._bell.rung(wait_s)
        finally:
            self._is_listening = False

    async def _knock(self, until_ms: int) -> dict[str, Delivered | None]:
        paths = self._unfinished
        found = await asyncio.gather(*(self._first_of(path) for path in paths))
        rung: dict[str, Delivered | None] = {}
        for path, message in zip(paths, found, strict=True):
            if message is not None and (message.enqueued_at_ms or 0) <= until_ms:
                rung[path] = message
            elif message is not None:
                with suppress(ServiceError):  # Its lock ends by itself.
                    await self._receivers[path].abandon([message], timeout_s=SETTLE_TIMEOUT_S)
        self._unfinished = list(rung)
        return rung

    async def _first_of(self, path: str) -> Delivered | None:
        try:
            messages = await self._receivers[path].receive(1, wait_s=KNOCK_S)
        except HOPELESS as error:
            raise _explained(path, error) from error
        return messages[0] if messages else None

    def _keep(self, path: str, message: Delivered | None) -> None:
        """A message that rang is renewed like all others, until a batch has room for it."""
        self._rung[path] = None if message is None else portable(message)
        if message is not None:
            self._holding.plan(_apart(path), _APART)
            self._hand(_apart(path), message)

    def _hand(self, order_id: str, message: Delivered) -> None:
        now = self._clock.now()
        left_s = LOCK_S_USUAL
        if message.locked_until_ms is not None:
            left_s = (message.locked_until_ms - now.wall_ms) / 1000
        self._holding.hand(order_id, [Lock.of(message)], lock_s=left_s, now_s=now.monotonic_s)

    def _fault(self, path: str, error: ServiceError | None) -> None:
        if isinstance(error, HOPELESS):
            self._failure = _explained(path, error)
        elif error is not None:
            _LOG.warning("No messages can be received from %r for now: %s", path, error)
        else:
            _LOG.warning("Messages are received from %r again", path)

    # -- a batch --------------------------------------------------------------------------

    async def orders(self, epoch: int) -> list[Order]:
        """What the tasks of a batch shall read: the queues that rang.

        After a restart Spark asks again for the batch that was under way. It is empty now: other
        messages under a number that somebody has already written would be taken for written.
        """
        if epoch not in self._plans:
            self._plans[epoch] = [
                await self._order(epoch, index, path, turn, share)
                for index, ((path, turn), share) in enumerate(self._shared_out(list(self._rung)))
            ]
        return self._plans[epoch]

    def _shared_out(self, paths: Sequence[str]) -> Iterable[tuple[tuple[str, int], Share]]:
        where = places(paths, self._reading.receivers_per_queue)
        # The limit may be smaller than the number of queues; the others ring again.
        return list(zip(where, shares(len(where), self._reading.limit), strict=False))

    async def _order(self, epoch: int, index: int, path: str, turn: int, share: Share) -> Order:
        assert self._address is not None
        order_id = f"{epoch}/{index}"
        handed = self._rung.pop(path, None) if turn == 0 else None
        self._holding.plan(order_id, epoch)
        if handed is not None:
            handed = await self._handed(order_id, path, handed)
        return Order(
            order_id=order_id,
            path=path,
            share=share,
            desk=self._address,
            handed=handed,
            enqueued_until_ms=self._until_ms,
        )

    async def _handed(self, order_id: str, path: str, message: Delivered) -> Delivered | None:
        """The message that rang moves from the bell to its order, unless its lock was lost."""
        if not self._holding.move(_apart(path), order_id):
            return None
        if self._reading.deletes:
            lost = await self._receivers[path].complete(
                [Lock.of(message).as_message()], timeout_s=SETTLE_TIMEOUT_S
            )
            self._holding.forget(order_id)
            return None if lost else message
        return message

    # -- a batch was written --------------------------------------------------------------

    async def settle(self, epoch: int) -> None:
        """Settle this batch and all before it; what cannot be settled now is tried next time."""
        async with self._turn:
            written = self._holding.written(epoch)
            await asyncio.gather(*(self._end(name, each) for name, each in written.items()))
        self._plans = {key: plan for key, plan in self._plans.items() if key > epoch}

    async def _end(self, order_id: str, ledger: Ledger) -> None:
        if not ledger.locks:
            self._holding.close(order_id, 0)
            return
        locks = list(ledger.locks.values())
        receiver = self._receivers[locks[0].path]
        act = receiver.complete if ledger.is_sealed else receiver.abandon
        try:
            lost = await act([lock.as_message() for lock in locks], timeout_s=SETTLE_TIMEOUT_S)
        except ServiceError as error:
            if isinstance(error, HOPELESS):
                raise
            _LOG.warning("%d messages are not settled yet: %s", len(locks), error)
            return
        self._holding.close(order_id, len(lost))
        _tell_lost(receiver.path, len(lost))
        if not ledger.is_sealed and ledger.was_begun:
            _LOG.warning(
                "%d messages go back to %r: their batch was written, and no task read its part "
                "of it to the end",
                len(locks) - len(lost),
                receiver.path,
            )

    # -- locks ----------------------------------------------------------------------------

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_TICK_S)
            if not self._is_listening:
                # A queue that rings during a long batch would have to wait with its lock.
                for path, message in (await self._bell.rung(0)).items():
                    self._keep(path, message)
            async with self._turn:
                due = self._holding.due(self._clock.now().monotonic_s)
                await asyncio.gather(*(self._renew_some(name, due[name]) for name in due))

    async def _renew_some(self, order_id: str, locks: list[Lock]) -> None:
        receiver = self._receivers[locks[0].path]
        try:
            lost = await receiver.renew(
                [lock.as_message() for lock in locks], timeout_s=SETTLE_TIMEOUT_S
            )
        except ServiceError as error:
            _LOG.warning("%d locks were not renewed: %s", len(locks), error)
            return
        gone = self._holding.lost(order_id, [each.sequence_number for each in lost])
        _tell_lost(receiver.path, gone)

    # -- tasks ----------------------------------------------------------------------------

    async def _heard(self, kind: str, facts: dict[str, Any]) -> dict[str, Any]:
        return _ANSWERS[kind](self, str(facts["order"]), str(facts["reader"]), facts)

    def _begin(self, order_id: str, reader: str, _facts: dict[str, Any]) -> dict[str, Any]:
        turn = self._holding.begin(order_id, reader, self._clock.now().monotonic_s)
        if turn is not Turn.GO:
            return {"turn": turn}
        locks, is_sealed = self._holding.known(order_id)
        known = [[lock.sequence_number, lock.token.hex()] for lock in locks]
        return {"turn": turn, "known": known, "is_sealed": is_sealed}

    def _alive(self, order_id: str, reader: str, _facts: dict[str, Any]) -> dict[str, Any]:
        is_owner = self._holding.heard(order_id, reader, self._clock.now().monotonic_s)
        return {"is_taken": is_owner}

    def _received(self, order_id: str, reader: str, facts: dict[str, Any]) -> dict[str, Any]:
        path = str(facts["path"])
        if path not in self._receivers:
            raise ValueError("a report from a queue that nobody reads")
        locks = [Lock(path, int(n), bytes.fromhex(token)) for n, token in facts["locks"]]
        is_taken = self._holding.report(
            order_id,
            reader,
            locks,
            lock_s=float(facts["lock_s"]),
            now_s=self._clock.now().monotonic_s,
        )
        return {"is_taken": is_taken}

    def _missing(self, order_id: str, _reader: str, facts: dict[str, Any]) -> dict[str, Any]:
        return {"count": self._holding.lost(order_id, [int(n) for n in facts["numbers"]])}

    def _sealed(self, order_id: str, reader: str, _facts: dict[str, Any]) -> dict[str, Any]:
        return {"is_taken": self._holding.seal(order_id, reader)}

    def _left(self, order_id: str, reader: str, _facts: dict[str, Any]) -> dict[str, Any]:
        self._holding.leave(order_id, reader)
        return {}


_Answer = Callable[[Brain, str, str, dict[str, Any]], dict[str, Any]]
_ANSWERS: Final[dict[str, _Answer]] = {
    "begin": Brain._begin,
    "alive": Brain._alive,
    "received": Brain._received,
    "missing": Brain._missing,
    "sealed": Brain._sealed,
    "left": Brain._left,
}


def _apart(path: str) -> str:
    return f"bell/{path}"


def _tell_lost(path: str, count: int) -> None:
    if count:
        _LOG.warning("%d locks of messages of %r were lost: these messages come again", count, path)


def _explained(path: str, error: ServiceError) -> TwinbusError:
    if isinstance(error, MessageRefused) and "session" in str(error):
        return ConfigurationError(
            f'{path!r} has sessions, which format("servicebus") does not read',
            hint="Read from a queue or subscription without sessions",
        )
    return error
