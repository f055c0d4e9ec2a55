"""The syphon's head, in the process in which Spark runs the source on the driver.

    bell rings, a destination is due --> orders --> tasks --reports--> dispatcher
    control.json --> pause, stop, rate              '--progress--> status.json

Rule 1: while there is nothing to do there is no batch: next_epoch() waits.
        When it is to stop it returns the old epoch soon, again and again: Spark can lose the
        interrupt that ends a wait (SPARK-57963), and would wait for the wait for ever.
Rule 2: with ``once`` it never waits: it says the old epoch when nothing is left to do.
Rule 3: orders are remembered for the epoch they were made for; an epoch that nobody here made
        orders for (a replay after a crash) gets orders for everything, which is always safe.
Rule 4: a queue that rings during a batch waits for it some seconds only: its tasks are told that
        they have enough.
Rule 5: while there are signs of diverted messages an idle queue is looked through now and then for
        what somebody else set aside: that rings no bell. What this one could not hear is a sign,
        too: a poll that failed, or a time without polls.
        Once in a while it is also asked whether there are more queues that hold messages (Y9).
Rule 6: when the state directory has become another run's, this one ends, and tells nothing more
        there: its own program is gone.
Rule 7: who says that it has stopped is done: Spark kills this process whenever it likes then. Its
        links are closed before, and its books are written.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from twinbus.common.clock import Clock, SystemClock
from twinbus.drivers.interface import Driver
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import AccessRefused, ConfigurationError, ServiceError
from twinbus.failover.missing_claims import LISTEN, SEND
from twinbus.mover.planning.dispatcher import Dispatcher
from twinbus.mover.planning.receipts import ReceiptOutcome
from twinbus.mover.planning.stall_detector import StallDetector, stall_reason
from twinbus.mover.planning.work_order import WorkOrder, WorkReport, report_from_json
from twinbus.spark.driver_channel import DriverChannel, DriverChannelAddress
from twinbus.spark.long_poll import LongPollWatcher
from twinbus.spark.syphon.settings import SyphonSettings
from twinbus.spark.syphon.state_directory import Control, StateDir, Status

if TYPE_CHECKING:
    from twinbus.drivers.administration import AdministrationClient
    from twinbus.mover.backlog_search import BacklogSearch

__all__ = ["SyphonCoordinator"]

LOOK_INTERVAL_S: Final = 0.2
"""How often control.json is looked at while nothing happens."""
STATUS_INTERVAL_S: Final = 0.5
OTHERS_WAIT_S: Final = 2.0
"""How long a queue that rings during a batch may have to wait for its end; shorter ones would
spend their time with beginning and ending."""
PEEK_TIMEOUT_S: Final = 20.0
KNOCK_TIMEOUT_S: Final = 10.0
CONTROL_FAULT: Final = "control"

_log = logging.getLogger("twinbus.spark")


class SyphonCoordinator:
    """Used from one event loop, between start() and close()."""

    def __init__(self, settings: SyphonSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        random = Random()
        self._dispatcher = Dispatcher(
            settings.queues, backoff=settings.backoff, random=random, limits=settings.limits
        )
        self._state = None if settings.state_dir is None else StateDir(settings.state_dir)
        self._status = Status(pid=os.getpid())
        self._counts: Counter[str] = Counter()
        self._unlistened: set[str] = set()
        """Queues that may not be received from."""
        self._stall = StallDetector()
        self._orders: dict[str, WorkOrder] = {}
        self._orders_epoch = -1
        self._ordered_s = 0.0
        self._has_begun = False
        self._is_untold = False
        self._stack = AsyncExitStack()
        self._namespaces: AsyncExitStack | None = None
        self._watcher: LongPollWatcher | None = None
        self._was_deaf = False
        """Whether bells were silenced since the start."""
        self._search: BacklogSearch | None = None
        self._searched = asyncio.Event()
        """Set once the first search has ended, with or without an answer."""
        self._secondary: Driver
        self._primary: Driver
        self._management: AdministrationClient
        self.address: DriverChannelAddress

    async def start(self) -> None:
        stack = self._stack
        await self._open()
        channel = DriverChannel(self._handle_report)
        self.address = await channel.start(self._settings.driver_host)
        stack.push_async_callback(channel.close)
        looking = asyncio.create_task(self._keep_looking())
        stack.callback(looking.cancel)
        searching = asyncio.create_task(self._keep_searching())
        stack.callback(searching.cancel)
        if self._state is not None:
            telling = asyncio.create_task(self._keep_telling(self._state))
            stack.callback(telling.cancel)

    async def close(self) -> None:
        await self._hang_up()
        await self._stack.aclose()
        self._doing("stopped")

    async def _open(self) -> None:
        """Have both namespaces, also after a stop that was taken back."""
        if self._namespaces is None:
            self._namespaces = opened = AsyncExitStack()
            settings = self._settings
            secondary = await opened.enter_async_context(settings.opened_secondary())
            primary = await opened.enter_async_context(settings.opened_primary())
            self._secondary, self._primary = secondary.driver, primary.driver
            self._management = secondary.management

    async def _hang_up(self) -> None:
        """Let go of both namespaces; what was done there is in the books then (rule 7)."""
        await self._silence()
        opened, self._namespaces = self._namespaces, None
        if opened is not None:
            await opened.aclose()

    # -- epochs ---------------------------------------------------------------------------

    async def next_epoch(self, epoch: int, *, once: bool) -> int:
        """The epoch after ``epoch``, as soon as there is something to do in it."""
        orders = await (self._what_is_left() if once else self._work_to_do())
        if self._is_replaced():
            raise ConfigurationError(
                f"another syphon has taken the state directory {self._settings.state_dir!r}",
                hint="Give each one its own with --state",
            )
        if not orders:
            # Spark ends the query now, and this process perhaps before its next word.
            await self._hang_up()
            self._doing("stopped")
            if not once:
                await asyncio.sleep(LOOK_INTERVAL_S)
            return epoch
        self._remember(epoch + 1, orders)
        return epoch + 1

    def orders(self, epoch: int) -> dict[str, WorkOrder]:
        """The orders of an epoch, by their ids."""
        if epoch != self._orders_epoch:
            self._remember(epoch, self._dispatcher.orders({}, self._now_s(), everything=True))
        return self._orders

    def _remember(self, epoch: int, orders: list[WorkOrder]) -> None:
        self._orders_epoch = epoch
        is_dry_run = self._settings.is_dry_run
        self._orders = {
            f"{epoch}/{index}": replace(order, is_dry_run=is_dry_run)
            for index, order in enumerate(orders)
        }
        self._ordered_s = self._now_s()
        self._has_begun = True
        self._status.epoch = epoch
        self._doing("moving")

    async def _what_is_left(self) -> list[WorkOrder]:
        dispatcher, is_dry_run = self._dispatcher, self._settings.is_dry_run
        await self._searched.wait()
        while True:
            control, now_s = self._control(), self._now_s()
            if control.is_stopping:
                return []
            if not self._has_begun and (is_dry_run or not control.is_paused):
                return dispatcher.orders({}, now_s, everything=True)
            if is_dry_run:
                return []
            if self._has_begun and not control.is_paused and not dispatcher.has_work(now_s):
                return []
            if not control.is_paused and not dispatcher.pause_s(now_s):
                return dispatcher.orders({}, now_s)
            self._doing("paused" if control.is_paused else "waiting")
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _work_to_do(self) -> list[WorkOrder]:
        while True:
            control = self._control()
            if control.is_stopping or self._is_replaced():
                return []
            await self._open()
            if control.is_paused:
                await self._silence()
                self._doing("paused")
                await asyncio.sleep(LOOK_INTERVAL_S)
            elif self._dispatcher.pause_s(self._now_s()) > 0:
                self._doing("waiting")
                await asyncio.sleep(LOOK_INTERVAL_S)
            elif self._dispatcher.is_primary_unreachable:
                await self._silence()
                self._doing("primary away")
                await self._probe_if_due()
            elif orders := self._dispatcher.orders(await self._rung(), self._now_s()):
                return orders

    async def _rung(self) -> dict[str, ReceivedMessage | None]:
        if self._watcher is None:
            self._watcher = self._new_watcher()
            if self._was_deaf:
                self._dispatcher.note_sign(self._now_s())
        now_s = self._now_s()
        # Whatever waits in the others is received by their tasks.
        busy = self._dispatcher.busy(now_s)
        self._watcher.start_polling(queue for queue in self._dispatcher.queues if queue not in busy)
        due_s = self._dispatcher.next_due_s(now_s)
        wait_s = LOOK_INTERVAL_S if due_s is None else min(LOOK_INTERVAL_S, due_s - now_s)
        if wait_s > 0:
            self._doing("waiting")
        rung = await self._watcher.ready(max(0.0, wait_s))
        # The driver's own way to find a message means nothing to a task.
        return {
            path: None if message is None else message._replace(handle=None)
            for path, message in rung.items()
        }

    def _new_watcher(self) -> LongPollWatcher:
        return LongPollWatcher(
            self._secondary,
            self._dispatcher.queues,
            poll_s=self._settings.poll_s,
            backoff=self._settings.backoff,
            on_fault=self._note_fault,
            clock=self._clock,
        )

    async def _silence(self) -> None:
        bell, self._watcher = self._watcher, None
        if bell is not None:
            self._was_deaf = True
            await bell.close()

    def _others_wait(self) -> bool:
        """Whether queues that are not in this batch have rung for long enough (rule 4)."""
        is_late = self._now_s() - self._ordered_s >= OTHERS_WAIT_S
        return is_late and self._watcher is not None and self._watcher.has_rung

    # -- queues that are idle -------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(STATUS_INTERVAL_S)
            if self._status.doing == "waiting":
                for queue in self._dispatcher.queues_to_scan(self._now_s()):
                    try:
                        await self._look_through(queue)
                    except Exception:
                        # A defect of ours: what waits there is looked for again, as the others.
                        _log.exception("the queue %r could not be looked through", queue)
                        self._dispatcher.scan_finished(queue, self._now_s(), is_whole=True)

    async def _look_through(self, queue: str) -> None:
        # What moves messages is not needed before the first batch.
        from twinbus.mover.backlog_scan import find_deferred, pages

        receiver, is_whole = self._secondary.receiver(queue), False
        rules = self._settings.mover_options(self._primary.address).rules
        with suppress(ServiceError):  # Its bell tells what is wrong with it.
            async for page in pages(receiver, 1, timeout_s=PEEK_TIMEOUT_S):
                now_ms = self._clock.now().wall_ms
                self._dispatcher.defer(queue, find_deferred(page, rules, now_ms=now_ms))
            is_whole = True
        with suppress(ServiceError):
            await receiver.close()
        self._dispatcher.scan_finished(queue, self._now_s(), is_whole=is_whole)

    # -- more queues (Y9) -----------------------------------------------------------------

    async def _keep_searching(self) -> None:
        from twinbus.mover.backlog_search import BacklogSearch

        dispatcher = self._dispatcher
        try:
            # Both namespaces may be closed and opened again meanwhile.
            self._search = BacklogSearch(
                lambda path: self._secondary.receiver(path),
                self._settings.primary_name,
                lambda prefix: self._management.list_queues(prefix),
            )
            for queue in await self._search.find_holding(dispatcher.queues):
                self._add(queue)
        except Exception:
            _log.exception("no more backlog queues could be searched for")
            return
        finally:
            self._searched.set()
        await self._search.keep_finding(lambda: dispatcher.queues, self._add)

    def _add(self, queue: str) -> None:
        self._dispatcher.add(queue)
        if self._watcher is not None:
            self._watcher.add(queue)

    # -- a primary that is away -----------------------------------------------------------

    async def _probe_if_due(self) -> None:
        due_s = self._dispatcher.next_due_s(self._now_s())
        if due_s is not None and due_s > self._now_s():
            await asyncio.sleep(LOOK_INTERVAL_S)
            return
        from twinbus.mover.destination_senders import DestinationSenders
        from twinbus.mover.primary_probe import PROBE_PATH, any_destination_reachable

        # Those that closed may all be silent by themselves; that there is no such entity is an
        # answer, too.
        paths = [*self._dispatcher.probe_paths(), PROBE_PATH]
        senders = DestinationSenders(self._primary)
        try:
            is_answered = await any_destination_reachable(senders, paths, timeout_s=KNOCK_TIMEOUT_S)
        finally:
            await senders.close()
        self._dispatcher.probe_finished(is_answered, self._now_s())

    # -- what tasks tell ------------------------------------------------------------------

    async def _handle_report(self, kind: str, facts: dict[str, Any]) -> dict[str, Any]:
        if kind == "progress":
            self._counts.update({str(name): int(n) for name, n in facts["counts"].items()})
            self._status.moved_bytes += int(facts["moved_bytes"])
            if facts["counts"]:
                self._dispatcher.note_sign(self._now_s())
            if self._search is not None and facts["counts"].get(ReceiptOutcome.MOVED.value):
                self._search.note_moved()
            for queue, owner, count in facts.get("foreign", ()):
                self._met_foreign(str(queue), str(owner), int(count))
            control = self._control()
            # A look moves nothing that a pause could keep.
            is_paused = control.is_paused and not self._settings.is_dry_run
            is_stopping = is_paused or control.is_stopping
            return {"stop": is_stopping, "enough": self._others_wait()}
        if kind not in ("report", "aside"):
            raise ValueError(f"a desk has no {kind!r:.40}")
        if (order := self._orders.get(facts["order"])) is not None:
            report = report_from_json(facts["report"])
            if kind == "report":
                self._take(order, report)
            else:
                for queue in report.deferred.keys() & set(order.queues):
                    self._dispatcher.defer(queue, report.deferred[queue])
        return {}

    def _met_foreign(self, queue: str, owner: str, count: int) -> None:
        known = self._status.foreign
        if owner not in known:
            _log.warning("messages of another pair are in %s and stay there: %s", queue, owner)
        known[owner] = known.get(owner, 0) + count
        self._dispatcher.note_foreign(queue, count)

    def _take(self, order: WorkOrder, report: WorkReport) -> None:
        self._dispatcher.apply_report(order, report, self._now_s())
        for queue in order.queues:
            self._status.faults.pop(queue, None)
        self._status.faults |= report.faults
        control = self._control()
        is_quiet = (
            control.is_paused or control.is_stopping or self._dispatcher.is_primary_unreachable
        )
        if self._watcher is not None and not is_quiet:
            # Others of its batch may go on for long: these ring again already.
            busy = self._dispatcher.busy(self._now_s())
            self._watcher.start_polling(queue for queue in order.queues if queue not in busy)

    # -- what people tell and are told ----------------------------------------------------

    def _control(self) -> Control:
        if self._state is None:
            return Control()
        control = self._state.control()
        if self._is_replaced():
            return Control(is_stopping=True)
        self._dispatcher.set_rate(control.rate_per_s or self._settings.rate_per_s, self._now_s())
        return control

    def _is_replaced(self) -> bool:
        """Whether another run has the state directory now (rule 6)."""
        ours = self._settings.run
        return bool(ours and self._state and self._state.control().run not in ("", ours))

    def _note_fault(self, queue: str, error: ServiceError | None) -> None:
        self._unlistened.discard(queue)
        # What came meanwhile may have been received by others.
        self._dispatcher.note_sign(self._now_s())
        if error is None:
            self._status.faults.pop(queue, None)
        else:
            self._status.faults[queue] = str(error)
        if isinstance(error, AccessRefused):
            self._unlistened.add(queue)

    def _doing(self, doing: str) -> None:
        is_new, self._status.doing = doing != self._status.doing, doing
        # Somebody waits for these two.
        if is_new and doing in ("paused", "stopped") and self._state is not None:
            self._tell(self._state)

    async def _keep_telling(self, state: StateDir) -> None:
        while True:
            self._tell(state)
            await asyncio.sleep(STATUS_INTERVAL_S)

    def _tell(self, state: StateDir) -> None:
        if self._is_replaced():
            return
        status = self._status
        status.counts = dict(self._counts)
        status.set_aside = self._dispatcher.deferred_by_destination()
        unsent = [
            note.path for note in self._dispatcher.open_circuits(self._now_s()) if note.is_refused
        ]
        status.refused = dict.fromkeys(unsent, SEND) | dict.fromkeys(self._unlistened, LISTEN)
        if state.trouble:
            status.faults[CONTROL_FAULT] = state.trouble
        else:
            status.faults.pop(CONTROL_FAULT, None)
        self._watch_stall()
        status.updated_ms = self._clock.now().wall_ms
        try:
            state.set_status(status)
            self._is_untold = False
        except OSError as error:
            # Messages come home without it; the next try may succeed.
            if not self._is_untold:
                _log.warning("the status cannot be written: %s", error)
            self._is_untold = True

    def _watch_stall(self) -> None:
        dispatcher, now_s = self._dispatcher, self._now_s()
        waiting = dispatcher.deferred_count
        faults = self._status.faults
        unread = {queue: faults[queue] for queue in faults if queue != CONTROL_FAULT}
        is_paused = self._status.doing in ("paused", "stopped") or dispatcher.pause_s(now_s) > 0
        has_begun = self._stall.update(
            # Nobody knows what is in a queue that cannot be read.
            waiting=0 if is_paused else waiting + dispatcher.unfinished_count + len(unread),
            moved=self._counts[ReceiptOutcome.MOVED.value],
            now_s=now_s,
        )
        if not self._stall.is_stalled:
            self._status.stalled = ""
        elif has_begun or self._status.stalled:
            unavailable = (note.path for note in dispatcher.open_circuits(now_s))
            self._status.stalled = stall_reason(
                waiting,
                unavailable=unavailable,
                unread=unread,
                is_primary_unreachable=dispatcher.is_primary_unreachable,
            )
            if has_begun:
                _log.warning("%s", self._status.stalled)

    def _now_s(self) -> float:
        return self._clock.now().monotonic_s
