"""One chunk on its way home: what the plan says, done over the network.

    for each destination, at once:   admit --> send in batches --> complete what was accepted
                                       '----> set aside what has to wait
    what nobody can deliver:         dead-letter
    what belongs to another pair:    defer, and forget

Rule 1: completing goes through the ledger, which refuses it before the primary accepted (Y1).
Rule 2: no error of either namespace leaves run(); it becomes receipts and signs on the board.
Rule 3: what has to wait is deferred: nobody receives it until somebody asks for its number, so
        it neither stands before others nor is received over and over (Y4).
        So is what belongs to another pair (P21): abandoned, it would come again at once, and its
        deliveries would count until it is dead-lettered. Its own syphon finds it by looking.
Rule 4: no more is sent and not completed than there is room for in flight: a kill repeats that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from twinbus.common.clock import Clock
from twinbus.drivers.interface import Receiver
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.errors import (
    AccessRefused,
    CommunicationError,
    OperationTimeout,
    ServerBusy,
    ServiceError,
)
from twinbus.mover.destination_senders import DestinationSenders
from twinbus.mover.in_flight_limit import InFlightLimit
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.chunk_ledger import ChunkLedger, RestoredDelivery
from twinbus.mover.planning.chunk_plan import (
    ChunkPlan,
    Foreign,
    MoveErrorClass,
    PoisonMessage,
    classify_error,
    poison_from_error,
    send_signal_for,
    split_batch,
    split_into_batches,
)
from twinbus.mover.planning.circuit_breaker import (
    CircuitState,
    DestinationCircuits,
    SendPermission,
    SendSignal,
)
from twinbus.mover.planning.deferred_messages import DeferredMessages
from twinbus.mover.planning.receipts import ReceiptOutcome

__all__ = ["PRIMARY", "ChunkTransfer"]

PRIMARY: Final = ""
"""The board's entry for the primary as a whole: no entity has an empty name."""
# Batches of one destination under way at once. More would only wait in the primary's commit; and
# none waits for another destination, which may be a silent one.
BATCHES_IN_FLIGHT_MAX: Final = 8
# What was accepted waits this long for the rest of its chunk: a crash in that time repeats it.
SETTLE_INTERVAL_S: Final = 0.05


class ChunkTransfer:
    """Moves the messages of one plan."""

    def __init__(
        self,
        receiver: Receiver,
        senders: DestinationSenders,
        *,
        circuits: DestinationCircuits,
        in_flight: InFlightLimit,
        deferred: DeferredMessages,
        ledger: ChunkLedger,
        options: MoverOptions,
        clock: Clock,
        permission: SendPermission | None,
    ) -> None:
        """``permission`` is the board's word, for messages of one destination that were set
        aside; whoever has it did not ask for them in vain."""
        self._receiver, self._senders = receiver, senders
        self._circuits, self._deferred, self._ledger = circuits, deferred, ledger
        self._options, self._clock = options, clock
        self._permission = permission
        self._ends_s = clock.now().monotonic_s + options.chunk_s_max
        self._in_flight = in_flight
        self._failures_before = in_flight.failure_count
        self._held: Counter[str] = Counter()
        """What this chunk has in flight, by destination."""
        self._to_complete: list[RestoredDelivery] = []
        self._to_dead_letter: list[PoisonMessage] = []
        self._all_sent = asyncio.Event()
        self._has_news = asyncio.Event()

    async def run(self, plan: ChunkPlan) -> None:
        """Return when every message of the plan has its receipt."""
        try:
            async with asyncio.TaskGroup() as settling:
                settling.create_task(self._settle())
                try:
                    await self._send_plan(plan)
                finally:
                    self._all_sent.set()
                    self._has_news.set()
        finally:
            # Something is left only when the chunk was cut short.
            for path in list(self._held):
                self._complete_sent(path)

    async def _send_plan(self, plan: ChunkPlan) -> None:
        async with asyncio.TaskGroup() as sending:
            self._queue_dead_letters(plan.poison)
            if plan.foreign:
                sending.create_task(self._pass_over(plan.foreign))
            together = {}
            for path, items in plan.by_destination.items():
                if self._senders.knows(path) and self._circuits.state(path) is CircuitState.CLOSED:
                    together[path] = items
                else:
                    # Nobody waits for one that may take its time to answer.
                    sending.create_task(self._deliver(path, items))
            while together:
                for path in await self._acquire(together):
                    sending.create_task(self._deliver(path, together.pop(path)))

    async def _acquire(self, parts: Mapping[str, list[RestoredDelivery]]) -> list[str]:
        """The destinations whose part of this chunk may be in flight from now on."""
        counts = {path: len(items) for path, items in parts.items()}
        admitted = await self._in_flight.acquire(counts)
        self._held.update({path: counts[path] for path in admitted})
        return admitted

    def _complete_sent(self, path: str, count: int | None = None) -> None:
        """So many (all) are in one place only, or nobody knows and their receipts say so."""
        count = self._held[path] if count is None else count
        if count:
            self._held[path] -= count
            self._in_flight.release(path, count)

    # -- one destination ------------------------------------------------------------------

    async def _deliver(self, path: str, items: list[RestoredDelivery]) -> None:
        match self._permission or self._admitted(path):
            case SendPermission.WAIT:
                self._complete_sent(path)
                await self._defer(path, items, ReceiptOutcome.DEFERRED, "its destination is down")
            case SendPermission.GIVE_UP:
                self._complete_sent(path)
                self._queue_dead_letters([self._missing_destination(item) for item in items])
            case SendPermission.SEND:
                await self._send_all(path, items, is_probe=False)
            case SendPermission.PROBE:
                await self._send_all(path, items, is_probe=True)

    def _admitted(self, path: str) -> SendPermission:
        # Whoever has messages set aside can probe with those; fresh ones need not wait for it.
        may_wait = not self._deferred.holds(path)
        return self._circuits.admit(path, self._now_s(), may_wait=may_wait)

    async def _send_all(self, path: str, items: list[RestoredDelivery], *, is_probe: bool) -> None:
        try:
            limit_bytes = await self._senders.limit_bytes(
                path, timeout_s=self._options.attach_timeout_s
            )
        except ServiceError as error:
            self._complete_sent(path)
            await self._not_sent(path, items, error)
            return
        if not self._held[path]:
            await self._acquire({path: items})
        batches = list(split_into_batches(items, limit_bytes=limit_bytes))
        turns = asyncio.Semaphore(BATCHES_IN_FLIGHT_MAX)
        if is_probe:
            await self._send(path, batches.pop(0), turns, is_probe=True)
        if len(batches) == 1:
            await self._send(path, batches[0], turns)
        elif batches:
            async with asyncio.TaskGroup() as group:
                for batch in batches:
                    group.create_task(self._send(path, batch, turns))

    async def _send(
        self,
        path: str,
        items: Sequence[RestoredDelivery],
        turns: asyncio.Semaphore,
        *,
        is_probe: bool = False,
    ) -> None:
        async with turns:
            if not is_probe and self._circuits.state(path) is not CircuitState.CLOSED:
                # It closed while this batch waited for its turn.
                self._complete_sent(path, len(items))
                await self._defer(path, items, ReceiptOutcome.DEFERRED, "its destination is down")
            elif self._now_s() >= self._ends_s:
                self._complete_sent(path, len(items))
                await self._release(items, "the chunk was out of time")
            elif self._in_flight.failure_count != self._failures_before:
                self._complete_sent(path, len(items))
                await self._release(items, "the backlog did not answer")
            else:
                await self._try(path, items, is_probe=is_probe)

    async def _try(self, path: str, items: Sequence[RestoredDelivery], *, is_probe: bool) -> None:
        messages = [OutgoingMessage(each.encoded) for each in items]
        self._ledger.sent(items)
        try:
            async with self._senders.borrow(path) as sender:
                await sender.send(messages, timeout_s=self._options.send_timeout_s)
                self._ledger.accepted(items)
        except ServiceError as error:
            await self._refused(path, items, error, is_probe=is_probe)
            return
        self._circuits.receive(path, SendSignal.ACCEPTED, self._now_s())
        self._to_complete.extend(items)
        self._has_news.set()

    async def _refused(
        self, path: str, items: Sequence[RestoredDelivery], error: ServiceError, *, is_probe: bool
    ) -> None:
        self._note(path, error)
        verdict = classify_error(error)
        if verdict is MoveErrorClass.REFUSED and len(items) > 1:
            # At once: one after the other would take as many round trips as there are messages.
            async with asyncio.TaskGroup() as group:
                for part in split_batch(items):
                    group.create_task(self._try(path, part, is_probe=is_probe))
            return
        self._complete_sent(path, len(items))
        match verdict:
            case MoveErrorClass.REFUSED:
                self._queue_dead_letters([poison_from_error(items[0], error)])
            case MoveErrorClass.AMBIGUOUS if self._is_undeliverable(items, is_probe):
                self._queue_dead_letters([poison_from_error(items[0], error)])
            case MoveErrorClass.AMBIGUOUS:
                await self._defer(path, items, ReceiptOutcome.AMBIGUOUS, error.sentence)
            case MoveErrorClass.GONE | MoveErrorClass.LATER:
                await self._defer_failed(path, items, error)

    def _is_undeliverable(self, items: Sequence[RestoredDelivery], is_probe: bool) -> bool:
        """A message that always ends in doubt, although its destination takes others."""
        attempts = items[0].delivered.delivery_count
        return len(items) == 1 and not is_probe and attempts >= self._options.attempts_max

    async def _not_sent(
        self, path: str, items: list[RestoredDelivery], error: ServiceError
    ) -> None:
        """The destination could not even be reached: nothing of this is in doubt."""
        self._note(path, error)
        if classify_error(error) is MoveErrorClass.REFUSED:
            # It is there and takes no messages from anybody, as a subscription: waiting is vain.
            self._queue_dead_letters([poison_from_error(item, error) for item in items])
        else:
            await self._defer_failed(path, items, error)

    async def _defer_failed(
        self, path: str, items: Sequence[RestoredDelivery], error: ServiceError
    ) -> None:
        if self._circuits.is_missing(path):
            self._queue_dead_letters([poison_from_error(item, error) for item in items])
        else:
            await self._defer(path, items, ReceiptOutcome.DEFERRED, error.sentence)

    def _note(self, path: str, error: ServiceError) -> None:
        pause_s_min = error.retry_after_s if isinstance(error, ServerBusy) else 0.0
        now_s = self._now_s()
        self._circuits.receive(
            path,
            send_signal_for(error),
            now_s,
            pause_s_min=pause_s_min,
            timed_out=isinstance(error, OperationTimeout),
            is_refused=isinstance(error, AccessRefused),
        )
        if isinstance(error, CommunicationError):
            self._circuits.receive(PRIMARY, SendSignal.FAILED, now_s)

    def _missing_destination(self, item: RestoredDelivery) -> PoisonMessage:
        description = f"{item.destination}: it does not exist, also after the grace period"
        return PoisonMessage(item, "destination-not-found", description)

    # -- settling in the backlog ----------------------------------------------------------

    async def _settle(self) -> None:
        """Complete what was accepted, in few and large ranges, until everything was sent.

        A chunk for two destinations is accepted in two halves that lie between each other:
        completed one by one they would cost a frame for each message, together they cost one.
        Poison is buried in the same moment: by itself each would cost the backlog a commit.
        """
        while self._to_complete or self._to_dead_letter or not self._all_sent.is_set():
            await self._has_news.wait()
            self._has_news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_INTERVAL_S):
                    await self._all_sent.wait()
            items, self._to_complete = self._to_complete, []
            poison, self._to_dead_letter = self._to_dead_letter, []
            async with asyncio.TaskGroup() as group:
                if items:
                    items.sort(key=_sequence_number)
                    group.create_task(self._complete(items))
                for (reason, description), alike in _dead_letter_groups(poison).items():
                    group.create_task(self._dead_letter(alike, reason, description))

    async def _complete(self, items: Sequence[RestoredDelivery]) -> None:
        deliveries = self._ledger.completable(items)
        try:
            lost = await self._receiver.complete(
                deliveries, timeout_s=self._options.settle_timeout_s
            )
        except ServiceError as error:
            self._in_flight.failure_count += 1
            self._close(items, ReceiptOutcome.LOCK_LOST, f"moved, not completed: {error.sentence}")
            return
        finally:
            for path, count in Counter(each.destination for each in items).items():
                self._complete_sent(path, count)
        kept, moved = _parted(items, lost)
        self._close(moved, ReceiptOutcome.MOVED)
        self._close(kept, ReceiptOutcome.LOCK_LOST, "moved, and its lock was lost before")

    async def _defer(
        self, path: str, items: Sequence[RestoredDelivery], outcome: ReceiptOutcome, reason: str
    ) -> None:
        lost: Sequence[ReceivedMessage] = ()
        try:
            with suppress(ServiceError):
                lost = await self._receiver.defer(
                    [each.delivered for each in items], timeout_s=self._options.settle_timeout_s
                )
        finally:
            # After an error, or cut off: deferred or still locked. Asking for a number that is
            # not deferred harms nobody.
            _lost, deferred = _parted(items, lost)
            self._deferred.add(path, [each.delivered.sequence_number for each in deferred])
        self._close(items, outcome, reason)

    async def _pass_over(self, foreign: Sequence[Foreign]) -> None:
        items = [each.item for each in foreign]
        with suppress(ServiceError):  # Their locks end by themselves, and they come again.
            await self._receiver.defer(
                [each.delivered for each in items], timeout_s=self._options.settle_timeout_s
            )
        for owner in dict.fromkeys(each.owner for each in foreign):
            theirs = [each.item for each in foreign if each.owner == owner]
            self._close(theirs, ReceiptOutcome.FOREIGN, owner)

    def _queue_dead_letters(self, poison: Sequence[PoisonMessage]) -> None:
        if poison:
            self._to_dead_letter.extend(poison)
            self._has_news.set()

    async def _dead_letter(
        self, items: list[RestoredDelivery], reason: str, description: str
    ) -> None:
        try:
            lost = await self._receiver.dead_letter(
                [each.delivered for each in items],
                reason=reason,
                description=description,
                timeout_s=self._options.settle_timeout_s,
            )
        except ServiceError:
            lost = [each.delivered for each in items]
        kept, buried = _parted(items, lost)
        self._close(buried, ReceiptOutcome.DEAD_LETTERED, reason)
        self._close(
            kept, ReceiptOutcome.RELEASED, f"not dead-lettered ({reason}): its lock was lost"
        )

    async def _release(self, items: Sequence[RestoredDelivery], reason: str) -> None:
        """Back to the queue, for whoever receives next."""
        with suppress(ServiceError):  # Their locks end by themselves.
            await self._receiver.abandon(
                [each.delivered for each in items], timeout_s=self._options.settle_timeout_s
            )
        self._close(items, ReceiptOutcome.RELEASED, reason)

    def _close(
        self, items: Sequence[RestoredDelivery], outcome: ReceiptOutcome, reason: str = ""
    ) -> None:
        if items:
            self._ledger.close(items, outcome, self._clock.now().wall_ms, reason)

    def _now_s(self) -> float:
        return self._clock.now().monotonic_s


def _sequence_number(item: RestoredDelivery) -> int:
    return item.delivered.sequence_number


def _dead_letter_groups(
    poison: Sequence[PoisonMessage],
) -> dict[tuple[str, str], list[RestoredDelivery]]:
    """What is dead-lettered for one reason, in one frame if it lies side by side."""
    graves: dict[tuple[str, str], list[RestoredDelivery]] = {}
    for item, reason, description in poison:
        graves.setdefault((reason, description), []).append(item)
    return graves


def _parted(
    items: Sequence[RestoredDelivery], lost: Sequence[ReceivedMessage]
) -> tuple[Sequence[RestoredDelivery], Sequence[RestoredDelivery]]:
    """(those whose lock was lost, the others)."""
    if not lost:
        return (), items
    numbers = {each.sequence_number for each in lost}
    return (
        [each for each in items if each.delivered.sequence_number in numbers],
        [each for each in items if each.delivered.sequence_number not in numbers],
    )
