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

from twinbus.clock import Clock
from twinbus.core.chunk import (
    ChunkPlan,
    Foreign,
    MoveErrorClass,
    Poison,
    batches_of,
    classify_error,
    parts_of,
    poison_of,
    sign_of,
)
from twinbus.core.chunk_aside import SetAside
from twinbus.core.chunk_board import CircuitState, DestinationBoard, SendPermission, Sign
from twinbus.core.chunk_ledger import ChunkLedger, Homeward
from twinbus.core.parcel import OutgoingMessage, ReceivedMessage
from twinbus.core.receipts import ReceiptOutcome
from twinbus.drivers.port import Receiver
from twinbus.pairing.mover_in_flight import InFlight
from twinbus.pairing.mover_options import MoverOptions
from twinbus.pairing.mover_senders import SenderPool
from twinbus.service_errors import (
    AccessRefused,
    CommunicationError,
    OperationTimeout,
    ServerBusy,
    ServiceError,
)

__all__ = ["PRIMARY", "ChunkRun"]

PRIMARY: Final = ""
"""The board's entry for the primary as a whole: no entity has an empty name."""
# Batches of one destination under way at once. More would only wait in the primary's commit; and
# none waits for another destination, which may be a silent one.
BATCHES_IN_FLIGHT_MAX: Final = 8
# What was accepted waits this long for the rest of its chunk: a crash in that time repeats it.
SETTLE_INTERVAL_S: Final = 0.05


class ChunkRun:
    """Moves the messages of one plan."""

    def __init__(
        self,
        receiver: Receiver,
        senders: SenderPool,
        *,
        board: DestinationBoard,
        in_flight: InFlight,
        aside: SetAside,
        ledger: ChunkLedger,
        options: MoverOptions,
        clock: Clock,
        admission: SendPermission | None,
    ) -> None:
        """``admission`` is the board's word, for messages of one destination that were set
        aside; whoever has it did not ask for them in vain."""
        self._receiver, self._senders = receiver, senders
        self._board, self._aside, self._ledger = board, aside, ledger
        self._options, self._clock = options, clock
        self._admission = admission
        self._ends_s = clock.now().monotonic_s + options.chunk_s_max
        self._in_flight = in_flight
        self._failures_before = in_flight.failure_count
        self._held: Counter[str] = Counter()
        """What this chunk has in flight, by destination."""
        self._to_complete: list[Homeward] = []
        self._to_bury: list[Poison] = []
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
                self._land(path)

    async def _send_plan(self, plan: ChunkPlan) -> None:
        async with asyncio.TaskGroup() as sending:
            self._bury(plan.poison)
            if plan.foreign:
                sending.create_task(self._pass_over(plan.foreign))
            together = {}
            for path, items in plan.by_destination.items():
                if self._senders.knows(path) and self._board.state(path) is CircuitState.CLOSED:
                    together[path] = items
                else:
                    # Nobody waits for one that may take its time to answer.
                    sending.create_task(self._deliver(path, items))
            while together:
                for path in await self._room_for(together):
                    sending.create_task(self._deliver(path, together.pop(path)))

    async def _room_for(self, parts: Mapping[str, list[Homeward]]) -> list[str]:
        """The destinations whose part of this chunk may be in flight from now on."""
        counts = {path: len(items) for path, items in parts.items()}
        admitted = await self._in_flight.room_for(counts)
        self._held.update({path: counts[path] for path in admitted})
        return admitted

    def _land(self, path: str, count: int | None = None) -> None:
        """So many (all) are in one place only, or nobody knows and their receipts say so."""
        count = self._held[path] if count is None else count
        if count:
            self._held[path] -= count
            self._in_flight.free(path, count)

    # -- one destination ------------------------------------------------------------------

    async def _deliver(self, path: str, items: list[Homeward]) -> None:
        match self._admission or self._admitted(path):
            case SendPermission.WAIT:
                self._land(path)
                await self._set_aside(path, items, ReceiptOutcome.PARKED, "its destination is down")
            case SendPermission.GIVE_UP:
                self._land(path)
                self._bury([self._lost(item) for item in items])
            case SendPermission.SEND:
                await self._send_all(path, items, is_probe=False)
            case SendPermission.PROBE:
                await self._send_all(path, items, is_probe=True)

    def _admitted(self, path: str) -> SendPermission:
        # Whoever has messages set aside can probe with those; fresh ones need not wait for it.
        may_wait = not self._aside.holds(path)
        return self._board.admit(path, self._now_s(), may_wait=may_wait)

    async def _send_all(self, path: str, items: list[Homeward], *, is_probe: bool) -> None:
        try:
            limit_bytes = await self._senders.limit_bytes(
                path, timeout_s=self._options.attach_timeout_s
            )
        except ServiceError as error:
            self._land(path)
            await self._not_sent(path, items, error)
            return
        if not self._held[path]:
            await self._room_for({path: items})
        batches = list(batches_of(items, limit_bytes=limit_bytes))
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
        items: Sequence[Homeward],
        turns: asyncio.Semaphore,
        *,
        is_probe: bool = False,
    ) -> None:
        async with turns:
            if not is_probe and self._board.state(path) is not CircuitState.CLOSED:
                # It closed while this batch waited for its turn.
                self._land(path, len(items))
                await self._set_aside(path, items, ReceiptOutcome.PARKED, "its destination is down")
            elif self._now_s() >= self._ends_s:
                self._land(path, len(items))
                await self._leave(items, "the chunk was out of time")
            elif self._in_flight.failure_count != self._failures_before:
                self._land(path, len(items))
                await self._leave(items, "the backlog did not answer")
            else:
                await self._try(path, items, is_probe=is_probe)

    async def _try(self, path: str, items: Sequence[Homeward], *, is_probe: bool) -> None:
        messages = [OutgoingMessage(each.encoded) for each in items]
        self._ledger.sent(items)
        try:
            async with self._senders.lent(path) as sender:
                await sender.send(messages, timeout_s=self._options.send_timeout_s)
                self._ledger.accepted(items)
        except ServiceError as error:
            await self._refused(path, items, error, is_probe=is_probe)
            return
        self._board.receive(path, Sign.ACCEPTED, self._now_s())
        self._to_complete.extend(items)
        self._has_news.set()

    async def _refused(
        self, path: str, items: Sequence[Homeward], error: ServiceError, *, is_probe: bool
    ) -> None:
        self._note(path, error)
        verdict = classify_error(error)
        if verdict is MoveErrorClass.REFUSED and len(items) > 1:
            # At once: one after the other would take as many round trips as there are messages.
            async with asyncio.TaskGroup() as group:
                for part in parts_of(items):
                    group.create_task(self._try(path, part, is_probe=is_probe))
            return
        self._land(path, len(items))
        match verdict:
            case MoveErrorClass.REFUSED:
                self._bury([poison_of(items[0], error)])
            case MoveErrorClass.UNSURE if self._is_hopeless(items, is_probe):
                self._bury([poison_of(items[0], error)])
            case MoveErrorClass.UNSURE:
                await self._set_aside(path, items, ReceiptOutcome.UNSURE, error.sentence)
            case MoveErrorClass.GONE | MoveErrorClass.LATER:
                await self._put_off(path, items, error)

    def _is_hopeless(self, items: Sequence[Homeward], is_probe: bool) -> bool:
        """A message that always ends in doubt, although its destination takes others."""
        attempts = items[0].delivered.delivery_count
        return len(items) == 1 and not is_probe and attempts >= self._options.attempts_max

    async def _not_sent(self, path: str, items: list[Homeward], error: ServiceError) -> None:
        """The destination could not even be reached: nothing of this is in doubt."""
        self._note(path, error)
        if classify_error(error) is MoveErrorClass.REFUSED:
            # It is there and takes no messages from anybody, as a subscription: waiting is vain.
            self._bury([poison_of(item, error) for item in items])
        else:
            await self._put_off(path, items, error)

    async def _put_off(self, path: str, items: Sequence[Homeward], error: ServiceError) -> None:
        if self._board.is_lost(path):
            self._bury([poison_of(item, error) for item in items])
        else:
            await self._set_aside(path, items, ReceiptOutcome.PARKED, error.sentence)

    def _note(self, path: str, error: ServiceError) -> None:
        pause_s_min = error.retry_after_s if isinstance(error, ServerBusy) else 0.0
        now_s = self._now_s()
        self._board.receive(
            path,
            sign_of(error),
            now_s,
            pause_s_min=pause_s_min,
            is_silent=isinstance(error, OperationTimeout),
            is_refused=isinstance(error, AccessRefused),
        )
        if isinstance(error, CommunicationError):
            self._board.receive(PRIMARY, Sign.FAILED, now_s)

    def _lost(self, item: Homeward) -> Poison:
        description = f"{item.destination}: it does not exist, also after the grace period"
        return Poison(item, "destination-not-found", description)

    # -- settling in the backlog ----------------------------------------------------------

    async def _settle(self) -> None:
        """Complete what was accepted, in few and large ranges, until everything was sent.

        A chunk for two destinations is accepted in two halves that lie between each other:
        completed one by one they would cost a frame for each message, together they cost one.
        Poison is buried in the same moment: by itself each would cost the backlog a commit.
        """
        while self._to_complete or self._to_bury or not self._all_sent.is_set():
            await self._has_news.wait()
            self._has_news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_INTERVAL_S):
                    await self._all_sent.wait()
            items, self._to_complete = self._to_complete, []
            poison, self._to_bury = self._to_bury, []
            async with asyncio.TaskGroup() as group:
                if items:
                    items.sort(key=_sequence_number)
                    group.create_task(self._complete(items))
                for (reason, description), alike in _graves(poison).items():
                    group.create_task(self._dead_letter(alike, reason, description))

    async def _complete(self, items: Sequence[Homeward]) -> None:
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
                self._land(path, count)
        kept, moved = _parted(items, lost)
        self._close(moved, ReceiptOutcome.MOVED)
        self._close(kept, ReceiptOutcome.LOCK_LOST, "moved, and its lock was lost before")

    async def _set_aside(
        self, path: str, items: Sequence[Homeward], outcome: ReceiptOutcome, reason: str
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
            self._aside.add(path, [each.delivered.sequence_number for each in deferred])
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

    def _bury(self, poison: Sequence[Poison]) -> None:
        if poison:
            self._to_bury.extend(poison)
            self._has_news.set()

    async def _dead_letter(self, items: list[Homeward], reason: str, description: str) -> None:
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
        self._close(kept, ReceiptOutcome.LEFT, f"not dead-lettered ({reason}): its lock was lost")

    async def _leave(self, items: Sequence[Homeward], reason: str) -> None:
        """Back to the queue, for whoever receives next."""
        with suppress(ServiceError):  # Their locks end by themselves.
            await self._receiver.abandon(
                [each.delivered for each in items], timeout_s=self._options.settle_timeout_s
            )
        self._close(items, ReceiptOutcome.LEFT, reason)

    def _close(self, items: Sequence[Homeward], outcome: ReceiptOutcome, reason: str = "") -> None:
        if items:
            self._ledger.close(items, outcome, self._clock.now().wall_ms, reason)

    def _now_s(self) -> float:
        return self._clock.now().monotonic_s


def _sequence_number(item: Homeward) -> int:
    return item.delivered.sequence_number


def _graves(poison: Sequence[Poison]) -> dict[tuple[str, str], list[Homeward]]:
    """What is dead-lettered for one reason, in one frame if it lies side by side."""
    graves: dict[tuple[str, str], list[Homeward]] = {}
    for item, reason, description in poison:
        graves.setdefault((reason, description), []).append(item)
    return graves


def _parted(
    items: Sequence[Homeward], lost: Sequence[ReceivedMessage]
) -> tuple[Sequence[Homeward], Sequence[Homeward]]:
    """(those whose lock was lost, the others)."""
    if not lost:
        return (), items
    numbers = {each.sequence_number for each in lost}
    return (
        [each for each in items if each.delivered.sequence_number in numbers],
        [each for each in items if each.delivered.sequence_number not in numbers],
    )
