"""Moves one chunk: carries out its plan over the network.

    all destinations at the same time:   admit --> send in batches --> complete what was accepted
                                           '----> defer what has to wait
    messages that can never be delivered:   dead-letter
    messages of another pair:               defer, and do not remember their numbers

Rule 1: completing goes through the ledger, which refuses it before the primary accepted (Y1).
Rule 2: no error of either namespace leaves run(); it becomes receipts and circuit signals.
Rule 3: a message that has to wait is deferred: it is only received by its number, so it neither
        delays others nor is received again and again (Y4). So is a message of another pair (P21):
        abandoned, it would be received again at once, and its delivery count would grow until it
        is dead-lettered. The syphon of its own pair finds it by a scan.
Rule 4: the number of messages that are sent and not yet completed is limited: a kill repeats them.
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
"""The circuit of the primary as a whole: no entity has an empty name."""
# Batches of one destination that are sent at the same time. More would only wait in the primary's
# commit; and none waits for another destination, which may not respond.
BATCHES_IN_FLIGHT_MAX: Final = 8
# What was accepted waits this long for the rest of its chunk: a crash in that time repeats it.
SETTLE_INTERVAL_S: Final = 0.05
DESTINATION_UNAVAILABLE: Final = "its destination is unavailable"


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
        """``permission`` is what the circuit has allowed already, for deferred messages of one
        destination; None: it is asked for each destination."""
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
            # Something is left only when the chunk was cancelled.
            for path in list(self._held):
                self._leave_flight(path)

    async def _send_plan(self, plan: ChunkPlan) -> None:
        async with asyncio.TaskGroup() as sending:
            self._queue_dead_letters(plan.poison)
            if plan.foreign:
                sending.create_task(self._defer_foreign(plan.foreign))
            together = {}
            for path, items in plan.by_destination.items():
                if (
                    self._senders.has_limit(path)
                    and self._circuits.state(path) is CircuitState.CLOSED
                ):
                    together[path] = items
                else:
                    # No other destination waits for one that may respond late.
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

    def _leave_flight(self, path: str, count: int | None = None) -> None:
        """``count`` messages (None: all) are no longer in flight: they are in one namespace only,
        or are ambiguous and have receipts that state it."""
        count = self._held[path] if count is None else count
        if count:
            self._held[path] -= count
            self._in_flight.release(path, count)

    # -- one destination ------------------------------------------------------------------

    async def _deliver(self, path: str, items: list[RestoredDelivery]) -> None:
        match self._permission or self._admit(path):
            case SendPermission.WAIT:
                self._leave_flight(path)
                await self._defer(path, items, ReceiptOutcome.DEFERRED, DESTINATION_UNAVAILABLE)
            case SendPermission.GIVE_UP:
                self._leave_flight(path)
                self._queue_dead_letters([self._missing_destination(item) for item in items])
            case SendPermission.SEND:
                await self._send_all(path, items, is_probe=False)
            case SendPermission.PROBE:
                await self._send_all(path, items, is_probe=True)

    def _admit(self, path: str) -> SendPermission:
        # If messages are deferred for it, those are the probe; new ones need not wait for it.
        may_wait = not self._deferred.holds(path)
        return self._circuits.admit(path, self._now_s(), may_wait=may_wait)

    async def _send_all(self, path: str, items: list[RestoredDelivery], *, is_probe: bool) -> None:
        try:
            limit_bytes = await self._senders.limit_bytes(
                path, timeout_s=self._options.attach_timeout_s
            )
        except ServiceError as error:
            self._leave_flight(path)
            await self._handle_unreachable(path, items, error)
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
                # The circuit opened while this batch waited for its turn.
                self._leave_flight(path, len(items))
                await self._defer(path, items, ReceiptOutcome.DEFERRED, DESTINATION_UNAVAILABLE)
            elif self._now_s() >= self._ends_s:
                self._leave_flight(path, len(items))
                await self._release(items, "the time of the chunk was over")
            elif self._in_flight.failure_count != self._failures_before:
                self._leave_flight(path, len(items))
                await self._release(items, "the backlog did not respond")
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
            await self._handle_error(path, items, error, is_probe=is_probe)
            return
        self._circuits.receive(path, SendSignal.ACCEPTED, self._now_s())
        self._to_complete.extend(items)
        self._has_news.set()

    async def _handle_error(
        self, path: str, items: Sequence[RestoredDelivery], error: ServiceError, *, is_probe: bool
    ) -> None:
        self._note_error(path, error)
        error_class = classify_error(error)
        if error_class is MoveErrorClass.REFUSED and len(items) > 1:
            # At the same time: in turn they would take a round trip for each message.
            async with asyncio.TaskGroup() as group:
                for part in split_batch(items):
                    group.create_task(self._try(path, part, is_probe=is_probe))
            return
        self._leave_flight(path, len(items))
        match error_class:
            case MoveErrorClass.REFUSED:
                self._queue_dead_letters([poison_from_error(items[0], error)])
            case MoveErrorClass.AMBIGUOUS if self._is_undeliverable(items, is_probe):
                self._queue_dead_letters([poison_from_error(items[0], error)])
            case MoveErrorClass.AMBIGUOUS:
                await self._defer(path, items, ReceiptOutcome.AMBIGUOUS, error.sentence)
            case MoveErrorClass.GONE | MoveErrorClass.LATER:
                await self._defer_failed(path, items, error)

    def _is_undeliverable(self, items: Sequence[RestoredDelivery], is_probe: bool) -> bool:
        """A message that is ambiguous at every attempt, although its destination accepts others."""
        attempts = items[0].delivered.delivery_count
        return len(items) == 1 and not is_probe and attempts >= self._options.attempts_max

    async def _handle_unreachable(
        self, path: str, items: list[RestoredDelivery], error: ServiceError
    ) -> None:
        """No link to the destination could be opened: nothing was sent, nothing is ambiguous."""
        self._note_error(path, error)
        if classify_error(error) is MoveErrorClass.REFUSED:
            # It exists and never accepts messages, for example a subscription: do not wait.
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

    def _note_error(self, path: str, error: ServiceError) -> None:
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
        description = f"{item.destination}: Entity not found for the whole grace period."
        return PoisonMessage(item, "destination-not-found", description)

    # -- settling in the backlog ----------------------------------------------------------

    async def _settle(self) -> None:
        """Complete what was accepted, in few and large ranges, until everything was sent.

        A chunk for two destinations is accepted in two halves whose numbers alternate: completed
        separately they would cost a frame for each message, together they cost one. Poison
        messages are dead-lettered at the same time: separately each would cost a commit.
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
                for (reason, description), same in _dead_letter_groups(poison).items():
                    group.create_task(self._dead_letter(same, reason, description))

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
                self._leave_flight(path, count)
        kept, moved = _split_lost(items, lost)
        self._close(moved, ReceiptOutcome.MOVED)
        self._close(kept, ReceiptOutcome.LOCK_LOST, "moved, but its lock was lost before")

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
            # After an error, or cancelled: deferred or still locked. To ask for a number that is
            # not deferred does no harm.
            _lost, deferred = _split_lost(items, lost)
            self._deferred.add(path, [each.delivered.sequence_number for each in deferred])
        self._close(items, outcome, reason)

    async def _defer_foreign(self, foreign: Sequence[Foreign]) -> None:
        items = [each.item for each in foreign]
        with suppress(ServiceError):  # Their locks expire, and they are received again.
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
        kept, dead_lettered = _split_lost(items, lost)
        self._close(dead_lettered, ReceiptOutcome.DEAD_LETTERED, reason)
        self._close(
            kept, ReceiptOutcome.RELEASED, f"not dead-lettered ({reason}): its lock was lost"
        )

    async def _release(self, items: Sequence[RestoredDelivery], reason: str) -> None:
        """Return the messages to the queue, for the next receive."""
        with suppress(ServiceError):  # Their locks expire.
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
    """Messages by (reason, description): each group is one frame if its numbers are consecutive."""
    groups: dict[tuple[str, str], list[RestoredDelivery]] = {}
    for item, reason, description in poison:
        groups.setdefault((reason, description), []).append(item)
    return groups


def _split_lost(
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
