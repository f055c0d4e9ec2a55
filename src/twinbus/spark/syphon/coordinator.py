"""The syphon's coordinator, in the process in which Spark runs the source on the driver.

    a message is received, a destination is due --> work orders --> tasks --reports--> dispatcher
    control.json --> pause, stop, rate                                '--progress--> status.json

Rule 1: while there is nothing to do there is no batch: next_epoch() waits.
        When it is to stop it returns the old epoch soon, again and again: Spark can lose the
        interrupt that ends a wait (SPARK-57963), and would then wait for ever.
Rule 2: with ``once`` it never waits: it returns the old epoch when nothing is left to do.
Rule 3: orders are kept for the epoch they were planned for; an epoch without orders (a replay
        after a crash) gets orders for everything, which is always safe.
Rule 4: a queue that gets messages during a batch waits for its end some seconds only: after that
        the tasks of the batch get the answer that they have enough.
Rule 5: while there are signs of diverted messages an idle queue is scanned now and then for
        messages that another receiver has deferred: a long poll does not return those. A poll
        that failed, and a time without polls, are signs as well.
        Backlog queues that were not known are searched for now and then, too (Y9).
Rule 6: when another run uses the state directory, this one ends and writes no more status: its own
        program has ended.
Rule 7: the state "stopped" comes last: Spark may kill this process at any time after it. Links are
        closed and metering is written before.
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

CONTROL_INTERVAL_S: Final = 0.2
"""How often control.json is checked while nothing happens."""
STATUS_INTERVAL_S: Final = 0.5
OTHERS_WAIT_S: Final = 2.0
"""How long a queue that gets messages during a batch may have to wait for its end; much shorter
batches would consist of start and end."""
PEEK_TIMEOUT_S: Final = 20.0
PROBE_TIMEOUT_S: Final = 10.0
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
        self._has_status_failed = False
        self._stack = AsyncExitStack()
        self._namespaces: AsyncExitStack | None = None
        self._watcher: LongPollWatcher | None = None
        self._has_paused_polls = False
        """Whether polls were stopped since the start."""
        self._search: BacklogSearch | None = None
        self._searched = asyncio.Event()
        """Set once the first search has ended, with or without a result."""
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
        scanning = asyncio.create_task(self._keep_scanning())
        stack.callback(scanning.cancel)
        searching = asyncio.create_task(self._keep_searching())
        stack.callback(searching.cancel)
        if self._state is not None:
            writing = asyncio.create_task(self._keep_writing_status(self._state))
            stack.callback(writing.cancel)

    async def close(self) -> None:
        await self._close_namespaces()
        await self._stack.aclose()
        self._set_doing("stopped")

    async def _open(self) -> None:
        """Open both namespaces, also after a stop that was revoked."""
        if self._namespaces is None:
            self._namespaces = opened = AsyncExitStack()
            settings = self._settings
            secondary = await opened.enter_async_context(settings.open_secondary())
            primary = await opened.enter_async_context(settings.open_primary())
            self._secondary, self._primary = secondary.driver, primary.driver
            self._management = secondary.management

    async def _close_namespaces(self) -> None:
        """Close both namespaces, which writes their metering (rule 7)."""
        await self._stop_polling()
        opened, self._namespaces = self._namespaces, None
        if opened is not None:
            await opened.aclose()

    # -- epochs ---------------------------------------------------------------------------

    async def next_epoch(self, epoch: int, *, once: bool) -> int:
        """The epoch after ``epoch``, as soon as there is something to do in it."""
        orders = await (self._remaining_work() if once else self._wait_for_work())
        if self._is_replaced():
            raise ConfigurationError(
                f"Another syphon uses the state directory {self._settings.state_dir!r} now",
                hint="Start each syphon with its own directory, with --state",
            )
        if not orders:
            # Spark ends the query now, and this process perhaps before its next statement.
            await self._close_namespaces()
            self._set_doing("stopped")
            if not once:
                await asyncio.sleep(CONTROL_INTERVAL_S)
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
        self._set_doing("moving")

    async def _remaining_work(self) -> list[WorkOrder]:
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
            self._set_doing("paused" if control.is_paused else "waiting")
            await asyncio.sleep(CONTROL_INTERVAL_S)

    async def _wait_for_work(self) -> list[WorkOrder]:
        while True:
            control = self._control()
            if control.is_stopping or self._is_replaced():
                return []
            await self._open()
            if control.is_paused:
                await self._stop_polling()
                self._set_doing("paused")
                await asyncio.sleep(CONTROL_INTERVAL_S)
            elif self._dispatcher.pause_s(self._now_s()) > 0:
                self._set_doing("waiting")
                await asyncio.sleep(CONTROL_INTERVAL_S)
            elif self._dispatcher.is_primary_unreachable:
                await self._stop_polling()
                self._set_doing("primary unreachable")
                await self._probe_if_due()
            elif orders := self._dispatcher.orders(await self._poll(), self._now_s()):
                return orders

    async def _poll(self) -> dict[str, ReceivedMessage | None]:
        if self._watcher is None:
            self._watcher = self._new_watcher()
            if self._has_paused_polls:
                self._dispatcher.note_sign(self._now_s())
        now_s = self._now_s()
        # Messages of the others are received by their tasks.
        busy = self._dispatcher.busy(now_s)
        self._watcher.start_polling(queue for queue in self._dispatcher.queues if queue not in busy)
        due_s = self._dispatcher.next_due_s(now_s)
        wait_s = CONTROL_INTERVAL_S if due_s is None else min(CONTROL_INTERVAL_S, due_s - now_s)
        if wait_s > 0:
            self._set_doing("waiting")
        ready = await self._watcher.ready(max(0.0, wait_s))
        # A task cannot use the handle, which belongs to this process.
        return {
            path: None if message is None else message._replace(handle=None)
            for path, message in ready.items()
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

    async def _stop_polling(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            self._has_paused_polls = True
            await watcher.close()

    def _others_wait(self) -> bool:
        """Whether queues that are not in this batch have waited long enough (rule 4)."""
        is_late = self._now_s() - self._ordered_s >= OTHERS_WAIT_S
        return is_late and self._watcher is not None and self._watcher.has_messages

    # -- idle queues ----------------------------------------------------------------------

    async def _keep_scanning(self) -> None:
        while True:
            await asyncio.sleep(STATUS_INTERVAL_S)
            if self._status.doing == "waiting":
                for queue in self._dispatcher.queues_to_scan(self._now_s()):
                    try:
                        await self._scan(queue)
                    except Exception:
                        # A defect of ours: the queue is scanned again later, like the others.
                        _log.exception("Backlog queue %r could not be scanned", queue)
                        self._dispatcher.scan_finished(queue, self._now_s(), is_whole=True)

    async def _scan(self, queue: str) -> None:
        # The mover is not needed before the first batch.
        from twinbus.mover.backlog_scan import find_deferred, pages

        receiver, is_whole = self._secondary.receiver(queue), False
        rules = self._settings.mover_options(self._primary.address).rules
        with suppress(ServiceError):  # The long poll of the queue reports the error.
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
            _log.exception("The search for more backlog queues failed")
            return
        finally:
            self._searched.set()
        await self._search.keep_finding(lambda: dispatcher.queues, self._add)

    def _add(self, queue: str) -> None:
        self._dispatcher.add(queue)
        if self._watcher is not None:
            self._watcher.add(queue)

    # -- an unreachable primary -----------------------------------------------------------

    async def _probe_if_due(self) -> None:
        due_s = self._dispatcher.next_due_s(self._now_s())
        if due_s is not None and due_s > self._now_s():
            await asyncio.sleep(CONTROL_INTERVAL_S)
            return
        from twinbus.mover.destination_senders import DestinationSenders
        from twinbus.mover.primary_probe import PROBE_PATH, any_destination_reachable

        # All destinations that failed may be unresponsive for reasons of their own; "entity not
        # found" is an answer as well.
        paths = [*self._dispatcher.probe_paths(), PROBE_PATH]
        senders = DestinationSenders(self._primary)
        try:
            is_answered = await any_destination_reachable(senders, paths, timeout_s=PROBE_TIMEOUT_S)
        finally:
            await senders.close()
        self._dispatcher.probe_finished(is_answered, self._now_s())

    # -- reports of tasks -----------------------------------------------------------------

    async def _handle_report(self, kind: str, facts: dict[str, Any]) -> dict[str, Any]:
        if kind == "progress":
            self._counts.update({str(name): int(n) for name, n in facts["counts"].items()})
            self._status.moved_bytes += int(facts["moved_bytes"])
            if facts["counts"]:
                self._dispatcher.note_sign(self._now_s())
            if self._search is not None and facts["counts"].get(ReceiptOutcome.MOVED.value):
                self._search.note_moved()
            for queue, owner, count in facts.get("foreign", ()):
                self._note_foreign(str(queue), str(owner), int(count))
            control = self._control()
            # A dry run moves nothing, so a pause does not concern it.
            is_paused = control.is_paused and not self._settings.is_dry_run
            is_stopping = is_paused or control.is_stopping
            return {"stop": is_stopping, "enough": self._others_wait()}
        if kind not in ("report", "aside"):
            raise ValueError(f"Unknown report {kind!r:.40}")
        if (order := self._orders.get(facts["order"])) is not None:
            report = report_from_json(facts["report"])
            if kind == "report":
                self._apply_report(order, report)
            else:
                for queue in report.deferred.keys() & set(order.queues):
                    self._dispatcher.defer(queue, report.deferred[queue])
        return {}

    def _note_foreign(self, queue: str, owner: str, count: int) -> None:
        known = self._status.foreign
        if owner not in known:
            _log.warning(
                "Backlog queue %s contains messages of another pair, which are not moved: %s",
                queue,
                owner,
            )
        known[owner] = known.get(owner, 0) + count
        self._dispatcher.note_foreign(queue, count)

    def _apply_report(self, order: WorkOrder, report: WorkReport) -> None:
        self._dispatcher.apply_report(order, report, self._now_s())
        for queue in order.queues:
            self._status.faults.pop(queue, None)
        self._status.faults |= report.faults
        control = self._control()
        is_quiet = (
            control.is_paused or control.is_stopping or self._dispatcher.is_primary_unreachable
        )
        if self._watcher is not None and not is_quiet:
            # Other orders of the batch may take long: these queues are polled again already.
            busy = self._dispatcher.busy(self._now_s())
            self._watcher.start_polling(queue for queue in order.queues if queue not in busy)

    # -- control and status ---------------------------------------------------------------

    def _control(self) -> Control:
        if self._state is None:
            return Control()
        control = self._state.control()
        if self._is_replaced():
            return Control(is_stopping=True)
        self._dispatcher.set_rate(control.rate_per_s or self._settings.rate_per_s, self._now_s())
        return control

    def _is_replaced(self) -> bool:
        """Whether another run uses the state directory now (rule 6)."""
        ours = self._settings.run
        return bool(ours and self._state and self._state.control().run not in ("", ours))

    def _note_fault(self, queue: str, error: ServiceError | None) -> None:
        self._unlistened.discard(queue)
        # Messages that arrived meanwhile may have been received by another process.
        self._dispatcher.note_sign(self._now_s())
        if error is None:
            self._status.faults.pop(queue, None)
        else:
            self._status.faults[queue] = str(error)
        if isinstance(error, AccessRefused):
            self._unlistened.add(queue)

    def _set_doing(self, doing: str) -> None:
        is_new, self._status.doing = doing != self._status.doing, doing
        # Callers of pause() and stop() wait for these two.
        if is_new and doing in ("paused", "stopped") and self._state is not None:
            self._write_status(self._state)

    async def _keep_writing_status(self, state: StateDir) -> None:
        while True:
            self._write_status(state)
            await asyncio.sleep(STATUS_INTERVAL_S)

    def _write_status(self, state: StateDir) -> None:
        if self._is_replaced():
            return
        status = self._status
        status.counts = dict(self._counts)
        status.deferred_now = self._dispatcher.deferred_by_destination()
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
            self._has_status_failed = False
        except OSError as error:
            # Messages are moved without it; the next attempt may succeed.
            if not self._has_status_failed:
                _log.warning("The syphon's status cannot be written: %s", error)
            self._has_status_failed = True

    def _watch_stall(self) -> None:
        dispatcher, now_s = self._dispatcher, self._now_s()
        waiting = dispatcher.deferred_count
        faults = self._status.faults
        unread = {queue: faults[queue] for queue in faults if queue != CONTROL_FAULT}
        is_paused = self._status.doing in ("paused", "stopped") or dispatcher.pause_s(now_s) > 0
        has_begun = self._stall.update(
            # A queue that cannot be read may contain messages.
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
