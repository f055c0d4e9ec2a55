"""A process that brings the backlog home, with the real planner, ledger and board inside.

What ``twinbus.mover.chunk_transfer`` awaits is yielded here: a lane is a generator, one for each
backlog queue, which asks, sleeps or idles; it can be killed between any two of these.

Rule 1: what goes where, what an error means, what may be completed: the core says it.
Rule 2: what a dead mover had sent and not completed is in doubt; every other doubt must be in a
        receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import (
    MessageNotFound,
    OperationTimeout,
    ServerBusy,
    ServiceError,
)
from twinbus.failover.backoff import Backoff
from twinbus.mover.planning.chunk_ledger import (
    ChunkLedger,
    LedgerError,
    MoverIdentity,
    RestoredDelivery,
)
from twinbus.mover.planning.chunk_plan import (
    DeliveryRules,
    MoveErrorClass,
    PoisonMessage,
    classify_error,
    plan_chunk,
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
from verification.simulation import acts
from verification.simulation.acts import CHUNK_COUNT, GRACE_S
from verification.simulation.network import Request
from verification.simulation.services import Backlog, Home, Mail
from verification.simulation.world import Process, World

CHUNK_S_MAX: Final = 4.0
TIMEOUT_S: Final = 5.0
POLL_S: Final = 4.0
DISCOVERY_S: Final = 30.0
LIMIT_BYTES: Final = 262_144
BACKOFF: Final = Backoff(first_s=0.5, last_s=8.0, gone_grace_s=GRACE_S)
RULES: Final = DeliveryRules(primary_name="home")


class Ask(NamedTuple):
    """A request to make; the request itself comes back when it is over."""

    service: Backlog | Home
    act: Callable[[Request], ServiceError | None]
    facts: Any


class Idle(NamedTuple):
    """Nothing to do until something arrives there, or until then."""

    backlog: Backlog
    until_s: float


Command: TypeAlias = Ask | Idle | float
Work: TypeAlias = Generator[Command, Any, None]


class Lane:
    """One generator and what it waits for."""

    __slots__ = ("mover", "turn", "work")

    def __init__(self, mover: Mover, work: Work) -> None:
        self.mover, self.work = mover, work
        self.turn = 0

    def called(self, turn: int) -> None:
        """Something has arrived; the mover hears of it when it is awake."""
        self.mover.world.at(self.mover.world.now_s, self.mover, self.go, turn)

    def go(self, turn: int, value: Any = None) -> None:
        """Go on with ``value``, unless something else has woken it before."""
        if turn != self.turn:
            return
        self.turn += 1
        try:
            command = self.work.send(value)
        except LedgerError as error:
            raise self.mover.world.broken("Y1 the ledger", error.sentence) from error
        world, turn = self.mover.world, self.turn
        if isinstance(command, Ask):
            Request(
                world,
                self.mover,
                command.service,
                command.act,
                lambda request: self.go(turn, request),
                timeout_s=TIMEOUT_S,
                facts=command.facts,
            )
        elif isinstance(command, Idle):
            command.backlog.watchers.append((self, turn))
            if command.backlog.items:
                world.at(command.until_s, self.mover, self.go, turn)
        else:
            world.at(command, self.mover, self.go, turn)


class Chunk:
    """One chunk on its way."""

    __slots__ = ("_admission", "_aside", "_backlog", "_ends_s", "_ledger", "_mover", "_world")

    def __init__(
        self,
        mover: Mover,
        backlog: Backlog,
        deferred: DeferredMessages,
        ledger: ChunkLedger,
        permission: SendPermission | None,
    ) -> None:
        self._mover, self._backlog, self._aside, self._ledger = mover, backlog, deferred, ledger
        self._world, self._admission = mover.world, permission
        self._ends_s = mover.world.now_s + CHUNK_S_MAX

    def deliver(self, home: Home, items: list[RestoredDelivery]) -> Work:
        path, circuits = home.name, self._mover.circuits
        permission = self._admission or circuits.admit(
            path, self._world.now_s, may_wait=not self._aside.holds(path)
        )
        if permission is SendPermission.WAIT:
            yield from self._set_aside(path, items, ReceiptOutcome.DEFERRED)
            return
        if permission is SendPermission.GIVE_UP:
            lost = [
                PoisonMessage(item, "destination-not-found", f"{path} is gone") for item in items
            ]
            yield from self.bury(lost)
            return
        is_probe = permission is SendPermission.PROBE
        for batch in split_into_batches(items, limit_bytes=LIMIT_BYTES):
            if not is_probe and circuits.state(path) is not CircuitState.CLOSED:
                yield from self._set_aside(path, batch, ReceiptOutcome.DEFERRED)
            elif self._world.now_s >= self._ends_s:
                yield from self._settle(batch, acts.abandon, ReceiptOutcome.RELEASED)
            else:
                yield from self.send(home, batch)
            is_probe = False

    def send(self, home: Home, items: Sequence[RestoredDelivery]) -> Work:
        mover = self._mover
        self._ledger.sent(items)
        mails = [mover.mails[item.message_id or ""] for item in items]
        for item, mail in zip(items, mails, strict=True):
            mover.owed[self._backlog.name, item.delivered.sequence_number] = mail
        sent: Request = yield Ask(home, acts.send_home, (mover, mails))
        if sent.error is not None:
            yield from self._refused(home, items, sent.error)
            return
        self._ledger.accepted(items)
        mover.circuits.receive(home.name, SendSignal.ACCEPTED, self._world.now_s)
        self._ledger.completable(items)
        yield from self.complete(items)

    def completion(self, items: Sequence[RestoredDelivery]) -> Ask:
        return Ask(self._backlog, acts.complete, self._facts(items, ""))

    def complete(self, items: Sequence[RestoredDelivery]) -> Work:
        yield from self._settle(
            items, acts.complete, ReceiptOutcome.MOVED, ReceiptOutcome.LOCK_LOST
        )

    def _refused(self, home: Home, items: Sequence[RestoredDelivery], error: ServiceError) -> Work:
        pause_s = error.retry_after_s if isinstance(error, ServerBusy) else 0.0
        circuits = self._mover.circuits
        circuits.receive(
            home.name,
            send_signal_for(error),
            self._world.now_s,
            pause_s_min=pause_s,
            timed_out=isinstance(error, OperationTimeout),
        )
        verdict = classify_error(error)
        if verdict is MoveErrorClass.REFUSED and len(items) > 1:
            for part in split_batch(items):
                yield from self.send(home, part)
        elif verdict is MoveErrorClass.REFUSED or (
            verdict is MoveErrorClass.GONE and circuits.is_missing(home.name)
        ):
            yield from self.bury([poison_from_error(item, error) for item in items])
        else:
            outcome = (
                ReceiptOutcome.AMBIGUOUS
                if verdict is MoveErrorClass.AMBIGUOUS
                else ReceiptOutcome.DEFERRED
            )
            yield from self._set_aside(home.name, items, outcome)

    # -- settling -----------------------------------------------------------------------------

    def bury(self, poison: Sequence[PoisonMessage]) -> Work:
        for item, reason, description in poison:
            yield from self._settle(
                [item],
                acts.bury,
                ReceiptOutcome.DEAD_LETTERED,
                ReceiptOutcome.RELEASED,
                f"{reason}: {description}",
            )

    def _set_aside(
        self, path: str, items: Sequence[RestoredDelivery], outcome: ReceiptOutcome
    ) -> Work:
        request: Request = yield Ask(self._backlog, acts.defer, self._facts(items, ""))
        lost: list[int] = request.result if request.error is None else []
        numbers = [item.delivered.sequence_number for item in items]
        self._aside.add(path, [number for number in numbers if number not in lost])
        self._ledger.close(items, outcome, self._world.wall_ms())

    def _settle(
        self,
        items: Sequence[RestoredDelivery],
        act: Callable[[Request], ServiceError | None],
        outcome: ReceiptOutcome,
        otherwise: ReceiptOutcome = ReceiptOutcome.RELEASED,
        reason: str = "",
    ) -> Work:
        request: Request = yield Ask(self._backlog, act, self._facts(items, reason))
        lost = request.result if request.error is None else None
        for item in items:
            is_kept = lost is None or item.delivered.sequence_number in lost
            self._ledger.close([item], otherwise if is_kept else outcome, self._world.wall_ms())

    def _facts(
        self, items: Sequence[RestoredDelivery], reason: str
    ) -> tuple[Mover, list[ReceivedMessage], str]:
        return self._mover, [item.delivered for item in items], reason


class Mover(Process):
    """All backlog queues of a pair, brought home by one process."""

    __slots__ = ("_ledger", "circuits", "homes", "mails", "owed", "world")

    chunk_type: type[Chunk] = Chunk

    def __init__(
        self,
        world: World,
        homes: dict[str, Home],
        backlogs: dict[str, Backlog],
        mails: dict[str, Mail],
        ledger: type[ChunkLedger],
        name: str,
    ) -> None:
        super().__init__(name)
        self.world, self.mails, self.homes, self._ledger = world, mails, homes, ledger
        self.circuits = DestinationCircuits(BACKOFF, world.core_chance)
        self.owed: dict[tuple[str, int], Mail] = {}
        """What was sent home and not yet settled, by queue and number."""
        for backlog in backlogs.values():
            lane = Lane(self, self._lane(backlog))
            world.at(world.now_s, self, lane.go, 0)

    def kill(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        for mail in self.owed.values():
            mail.unclear += 1
            if self.homes[mail.path].holds(mail):
                self.world.seen.add("a mover was killed between acceptance and completion")

    # -- one queue ----------------------------------------------------------------------------

    def _lane(self, backlog: Backlog) -> Work:
        deferred, failures, next_look_s = DeferredMessages(), 0, 0.0
        while True:
            if self.world.now_s >= next_look_s:
                looked: Request = yield Ask(backlog, acts.look, self)
                if looked.error is None:
                    next_look_s = self.world.now_s + DISCOVERY_S
                    for number, path in looked.result:
                        deferred.add(path, [number])
            received: Request = yield Ask(backlog, acts.receive, self)
            if received.error is not None:
                failures += 1
                pause_s = BACKOFF.pause_s(failures, self.world.core_chance)
                yield self.world.now_s + pause_s
                continue
            failures = 0
            if received.result:
                yield from self._bring_home(backlog, deferred, received.result, None)
                continue
            yield from self._bring_back(backlog, deferred)
            yield Idle(backlog, self.world.now_s + POLL_S)

    def _bring_back(self, backlog: Backlog, deferred: DeferredMessages) -> Work:
        for path in deferred.paths():
            permission = self.circuits.admit(path, self.world.now_s)
            if permission is SendPermission.WAIT:
                continue
            numbers = deferred.take(path, 1 if permission is SendPermission.PROBE else CHUNK_COUNT)
            fetched = yield from self._fetch(backlog, numbers)
            settled: set[int] = set()
            if fetched.error is None:
                self.world.seen.add("a mover brought back what was set aside")
                settled = yield from self._bring_home(backlog, deferred, fetched.result, permission)
            deferred.add(path, [number for number in numbers if number not in settled])
            if permission is SendPermission.PROBE:
                self.circuits.release(path, self.world.now_s)

    def _fetch(self, backlog: Backlog, numbers: list[int]) -> Generator[Command, Any, Request]:
        """Ask for them; where another mover was faster, forget those that are gone."""
        asked: Request = yield Ask(backlog, acts.receive_deferred, (self, numbers))
        if isinstance(asked.error, MessageNotFound):
            looked: Request = yield Ask(backlog, acts.look, self)
            if looked.error is not None:
                return looked
            there = {number for number, _path in looked.result}
            numbers[:] = [number for number in numbers if number in there]
            if numbers:
                asked = yield Ask(backlog, acts.receive_deferred, (self, numbers))
        return asked

    def _bring_home(
        self,
        backlog: Backlog,
        deferred: DeferredMessages,
        deliveries: list[ReceivedMessage],
        permission: SendPermission | None,
    ) -> Generator[Command, Any, set[int]]:
        ledger = self._ledger(
            MoverIdentity(backlog.name, "host", 1), deliveries, self.world.wall_ms()
        )
        chunk = self.chunk_type(self, backlog, deferred, ledger, permission)
        plan = plan_chunk(deliveries, RULES, now_ms=self.world.wall_ms())
        yield from chunk.bury(plan.poison)
        for path, items in plan.by_destination.items():
            yield from chunk.deliver(self.homes[path], items)
        ledger.give_up(self.world.wall_ms(), "over")
        for receipt in ledger.receipts:
            mail = self.owed.pop((receipt.queue, receipt.sequence_number), None)
            if mail is not None:
                mail.unclear += receipt.outcome.may_repeat
            self.world.seen.add(f"a mover's receipt said {receipt.outcome.value}")
            self.world.note("{} {}: {}", self.name, receipt.message_id, receipt.outcome.value)
        return {
            receipt.sequence_number
            for receipt in ledger.receipts
            if receipt.outcome in (ReceiptOutcome.MOVED, ReceiptOutcome.DEAD_LETTERED)
        }
