"""A process that brings the backlog home, with the real planner, ledger and board inside.

What ``twinbus.pairing.mover_chunk`` awaits is yielded here: a lane is a generator, one for each
backlog queue, which asks, sleeps or idles; it can be killed between any two of these.

Rule 1: what goes where, what an error means, what may be completed: the core says it.
Rule 2: what a dead mover had sent and not completed is in doubt; every other doubt must be in a
        receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from simulation import acts
from simulation.acts import CHUNK_COUNT, GRACE_S
from simulation.network import Request
from simulation.services import Backlog, Home, Mail
from simulation.world import Process, World
from twinbus.core.chunk import (
    HomeRules,
    MoveErrorClass,
    Poison,
    batches_of,
    classify_error,
    parts_of,
    plan_chunk,
    poison_of,
    sign_of,
)
from twinbus.core.chunk_aside import SetAside
from twinbus.core.chunk_board import Backoff, CircuitState, DestinationBoard, SendPermission, Sign
from twinbus.core.chunk_ledger import ChunkLedger, Homeward, LedgerError, MoverIdentity
from twinbus.core.parcel import ReceivedMessage
from twinbus.core.receipts import ReceiptOutcome
from twinbus.service_errors import (
    MessageNotFound,
    OperationTimeout,
    ServerBusy,
    ServiceError,
)

CHUNK_S_MAX: Final = 4.0
TIMEOUT_S: Final = 5.0
POLL_S: Final = 4.0
DISCOVERY_S: Final = 30.0
LIMIT_BYTES: Final = 262_144
BACKOFF: Final = Backoff(first_s=0.5, last_s=8.0, gone_grace_s=GRACE_S)
RULES: Final = HomeRules(primary_name="home")


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
        aside: SetAside,
        ledger: ChunkLedger,
        admission: SendPermission | None,
    ) -> None:
        self._mover, self._backlog, self._aside, self._ledger = mover, backlog, aside, ledger
        self._world, self._admission = mover.world, admission
        self._ends_s = mover.world.now_s + CHUNK_S_MAX

    def deliver(self, home: Home, items: list[Homeward]) -> Work:
        path, board = home.name, self._mover.board
        admission = self._admission or board.admit(
            path, self._world.now_s, may_wait=not self._aside.holds(path)
        )
        if admission is SendPermission.WAIT:
            yield from self._set_aside(path, items, ReceiptOutcome.PARKED)
            return
        if admission is SendPermission.GIVE_UP:
            lost = [Poison(item, "destination-not-found", f"{path} is gone") for item in items]
            yield from self.bury(lost)
            return
        is_probe = admission is SendPermission.PROBE
        for batch in batches_of(items, limit_bytes=LIMIT_BYTES):
            if not is_probe and board.state(path) is not CircuitState.CLOSED:
                yield from self._set_aside(path, batch, ReceiptOutcome.PARKED)
            elif self._world.now_s >= self._ends_s:
                yield from self._settle(batch, acts.abandon, ReceiptOutcome.LEFT)
            else:
                yield from self.send(home, batch)
            is_probe = False

    def send(self, home: Home, items: Sequence[Homeward]) -> Work:
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
        mover.board.receive(home.name, Sign.ACCEPTED, self._world.now_s)
        self._ledger.completable(items)
        yield from self.complete(items)

    def completion(self, items: Sequence[Homeward]) -> Ask:
        return Ask(self._backlog, acts.complete, self._facts(items, ""))

    def complete(self, items: Sequence[Homeward]) -> Work:
        yield from self._settle(
            items, acts.complete, ReceiptOutcome.MOVED, ReceiptOutcome.LOCK_LOST
        )

    def _refused(self, home: Home, items: Sequence[Homeward], error: ServiceError) -> Work:
        pause_s = error.retry_after_s if isinstance(error, ServerBusy) else 0.0
        board = self._mover.board
        board.receive(
            home.name,
            sign_of(error),
            self._world.now_s,
            pause_s_min=pause_s,
            is_silent=isinstance(error, OperationTimeout),
        )
        verdict = classify_error(error)
        if verdict is MoveErrorClass.REFUSED and len(items) > 1:
            for part in parts_of(items):
                yield from self.send(home, part)
        elif verdict is MoveErrorClass.REFUSED or (
            verdict is MoveErrorClass.GONE and board.is_lost(home.name)
        ):
            yield from self.bury([poison_of(item, error) for item in items])
        else:
            outcome = (
                ReceiptOutcome.UNSURE if verdict is MoveErrorClass.UNSURE else ReceiptOutcome.PARKED
            )
            yield from self._set_aside(home.name, items, outcome)

    # -- settling -----------------------------------------------------------------------------

    def bury(self, poison: Sequence[Poison]) -> Work:
        for item, reason, description in poison:
            yield from self._settle(
                [item],
                acts.bury,
                ReceiptOutcome.DEAD_LETTERED,
                ReceiptOutcome.LEFT,
                f"{reason}: {description}",
            )

    def _set_aside(self, path: str, items: Sequence[Homeward], outcome: ReceiptOutcome) -> Work:
        request: Request = yield Ask(self._backlog, acts.defer, self._facts(items, ""))
        lost: list[int] = request.result if request.error is None else []
        numbers = [item.delivered.sequence_number for item in items]
        self._aside.add(path, [number for number in numbers if number not in lost])
        self._ledger.close(items, outcome, self._world.wall_ms())

    def _settle(
        self,
        items: Sequence[Homeward],
        act: Callable[[Request], ServiceError | None],
        outcome: ReceiptOutcome,
        otherwise: ReceiptOutcome = ReceiptOutcome.LEFT,
        reason: str = "",
    ) -> Work:
        request: Request = yield Ask(self._backlog, act, self._facts(items, reason))
        lost = request.result if request.error is None else None
        for item in items:
            is_kept = lost is None or item.delivered.sequence_number in lost
            self._ledger.close([item], otherwise if is_kept else outcome, self._world.wall_ms())

    def _facts(
        self, items: Sequence[Homeward], reason: str
    ) -> tuple[Mover, list[ReceivedMessage], str]:
        return self._mover, [item.delivered for item in items], reason


class Mover(Process):
    """All backlog queues of a pair, brought home by one process."""

    __slots__ = ("_ledger", "board", "homes", "mails", "owed", "world")

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
        self.board = DestinationBoard(BACKOFF, world.core_chance)
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
        aside, failures, next_look_s = SetAside(), 0, 0.0
        while True:
            if self.world.now_s >= next_look_s:
                looked: Request = yield Ask(backlog, acts.look, self)
                if looked.error is None:
                    next_look_s = self.world.now_s + DISCOVERY_S
                    for number, path in looked.result:
                        aside.add(path, [number])
            received: Request = yield Ask(backlog, acts.receive, self)
            if received.error is not None:
                failures += 1
                pause_s = BACKOFF.pause_s(failures, self.world.core_chance)
                yield self.world.now_s + pause_s
                continue
            failures = 0
            if received.result:
                yield from self._bring_home(backlog, aside, received.result, None)
                continue
            yield from self._bring_back(backlog, aside)
            yield Idle(backlog, self.world.now_s + POLL_S)

    def _bring_back(self, backlog: Backlog, aside: SetAside) -> Work:
        for path in aside.paths():
            admission = self.board.admit(path, self.world.now_s)
            if admission is SendPermission.WAIT:
                continue
            numbers = aside.take(path, 1 if admission is SendPermission.PROBE else CHUNK_COUNT)
            fetched = yield from self._fetch(backlog, numbers)
            settled: set[int] = set()
            if fetched.error is None:
                self.world.seen.add("a mover brought back what was set aside")
                settled = yield from self._bring_home(backlog, aside, fetched.result, admission)
            aside.add(path, [number for number in numbers if number not in settled])
            if admission is SendPermission.PROBE:
                self.board.release(path, self.world.now_s)

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
        aside: SetAside,
        deliveries: list[ReceivedMessage],
        admission: SendPermission | None,
    ) -> Generator[Command, Any, set[int]]:
        ledger = self._ledger(
            MoverIdentity(backlog.name, "host", 1), deliveries, self.world.wall_ms()
        )
        chunk = self.chunk_type(self, backlog, aside, ledger, admission)
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
