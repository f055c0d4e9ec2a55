"""A process that brings the backlog home, with the real planner, ledger and board inside.

What ``twinbus.pairing.mover_chunk`` awaits is yielded here: a lane is a generator, one for each
backlog queue, which asks, sleeps or idles; it can be killed between any two of these.

Rule 1: what goes where, what an error means, what may be completed: the core says it.
Rule 2: what a dead mover had sent and not completed is in doubt; every other doubt must be in a
        receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from simulation.home_checks import check_buried, check_completed
from simulation.network import Request
from simulation.services import LOCK_S, Backlog, Home, Item, Mail
from simulation.world import Process, World
from twinbus.core.chunk import (
    HomeRules,
    Poison,
    Verdict,
    batches_of,
    halves,
    plan_chunk,
    poison_of,
    sign_of,
    verdict_of,
)
from twinbus.core.chunk_aside import SetAside
from twinbus.core.chunk_board import Admission, Backoff, DestinationBoard, Sign, Standing
from twinbus.core.chunk_ledger import ChunkLedger, Homeward, LedgerError, Place
from twinbus.core.encoding import encode_message
from twinbus.core.envelope import alias
from twinbus.core.parcel import Delivered
from twinbus.core.receipts import Outcome
from twinbus.message import BrokeredMessage
from twinbus.service_errors import (
    MessageNotFound,
    MessageRefused,
    OperationTimeout,
    ServerBusy,
    ServiceError,
)

CHUNK_COUNT: Final = 6
CHUNK_S_MAX: Final = 4.0
TIMEOUT_S: Final = 5.0
POLL_S: Final = 4.0
DISCOVERY_S: Final = 30.0
LIMIT_BYTES: Final = 262_144
GRACE_S: Final = 15.0
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


@lru_cache(maxsize=1024)
def encoded_for(message_id: str, path: str) -> bytes:
    """The message as it is in a backlog queue."""
    return alias(encode_message(BrokeredMessage(b"body", message_id=message_id)), path)


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
        if type(command) is Ask:
            Request(
                world,
                self.mover,
                command.service,
                command.act,
                lambda request: self.go(turn, request),
                timeout_s=TIMEOUT_S,
                facts=command.facts,
            )
        elif type(command) is Idle:
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
        admission: Admission | None,
    ) -> None:
        self._mover, self._backlog, self._aside, self._ledger = mover, backlog, aside, ledger
        self._world, self._admission = mover.world, admission
        self._ends_s = mover.world.now_s + CHUNK_S_MAX

    def deliver(self, home: Home, items: list[Homeward]) -> Work:
        path, board = home.name, self._mover.board
        admission = self._admission or board.admit(
            path, self._world.now_s, may_wait=not self._aside.holds(path)
        )
        if admission is Admission.WAIT:
            yield from self._set_aside(path, items, Outcome.PARKED)
            return
        if admission is Admission.GIVE_UP:
            lost = [Poison(item, "destination-not-found", f"{path} is gone") for item in items]
            yield from self.bury(lost)
            return
        is_probe = admission is Admission.PROBE
        for batch in batches_of(items, limit_bytes=LIMIT_BYTES):
            if not is_probe and board.standing(path) is not Standing.OPEN:
                yield from self._set_aside(path, batch, Outcome.PARKED)
            elif self._world.now_s >= self._ends_s:
                yield from self._settle(batch, _abandon, Outcome.LEFT)
            else:
                yield from self.send(home, batch)
            is_probe = False

    def send(self, home: Home, items: Sequence[Homeward]) -> Work:
        mover = self._mover
        self._ledger.sent(items)
        mails = [mover.mails[item.message_id or ""] for item in items]
        for item, mail in zip(items, mails, strict=True):
            mover.owed[self._backlog.name, item.delivered.sequence_number] = mail
        sent: Request = yield Ask(home, _send_home, (mover, mails))
        if sent.error is not None:
            yield from self._refused(home, items, sent.error)
            return
        self._ledger.accepted(items)
        mover.board.receive(home.name, Sign.ACCEPTED, self._world.now_s)
        self._ledger.completable(items)
        yield from self.complete(items)

    def completion(self, items: Sequence[Homeward]) -> Ask:
        return Ask(self._backlog, _complete, self._facts(items, ""))

    def complete(self, items: Sequence[Homeward]) -> Work:
        yield from self._settle(items, _complete, Outcome.MOVED, Outcome.LOCK_LOST)

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
        verdict = verdict_of(error)
        if verdict is Verdict.REFUSED and len(items) > 1:
            for half in halves(items):
                yield from self.send(home, half)
        elif verdict is Verdict.REFUSED or (verdict is Verdict.GONE and board.is_lost(home.name)):
            yield from self.bury([poison_of(item, error) for item in items])
        else:
            outcome = Outcome.UNSURE if verdict is Verdict.UNSURE else Outcome.PARKED
            yield from self._set_aside(home.name, items, outcome)

    # -- settling -----------------------------------------------------------------------------

    def bury(self, poison: Sequence[Poison]) -> Work:
        for item, reason, description in poison:
            yield from self._settle(
                [item], _bury, Outcome.DEAD_LETTERED, Outcome.LEFT, f"{reason}: {description}"
            )

    def _set_aside(self, path: str, items: Sequence[Homeward], outcome: Outcome) -> Work:
        request: Request = yield Ask(self._backlog, _defer, self._facts(items, ""))
        lost: list[int] = request.result if request.error is None else []
        numbers = [item.delivered.sequence_number for item in items]
        self._aside.add(path, [number for number in numbers if number not in lost])
        self._ledger.close(items, outcome, self._world.wall_ms())

    def _settle(
        self,
        items: Sequence[Homeward],
        act: Callable[[Request], ServiceError | None],
        outcome: Outcome,
        otherwise: Outcome = Outcome.LEFT,
        reason: str = "",
    ) -> Work:
        request: Request = yield Ask(self._backlog, act, self._facts(items, reason))
        lost = request.result if request.error is None else None
        for item in items:
            is_kept = lost is None or item.delivered.sequence_number in lost
            self._ledger.close([item], otherwise if is_kept else outcome, self._world.wall_ms())

    def _facts(self, items: Sequence[Homeward], reason: str) -> tuple[Mover, list[Delivered], str]:
        return self._mover, [item.delivered for item in items], reason


class Mover(Process):
    """All backlog queues of a pair, brought home by one process."""

    __slots__ = ("_homes", "_ledger", "board", "mails", "owed", "world")

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
        self.world, self.mails, self._homes, self._ledger = world, mails, homes, ledger
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
            if self._homes[mail.path].holds(mail):
                self.world.seen.add("a mover was killed between acceptance and completion")

    # -- one queue ----------------------------------------------------------------------------

    def _lane(self, backlog: Backlog) -> Work:
        aside, failures, next_look_s = SetAside(), 0, 0.0
        while True:
            if self.world.now_s >= next_look_s:
                looked: Request = yield Ask(backlog, _look, self)
                if looked.error is None:
                    next_look_s = self.world.now_s + DISCOVERY_S
                    for number, path in looked.result:
                        aside.add(path, [number])
            received: Request = yield Ask(backlog, _receive, self)
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
            if admission is Admission.WAIT:
                continue
            numbers = aside.take(path, 1 if admission is Admission.PROBE else CHUNK_COUNT)
            fetched = yield from self._fetch(backlog, numbers)
            settled: set[int] = set()
            if fetched.error is None:
                self.world.seen.add("a mover brought back what was set aside")
                settled = yield from self._bring_home(backlog, aside, fetched.result, admission)
            aside.add(path, [number for number in numbers if number not in settled])
            if admission is Admission.PROBE:
                self.board.release(path, self.world.now_s)

    def _fetch(self, backlog: Backlog, numbers: list[int]) -> Generator[Command, Any, Request]:
        """Ask for them; where another mover was faster, forget those that are gone."""
        asked: Request = yield Ask(backlog, _receive_deferred, (self, numbers))
        if isinstance(asked.error, MessageNotFound):
            looked: Request = yield Ask(backlog, _look, self)
            if looked.error is not None:
                return looked
            there = {number for number, _path in looked.result}
            numbers[:] = [number for number in numbers if number in there]
            if numbers:
                asked = yield Ask(backlog, _receive_deferred, (self, numbers))
        return asked

    def _bring_home(
        self,
        backlog: Backlog,
        aside: SetAside,
        deliveries: list[Delivered],
        admission: Admission | None,
    ) -> Generator[Command, Any, set[int]]:
        ledger = self._ledger(Place(backlog.name, "host", 1), deliveries, self.world.wall_ms())
        chunk = self.chunk_type(self, backlog, aside, ledger, admission)
        plan = plan_chunk(deliveries, RULES, now_ms=self.world.wall_ms())
        yield from chunk.bury(plan.poison)
        for path, items in plan.by_destination.items():
            yield from chunk.deliver(self._homes[path], items)
        ledger.give_up(self.world.wall_ms(), "over")
        for receipt in ledger.receipts:
            mail = self.mails[receipt.message_id or ""]
            self.owed.pop((receipt.queue, receipt.sequence_number), None)
            mail.unclear += receipt.outcome.may_repeat
            self.world.seen.add(f"a mover's receipt said {receipt.outcome.value}")
            self.world.note("{} {}: {}", self.name, receipt.message_id, receipt.outcome.value)
        return {
            receipt.sequence_number
            for receipt in ledger.receipts
            if receipt.outcome in (Outcome.MOVED, Outcome.DEAD_LETTERED)
        }


# -- what happens at the services -----------------------------------------------------------------


def _delivered(backlog: Backlog, item: Item, world: World) -> Delivered:
    delivered = Delivered(
        path=backlog.name,
        encoded=encoded_for(item.mail.message_id, item.mail.path),
        sequence_number=item.number,
        enqueued_at_ms=int(item.stored_s * 1000),
        locked_until_ms=world.wall_ms() + int(LOCK_S * 1000),
        delivery_count=item.deliveries,
        handle=item.token,
    )
    item.deliveries += 1
    return delivered


def _backlog_of(request: Request) -> Backlog:
    assert isinstance(request.service, Backlog)
    return request.service


def _receive(request: Request) -> ServiceError | None:
    backlog, world = _backlog_of(request), request.facts.world
    items = backlog.lock(CHUNK_COUNT, world.now_s)
    request.result = [_delivered(backlog, item, world) for item in items]
    return None


def _look(request: Request) -> ServiceError | None:
    items = _backlog_of(request).items.values()
    request.result = [(item.number, item.mail.path) for item in items if item.is_deferred]
    return None


def _receive_deferred(request: Request) -> ServiceError | None:
    mover, numbers = request.facts
    backlog, world = _backlog_of(request), mover.world
    items = backlog.lock_deferred(numbers, world.now_s)
    if items is None:
        return MessageNotFound("one of them is not there")
    request.result = [_delivered(backlog, item, world) for item in items]
    return None


def _send_home(request: Request) -> ServiceError | None:
    mover, mails = request.facts
    home = request.service
    assert isinstance(home, Home)
    if any(home.refusal(mail) for mail in mails):
        return MessageRefused("one of them is not taken")
    for mail in mails:
        if not home.store(mail):
            mover.world.seen.add("duplicate detection removed a copy")
    return None


def _held(request: Request) -> list[Item]:
    """Those whose lock still holds; the numbers of the others are the result."""
    mover, deliveries, _reason = request.facts
    backlog, now_s = _backlog_of(request), mover.world.now_s
    found = [backlog.held(each.sequence_number, each.handle, now_s) for each in deliveries]
    request.result = [
        each.sequence_number for each, item in zip(deliveries, found, strict=True) if item is None
    ]
    return [item for item in found if item is not None]


def _complete(request: Request) -> ServiceError | None:
    mover, backlog = request.facts[0], _backlog_of(request)
    for item in _held(request):
        check_completed(mover.world, item.mail, mover._homes)
        del backlog.items[item.number]
    return None


def _defer(request: Request) -> ServiceError | None:
    for item in _held(request):
        item.is_deferred = True
        item.locked_until_s = 0.0
    return None


def _abandon(request: Request) -> ServiceError | None:
    for item in _held(request):
        item.locked_until_s = 0.0
    return None


def _bury(request: Request) -> ServiceError | None:
    mover, _deliveries, reason = request.facts
    backlog = _backlog_of(request)
    for item in _held(request):
        check_buried(mover.world, item.mail, mover._homes, reason, grace_s=GRACE_S)
        item.mail.buried = reason
        del backlog.items[item.number]
    return None
