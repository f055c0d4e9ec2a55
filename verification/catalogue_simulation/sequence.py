"""One sequence from a seed.

step:  calls and sends together --> turns, commits and answers in some order --> rest --> checks
       with one injection: a full disk, a failed disk, a crash, an op that the store refuses, a
       plan that goes wrong, or none
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.support.simulated_loop import SimLoop, SimThread
from twinbus.amqp.message.message import Message
from twinbus.broker.access.rules import RuleSet
from twinbus.broker.engine.stored_message import IncomingMessage, Record, pack_record
from twinbus.broker.namespace.catalogue_plan import Draft
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.options import BrokerOptions
from twinbus.broker.storage.interface import QUEUE_ID_MAX, EntityRow, PutEntity
from twinbus.broker.storage.memory_store import MemoryStore
from twinbus.broker.storage.sqlite_store import SqliteStore
from twinbus.errors import StoreFailed, StoreFull, StoreRefused, TwinbusError
from verification.catalogue_simulation.calls import IDLE_MS, Call, choose
from verification.catalogue_simulation.checks import Broken, check, check_disk, known_to
from verification.catalogue_simulation.disk import Disk
from verification.catalogue_simulation.model import Model

STEPS_MAX: Final = 5
TURNS_MAX: Final = 5_000
INJECTIONS: Final = {
    "none": 40,
    "full disk": 20,
    "op refused": 14,
    "plan fails": 8,
    "crash": 8,
    "failed disk": 6,
    "idle": 4,
}
_RECORD: Final = pack_record(Record(Message(body=b"a message").encode()))
_FAR_MS: Final = 4_000_000_000_000
_OPTIONS: Final = BrokerOptions()


class Injected(RuntimeError):
    """A plan went wrong for a reason that nobody foresaw."""


class _Ack:
    """A sender who waits."""

    def __init__(self, queue_id: int, acknowledged: Counter[int]) -> None:
        self._queue_id = queue_id
        self._acknowledged = acknowledged

    def stored(self, _seqs: range) -> None:
        self._acknowledged[self._queue_id] += 1

    def failed(self, _error: Exception) -> None:
        """Nobody promised anything."""


class Sequence:
    """A namespace, its disk and its model, from the first call to the last restart."""

    def __init__(self, seed: int, path: Path | None = None) -> None:
        """On disk if there is a path, else in memory."""
        self.seed = seed
        self.chance = Random(seed)
        self.disk = Disk(MemoryStore() if path is None else SqliteStore(path))
        self.model = Model()
        self.seen: Counter[str] = Counter()
        self.trace: list[str] = []
        self.acknowledged: Counter[int] = Counter()
        self.loop = SimLoop()
        self._trap: Callable[[Draft], None] | None = None
        self._is_trapped = False
        self._start()

    def run(self) -> Counter[str]:
        """Live through it; Broken when something is not as it must be."""
        try:
            self._begin()
            for _ in range(self.chance.randint(2, STEPS_MAX)):
                self._step()
            self._restart()
            self._check()
        except Broken as broken:
            raise Broken(f"seed {self.seed}: {broken}") from None
        finally:
            with suppress(TwinbusError):
                self.disk.store.close()
        return self.seen

    # -- starting -------------------------------------------------------------------------

    def _start(self) -> None:
        self.threads: list[_Thread] = []
        store: Any = self.disk
        try:
            self.namespace = Namespace(
                "simulated",
                store,
                RuleSet(),
                _OPTIONS,
                self.loop,
                Random(self.seed),
                loop=self.loop,
                start_thread=self._start_thread,
            )
        except Exception as error:
            raise Broken(f"the store cannot be opened: {type(error).__name__}: {error}") from error
        submit = self.namespace.submit

        def trapped(plan: Callable[[Draft], object], done: Callable[..., None]) -> None:
            trap, self._trap = self._trap, None
            if trap is None:
                submit(plan, done)
                return

            def spoilt(draft: Draft) -> None:
                plan(draft)
                self._is_trapped = True
                trap(draft)

            submit(spoilt, done)

        self.namespace.submit = trapped  # type: ignore[method-assign]

    def _begin(self) -> None:
        """Most sequences begin with some entities; what happens to them is more interesting."""
        count = self.chance.choice((0, 3, 4, 6))
        calls = [choose(self.chance, self.namespace, is_first=True) for _ in range(count)]
        tasks = [self.loop.start(call.run(self.namespace)) for call in calls]
        self._rest()
        for call, task in zip(calls, tasks, strict=True):
            if _answer(task) is None:
                call.mean(self.model)

    def _start_thread(self, *arguments: Any) -> Any:
        thread = _Thread(*arguments)
        self.threads.append(thread)
        return thread

    def _restart(self) -> None:
        """The process dies; what was not on disk is gone."""
        self.seen["restart"] += 1
        self.disk.store.close()
        self.disk.is_full, self.disk.fails = False, None
        self.loop = SimLoop(self.loop.now_s + 1)
        self._start()
        self._rest()

    # -- a step ---------------------------------------------------------------------------

    def _step(self) -> None:
        chance = self.chance
        (injection,) = chance.choices(list(INJECTIONS), list(INJECTIONS.values()))
        self._send()
        if injection == "idle":
            self._be_idle()
            return
        calls = [choose(chance, self.namespace) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
        self.trace.append(f"{injection}: {', '.join(call.kind for call in calls)}")
        self._prepare(injection)
        before = known_to(self.namespace.catalogue)
        tasks = [self.loop.start(call.run(self.namespace)) for call in calls]
        for _ in range(chance.randint(0, 6)):
            self._take_any_step()
        if injection == "crash":
            self._crash(calls, tasks)
            return
        self._rest()
        self.disk.is_full, self.disk.fails, self._trap = False, None, None
        self._rest()
        if self.disk.failed_count:
            self._fail_over(tasks)
            return
        self._judge(injection, calls, tasks, before)
        self._check()
        if chance.random() < 0.1:
            self._restart()
            self._check()

    def _prepare(self, injection: str) -> None:
        self._is_trapped = False
        self.disk.full_count = self.disk.refused_count = 0
        if injection == "full disk":
            self.disk.is_full = True
        elif injection == "failed disk":
            self.disk.fails = self.chance.choice(("before", "after"))
        elif injection == "op refused":
            self._trap = self.chance.choice((_put_id_out_of_range, _put_path_again))
        elif injection == "plan fails":
            self._trap = _raise

    def _send(self) -> None:
        """Some messages, so that entities are not empty; a few wait for a time far away."""
        for queue in self.namespace.catalogue.entities():
            if queue.description.takes_messages and self.chance.random() < 0.5:
                due_ms = _FAR_MS if self.chance.random() < 0.1 else None
                ticket = _Ack(queue.queue_id, self.acknowledged)
                queue.enqueue([IncomingMessage(_RECORD, None, due_ms)], ticket)
                self.namespace.touch(queue)
                self.seen["send"] += 1

    def _judge(
        self,
        injection: str,
        calls: list[Call],
        tasks: list[asyncio.Task[Any]],
        before: dict[str, Any],
    ) -> None:
        """Whether each call was answered as it must be; what succeeded is told to the model."""
        errors = [_answer(task) for task in tasks]
        for call, error in zip(calls, errors, strict=True):
            self.trace.append(f"    {call.kind}: {error or 'done'}")
            self.seen[f"{call.kind}: {_outcome(error)}"] += 1
            if error is None:
                call.mean(self.model)
            elif not isinstance(error, TwinbusError | Injected):
                raise Broken(f"{call.kind} ended with {type(error).__name__}: {error}")
        if self.namespace.failure is not None:
            raise Broken(f"a refused call stopped the namespace: {self.namespace.failure}")
        if all(errors) and known_to(self.namespace.catalogue) != before:
            raise Broken(f"a refused call changed something: {calls[0].kind}, {errors[0]}")
        if self._is_trapped:
            self.seen[f"injected: {injection}"] += 1
            blamed = sum(isinstance(error, StoreRefused | Injected) for error in errors)
            if blamed != 1:
                raise Broken(f"one call was wrong, and {blamed} were refused for it")
        elif injection != "full disk" or self.disk.full_count:
            self.seen[f"injected: {injection}"] += 1

    def _crash(self, calls: list[Call], tasks: list[asyncio.Task[Any]]) -> None:
        """Who was told that a call succeeded finds it so; what was on its way may be there."""
        pending = 0
        for call, task in zip(calls, tasks, strict=True):
            if not task.done():
                pending += 1
            elif _answer(task) is None:
                call.mean(self.model)
        self._drop(tasks)
        self._restart()
        self.seen["injected: crash"] += 1
        if not pending:
            self._check()
        self._take_stock()

    def _fail_over(self, tasks: list[asyncio.Task[Any]]) -> None:
        """After a failed disk nobody knows what is on it; but it opens, and adds up."""
        self.disk.failed_count = 0
        if not isinstance(self.namespace.failure, StoreFailed):
            raise Broken("the disk failed, and the namespace goes on")
        if any(not task.done() for task in tasks):
            raise Broken("the disk failed, and somebody still waits")
        self._drop(tasks)
        self._restart()
        self.seen["injected: failed disk"] += 1
        self._take_stock()

    def _take_stock(self) -> None:
        """Begin with what the disk has."""
        check_disk(self.namespace.catalogue, self.disk)
        self.model.known = known_to(self.namespace.catalogue)
        self._check()

    @staticmethod
    def _drop(tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            # The process is gone, and so is everybody in it.
            if not task.done():
                task.cancel()
                with suppress(BaseException):
                    task.get_coro().throw(asyncio.CancelledError())  # type: ignore[union-attr]
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            elif not task.cancelled():
                task.exception()

    def _be_idle(self) -> None:
        """Nobody uses anything for long: what wants that is deleted, and nothing else."""
        self._rest()
        is_full = self.disk.is_full = self.chance.random() < 0.3
        expected = {**self.model.known}
        self._advance(IDLE_MS / 1_000 * 1.5)
        self.disk.is_full = False
        self._rest()
        known = known_to(self.namespace.catalogue)
        for path, (_kind, values, _rules) in list(expected.items()):
            if path not in known and values["auto_delete_on_idle_ms"] is not None:
                self.seen["idle: deleted"] += 1
                self.model.delete(path)
        if is_full and self.disk.full_count:
            self.seen["idle: full disk"] += 1
        self.seen["injected: idle"] += 1
        self._check()

    def _check(self) -> None:
        check(self.namespace.catalogue, self.disk, self.model)
        counters = self.disk.counters()
        for queue in self.namespace.catalogue.entities():
            queue_id = queue.queue_id
            passed_on = queue.description.kind == "topic"
            if not passed_on and counters[queue_id].next_seq <= self.acknowledged[queue_id]:
                raise Broken(f"acknowledged, and not on disk: {queue.description.path!r}")

    # -- time -----------------------------------------------------------------------------

    def _take_any_step(self) -> None:
        ready: list[Callable[[], None]] = [self.loop.turn]
        for thread in self.threads:
            if thread.has_jobs:
                ready.append(thread.run)
            if thread.has_answers:
                ready.append(thread.tell)
        self.chance.choice(ready)()

    def _rest(self) -> None:
        """Everything that is under way comes to its end."""
        for _ in range(TURNS_MAX):
            if self._take_step():
                continue
            if self.namespace._retry is None:
                return
            at_s = self.loop.next_timer_s()
            self.loop.now_s = max(self.loop.now_s, at_s or 0.0)
            self.loop.turn()
            if self.disk.is_full and not self.loop.is_busy:
                return
        raise Broken("the namespace does not come to rest")

    def _take_step(self) -> bool:
        if self.loop.is_busy:
            self.loop.turn()
            return True
        for thread in self.threads:
            if thread.has_jobs:
                thread.run()
                return True
            if thread.has_answers:
                thread.tell()
                return True
        return False

    def _advance(self, seconds: float) -> None:
        end_s = self.loop.now_s + seconds
        for _ in range(TURNS_MAX):
            while self._take_step():
                pass
            at_s = self.loop.next_timer_s()
            if at_s is None or at_s > end_s:
                break
            self.loop.now_s = max(self.loop.now_s, at_s)
            self.loop.turn()
        self.loop.now_s = end_s


class _Thread(SimThread):
    """A store thread on a disk that fails in every way."""

    refusals = (Exception,)


def _answer(task: asyncio.Task[Any]) -> BaseException | None:
    if not task.done():
        raise Broken("a call was never answered")
    return task.exception()


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "done"
    return "full disk" if isinstance(error, StoreFull) else "refused"


def _put_id_out_of_range(draft: Draft) -> None:
    draft.ops.append(PutEntity(EntityRow(QUEUE_ID_MAX + 1, "nowhere", "queue", "{}")))


def _put_path_again(draft: Draft) -> None:
    """Two entities of one path: the store must see it."""
    row = EntityRow(draft.next_id, "twice", "queue", "{}")
    draft.ops += [PutEntity(row), PutEntity(EntityRow(draft.next_id + 1, "twice", "queue", "{}"))]


def _raise(_draft: Draft) -> None:
    raise Injected("injected")
