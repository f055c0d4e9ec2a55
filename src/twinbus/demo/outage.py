"""The demo: an outage from beginning to end.

The acts of the demo, one after the other.

    calm --kill -9--> outage --restart--> return --resume--> home --> the end

One run of the demo, from its plan to its result.

Rule 1: whatever happens, no process outlives the story.
Rule 2: an act that does not come to its end within its time is over; the books say what is missing.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext, suppress
from pathlib import Path
from typing import Final

from twinbus.demo.application import FAILOVER_INTERVAL_S, PING_INTERVAL_S, Application
from twinbus.demo.final_report import Closing, FinalReport
from twinbus.demo.output_files import Files, opened_files
from twinbus.demo.processes import DemoBrokers, SyphonProcess
from twinbus.demo.scenario import (
    DESTINATIONS,
    QUEUES,
    SUBSCRIPTIONS,
    TOPIC,
    DeliveryCheck,
    DemoScenario,
    Result,
)
from twinbus.demo.terminal import Screen, View, screen_here
from twinbus.errors import TwinbusError
from twinbus.spark.runtime.java import find_java
from twinbus.spark.runtime.session import require_pyspark

__all__ = ["OutageDemo", "run_demo"]

LOOK_S: Final = 0.1
# A busy machine may take this long for what usually takes a second.
RESTORE_S_MAX: Final = 60.0
HOME_S_MAX: Final = 120.0
ARRIVE_S_MAX: Final = 60.0
READY_S_MAX: Final = 180.0
FAREWELL_S: Final = 1.0


class OutageDemo:
    """One run, in a directory of its own."""

    def __init__(self, plan: DemoScenario, files: Files, screen: Screen) -> None:
        self._plan = plan
        self._screen = screen
        self._files = files
        self._books = DeliveryCheck(DESTINATIONS)
        self._site = DemoBrokers(files)
        self._syphon = SyphonProcess(files)
        self._closing = Closing(files)
        self._application: Application

    async def run(self) -> Result:
        """Play it; what came of it."""
        async with AsyncExitStack() as stack:
            stack.callback(self._site.close)
            await self._open()
            stack.push_async_callback(self._closing.close)
            stack.push_async_callback(self._syphon.close)
            await self._syphon.start(self._site.addresses)
            async with Application.paired(
                self._plan, self._books, self._site.addresses, self._files
            ) as self._application:
                await self._calm()
                failover_s = await self._outage()
                await self._return()
                drain_s = await self._home()
                await self._last_messages()
            drained = await self._syphon.end()
            self._files.note("counters.json", await self._site.counters())
            await self._site.stop()
            self._say("the logs are complete: Spark works out what the outage cost")
            closed = await self._closing.answer()
            self._say(closed.verdict)
        return self._result(closed, failover_s, drained, drain_s)

    def _result(
        self, closed: FinalReport, failover_s: float, drained: int, drain_s: float
    ) -> Result:
        books = self._books
        return Result(
            sent=books.sent,
            delivered=books.delivered,
            lost=tuple(books.lost),
            duplicates=books.duplicates,
            unexpected=tuple(books.unexpected),
            failed_sends=books.failed_sends,
            failover_seconds=failover_s,
            drained=drained,
            drain_messages_per_second=drained / drain_s,
            operations=closed.operations,
            cost=closed.cost,
            currency=closed.currency,
            does_close=closed.does_close,
            verdict=closed.verdict,
        )

    # -- the acts -----------------------------------------------------------------------------

    async def _open(self) -> None:
        began_s = time.monotonic()
        self._say("two brokers start, each a process of its own")
        await self._site.start()
        primary, secondary = self._site.brokers
        self._say(
            f"they run: {primary.namespace} (process {primary.pid}) and "
            f"{secondary.namespace} (process {secondary.pid}), after "
            f"{time.monotonic() - began_s:.1f} s"
        )

    async def _calm(self) -> None:
        plan, (primary, secondary) = self._plan, self._site.brokers
        self._say(
            f"{primary.namespace} is paired with {secondary.namespace}: failover interval "
            f"{FAILOVER_INTERVAL_S:g} s, ping {PING_INTERVAL_S:g} s"
        )
        self._application.start()
        self._say(
            f"an application sends {plan.rate_per_s:g} messages a second to {', '.join(QUEUES)} "
            f"and the topic {TOPIC} ({', '.join(SUBSCRIPTIONS)}), and receives them"
        )
        self._say("the syphon starts on Spark, and is paused as long as nothing has to come home")
        await self._watch(plan.kill_after_s)

    async def _outage(self) -> float:
        """The seconds until every entity had a message safe in the backlog."""
        application, primary = self._application, self._site.primary
        killed_s, pid = time.monotonic(), primary.pid
        await asyncio.to_thread(primary.kill)
        self._say(f"kill -9 {pid}: {primary.namespace} is gone, the sends go on")
        await self._until(lambda: application.failover_s(killed_s) is not None, self._plan.outage_s)
        failover_s = application.failover_s(killed_s)
        if failover_s is None:
            raise TwinbusError(
                "not every entity was diverted during the outage",
                hint="Give it longer with --outage, or send faster with --rate",
            )
        self._say(
            f"all {len(DESTINATIONS)} entities are diverted to {self._site.secondary.namespace}, "
            f"{failover_s:.2f} s after the kill; {self._books.failed_sends} sends failed"
        )
        ends_s = killed_s + self._plan.outage_s
        await self._until(lambda: self._syphon.is_ready, ends_s - time.monotonic())
        # After the syphon's own start, so that two do not slow each other down.
        await self._closing.start()
        await self._watch(ends_s - time.monotonic())
        return failover_s

    async def _return(self) -> None:
        application = self._application
        began_s = time.monotonic()
        await asyncio.to_thread(self._site.primary.restart)
        self._say(
            f"{self._site.primary.namespace} is back on the same data, after "
            f"{time.monotonic() - began_s:.1f} s to start"
        )
        await self._until(lambda: not application.diverted, RESTORE_S_MAX)
        self._say(
            f"pings have found it: sends go home again; {application.detoured:,} messages wait in "
            f"the backlog of {self._site.secondary.namespace}"
        )

    async def _home(self) -> float:
        """The seconds that the syphon took."""
        application, syphon = self._application, self._syphon
        if not syphon.is_ready:
            self._say("the syphon's Spark is not up yet")
            await self._until(lambda: syphon.is_ready, READY_S_MAX)
        if not syphon.is_ready:
            raise TwinbusError(f"the syphon's Spark was not up within {READY_S_MAX:.0f} s")
        syphon.resume()
        began_s = time.monotonic()
        self._say("the syphon is told to resume")
        await self._until(lambda: syphon.moved >= application.detoured, HOME_S_MAX)
        drain_s = time.monotonic() - began_s
        self._say(f"{syphon.moved:,} messages are home, {drain_s:.1f} s later")
        await self._until(lambda: not self._books.diverted_missing, ARRIVE_S_MAX)
        return drain_s

    async def _last_messages(self) -> None:
        await self._watch(FAREWELL_S)
        await self._application.stop_sending()
        await self._until(lambda: not self._books.lost, ARRIVE_S_MAX)
        self._say("the senders have stopped; receivers take what is left")
        ends_s = time.monotonic() + ARRIVE_S_MAX
        while await self._site.waiting() and time.monotonic() < ends_s:
            await self._watch(LOOK_S)
        # The last picture stays on the screen: its figures are those of the books.
        self._screen.show(self._view())

    # -- parts --------------------------------------------------------------------------------

    def _say(self, sentence: str) -> None:
        self._screen.say(sentence)

    async def _watch(self, seconds: float) -> None:
        """Let time pass."""
        await self._until(lambda: False, seconds)

    async def _until(self, is_so: Callable[[], object], seconds: float) -> None:
        """Wait for something, at most so long."""
        ends_s = time.monotonic() + seconds
        while not is_so() and time.monotonic() < ends_s:
            self._application.check()
            self._syphon.check()
            self._screen.show(self._view())
            await asyncio.sleep(LOOK_S)

    def _view(self) -> View:
        application, books = self._application, self._books
        return View(
            is_primary_up=self._site.primary.is_alive,
            sent=books.sent,
            failed_sends=books.failed_sends,
            arrived=books.copies,
            diverted=tuple(application.diverted),
            detoured=application.detoured,
            moved=self._syphon.moved,
            pings=application.events["ping-sent"],
            syphon=self._syphon.status.doing,
        )


def run_demo(plan: DemoScenario, keep: Path | None, screen: Screen | None = None) -> Result:
    """Play the story; ``keep`` is a new directory for everything that it writes."""
    # Said now, and not in the middle of the outage.
    require_pyspark()
    find_java()
    with opened_files(keep) as files:
        with screen_here() if screen is None else nullcontext(screen) as shown:
            result = asyncio.run(_played(OutageDemo(plan, files, shown)))
        files.note("result.json", result.to_json())
    return result


async def _played(story: OutageDemo) -> Result:
    task = asyncio.ensure_future(story.run())
    with suppress(NotImplementedError, AttributeError):  # Windows: Ctrl-C alone.
        # A terminal that is closed, too: nothing is left behind. Ctrl-C by name, because who was
        # started in the background of a script ignores it otherwise, and the brokers do not.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise TwinbusError("the demo was stopped before its end") from None
