"""One run of the demo: a complete outage, step by step.

    normal --kill -9--> outage --restart--> restore --resume--> drain --> final report

Rule 1: no process runs after the demo has ended, also after an error.
Rule 2: a step that does not end in time is ended; the delivery check reports what is missing.
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
from twinbus.demo.final_report import FinalReport, FinalReportProcess
from twinbus.demo.output_files import Files, open_files
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
from twinbus.demo.terminal import Screen, View, open_screen
from twinbus.errors import TwinbusError
from twinbus.spark.runtime.java import find_java
from twinbus.spark.runtime.session import require_pyspark

__all__ = ["OutageDemo", "run_demo"]

POLL_S: Final = 0.1
# Limits for a busy machine; each step usually takes a second.
RESTORE_S_MAX: Final = 60.0
DRAIN_S_MAX: Final = 120.0
ARRIVE_S_MAX: Final = 60.0
READY_S_MAX: Final = 180.0
LAST_SENDS_S: Final = 1.0


class OutageDemo:
    """One run, in its own directory."""

    def __init__(self, scenario: DemoScenario, files: Files, screen: Screen) -> None:
        self._scenario = scenario
        self._screen = screen
        self._files = files
        self._deliveries = DeliveryCheck(DESTINATIONS)
        self._brokers = DemoBrokers(files)
        self._syphon = SyphonProcess(files)
        self._final_report = FinalReportProcess(files)
        self._application: Application

    async def run(self) -> Result:
        """Run all steps; returns the result."""
        async with AsyncExitStack() as stack:
            stack.callback(self._brokers.close)
            await self._start_brokers()
            stack.push_async_callback(self._final_report.close)
            stack.push_async_callback(self._syphon.close)
            await self._syphon.start(self._brokers.addresses)
            async with Application.paired(
                self._scenario, self._deliveries, self._brokers.addresses, self._files
            ) as self._application:
                await self._send_normally()
                failover_s = await self._outage()
                await self._restore()
                drain_s = await self._drain()
                await self._last_messages()
            drained = await self._syphon.end()
            self._files.write_json("counters.json", await self._brokers.counters())
            await self._brokers.stop()
            self._print("The logs are complete; Spark computes the cost of the outage")
            final = await self._final_report.answer()
            self._print(final.verdict)
        return self._result(final, failover_s, drained, drain_s)

    def _result(
        self, final: FinalReport, failover_s: float, drained: int, drain_s: float
    ) -> Result:
        deliveries = self._deliveries
        return Result(
            sent=deliveries.sent,
            delivered=deliveries.delivered,
            lost=tuple(deliveries.lost),
            duplicates=deliveries.duplicates,
            unexpected=tuple(deliveries.unexpected),
            failed_sends=deliveries.failed_sends,
            failover_seconds=failover_s,
            drained=drained,
            drain_messages_per_second=drained / drain_s,
            operations=final.operations,
            cost=final.cost,
            currency=final.currency,
            is_reconciled=final.is_reconciled,
            verdict=final.verdict,
        )

    # -- steps --------------------------------------------------------------------------------

    async def _start_brokers(self) -> None:
        began_s = time.monotonic()
        self._print("Starting two brokers, each in its own process")
        await self._brokers.start()
        primary, secondary = self._brokers.both
        self._print(
            f"Brokers ready after {time.monotonic() - began_s:.1f} s: {primary.namespace} "
            f"(process {primary.pid}) and {secondary.namespace} (process {secondary.pid})"
        )

    async def _send_normally(self) -> None:
        scenario, (primary, secondary) = self._scenario, self._brokers.both
        self._print(
            f"{primary.namespace} is paired with {secondary.namespace}: failover interval "
            f"{FAILOVER_INTERVAL_S:g} s, ping interval {PING_INTERVAL_S:g} s"
        )
        self._application.start()
        self._print(
            f"The application sends {scenario.rate_per_s:g} messages per second to "
            f"{', '.join(QUEUES)} and the topic {TOPIC} ({', '.join(SUBSCRIPTIONS)}), and receives "
            "them"
        )
        self._print("The syphon starts on Spark, and is paused while the backlog is empty")
        await self._watch(scenario.kill_after_s)

    async def _outage(self) -> float:
        """Seconds until the backlog had accepted a message of every entity."""
        application, primary = self._application, self._brokers.primary
        killed_s, pid = time.monotonic(), primary.pid
        await asyncio.to_thread(primary.kill)
        self._print(f"kill -9 {pid}: {primary.namespace} is down, sends continue")
        await self._until(
            lambda: application.failover_s(killed_s) is not None, self._scenario.outage_s
        )
        failover_s = application.failover_s(killed_s)
        if failover_s is None:
            raise TwinbusError(
                "Not every entity was diverted during the outage",
                hint="Use a longer --outage or a higher --rate",
            )
        self._print(
            f"All {len(DESTINATIONS)} entities are diverted to "
            f"{self._brokers.secondary.namespace}, {failover_s:.2f} s after the kill; "
            f"{self._deliveries.failed_sends} sends failed"
        )
        ends_s = killed_s + self._scenario.outage_s
        await self._until(lambda: self._syphon.is_ready, ends_s - time.monotonic())
        # After the start of the syphon, so that the two do not slow each other down.
        await self._final_report.start()
        await self._watch(ends_s - time.monotonic())
        return failover_s

    async def _restore(self) -> None:
        application = self._application
        began_s = time.monotonic()
        await asyncio.to_thread(self._brokers.primary.restart)
        self._print(
            f"{self._brokers.primary.namespace} runs again on the same data, after a start-up of "
            f"{time.monotonic() - began_s:.1f} s"
        )
        await self._until(lambda: not application.diverted, RESTORE_S_MAX)
        self._print(
            f"Pings have restored all entities; {application.messages_diverted:,} messages wait in "
            f"the backlog of {self._brokers.secondary.namespace}"
        )

    async def _drain(self) -> float:
        """Seconds until the syphon had moved the backlog."""
        application, syphon = self._application, self._syphon
        if not syphon.is_ready:
            self._print("Waiting for Spark to start the syphon")
            await self._until(lambda: syphon.is_ready, READY_S_MAX)
        if not syphon.is_ready:
            raise TwinbusError(f"Spark did not start the syphon within {READY_S_MAX:.0f} s")
        syphon.resume()
        began_s = time.monotonic()
        self._print("The syphon resumes")
        await self._until(lambda: syphon.moved >= application.messages_diverted, DRAIN_S_MAX)
        drain_s = time.monotonic() - began_s
        self._print(f"The syphon has moved {syphon.moved:,} messages in {drain_s:.1f} s")
        await self._until(lambda: not self._deliveries.diverted_missing, ARRIVE_S_MAX)
        return drain_s

    async def _last_messages(self) -> None:
        await self._watch(LAST_SENDS_S)
        await self._application.stop_sending()
        await self._until(lambda: not self._deliveries.lost, ARRIVE_S_MAX)
        self._print("The senders have stopped; receivers get the remaining messages")
        ends_s = time.monotonic() + ARRIVE_S_MAX
        while await self._brokers.waiting() and time.monotonic() < ends_s:
            await self._watch(POLL_S)
        # The last panel stays on the screen: its numbers are those of the result.
        self._screen.show(self._view())

    # -- parts --------------------------------------------------------------------------------

    def _print(self, sentence: str) -> None:
        self._screen.print_line(sentence)

    async def _watch(self, seconds: float) -> None:
        """Wait, and show the current state."""
        await self._until(lambda: False, seconds)

    async def _until(self, is_so: Callable[[], object], seconds: float) -> None:
        """Wait for a condition, at most ``seconds``."""
        ends_s = time.monotonic() + seconds
        while not is_so() and time.monotonic() < ends_s:
            self._application.check()
            self._syphon.check()
            self._screen.show(self._view())
            await asyncio.sleep(POLL_S)

    def _view(self) -> View:
        application, deliveries = self._application, self._deliveries
        return View(
            is_primary_up=self._brokers.primary.is_alive,
            sent=deliveries.sent,
            failed_sends=deliveries.failed_sends,
            arrived=deliveries.copies,
            diverted=tuple(application.diverted),
            messages_diverted=application.messages_diverted,
            moved=self._syphon.moved,
            pings=application.events["ping-sent"],
            syphon=self._syphon.status.doing,
        )


def run_demo(scenario: DemoScenario, keep: Path | None, screen: Screen | None = None) -> Result:
    """Run the demo; ``keep`` is a new directory for its files."""
    # Checked now, and not in the middle of the outage.
    require_pyspark()
    find_java()
    with open_files(keep) as files:
        with open_screen() if screen is None else nullcontext(screen) as output:
            result = asyncio.run(_run(OutageDemo(scenario, files, output)))
        files.write_json("result.json", result.to_json())
    return result


async def _run(demo: OutageDemo) -> Result:
    task = asyncio.ensure_future(demo.run())
    with suppress(NotImplementedError, AttributeError):  # Windows: Ctrl-C alone.
        # Also when the terminal is closed: no process is left running. SIGINT explicitly, because a
        # process in the background of a script ignores it otherwise, and the brokers do not.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise TwinbusError("The demo was stopped before its end") from None
