"""Runs a plan: starts everything, makes trouble, heals, drains, counts.

    brokers, lines, roles --> faults by the schedule --> healed --> enough was acknowledged
    --> senders end --> backlog and queues run empty --> all end --> dead letters and counts

Rule 1: the controller's own work, counts and dead letters, goes straight to the brokers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from twinbus.drivers.amqp import AmqpDriver
from twinbus.encoding.brokered_message import decode_message
from twinbus.encoding.envelope import restore
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import TwinbusError
from verification.fault_campaign.checker import Verdict
from verification.fault_campaign.history import Event, Journal, Tail
from verification.fault_campaign.judging import PLAN, judged
from verification.fault_campaign.messages import print_of
from verification.fault_campaign.nemesis import Nemesis
from verification.fault_campaign.plan import PRIMARY, PROBE, SECONDARY, TWIN, Plan, kind_of
from verification.fault_campaign.processes import LAUNCHERS, Launchers
from verification.fault_campaign.schedule import Fault, schedule
from verification.fault_campaign.site import Site
from verification.fault_campaign.syphon import RECEIPTS_SUFFIX

LOOK_S: Final = 0.5
# Enough to begin with on a busy machine: pairing, links, the first messages, Spark.
ACKNOWLEDGE_S_MAX: Final = 240.0
BEGUN_COUNT: Final = 100
PROGRESS_S: Final = 10.0
PATIENCE_S: Final = 60.0
DEAD_LETTERS: Final = "$DeadLetterQueue"
WAITING: Final = ("active", "scheduled", "deferred")

Tell = Callable[[str], None]


class Campaign:
    """One run, in a directory of its own.

    ``faults`` is what happens instead of the schedule, ``launchers`` the beginnings of command
    lines that start other programs than the usual ones (processes.py), ``tell`` hears how it goes.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        *,
        faults: Sequence[Fault] | None = None,
        launchers: Launchers | None = None,
        tell: Tell | None = None,
    ) -> None:
        self.plan = replace(plan, began_s=time.time())
        self._faults = schedule(plan) if faults is None else faults
        self._directory = directory
        (directory / PLAN).write_text(self.plan.to_json(), encoding="utf-8")
        self._journal = Journal(directory / "controller.jsonl", "controller")
        self._tell = tell or (lambda _line: None)
        self._site = Site(self.plan, directory, self._journal, {**LAUNCHERS, **(launchers or {})})
        self._sent = Tail()
        self._counting = asyncio.Lock()
        self._acknowledged = 0
        self.events: list[Event] = []
        """Everything that happened, once it is over."""

    async def run(self) -> Verdict:
        async with self._site.everything():
            progress = asyncio.create_task(self._progress())
            await self._until(self._has_begun, ACKNOWLEDGE_S_MAX)
            await Nemesis(self._site).strike_all(self._faults)
            await self._until(self._has_enough, ACKNOWLEDGE_S_MAX)
            await self._site.end("sender")
            await self._site.end(TWIN)
            await self._drain()
            for kind in ("mover", "syphon", "receiver", "prober"):
                await self._site.end(kind)
            await self._take_stock()
            progress.cancel()
        self._journal.close()
        self.events, verdict = judged(self._directory, self.plan, self._faults)
        return verdict

    # -- how it goes --------------------------------------------------------------------------

    async def _until(self, is_so: Callable[[], Awaitable[bool]], seconds: float) -> None:
        """Wait for something; when it does not come, the verdict will say what is missing."""
        end_s = time.monotonic() + seconds
        while not await is_so() and time.monotonic() < end_s:
            await asyncio.sleep(LOOK_S)

    async def _has_begun(self) -> bool:
        """Whether there is a load, on both ways home: faults before it would prove nothing."""
        await self._count()
        return self._acknowledged >= BEGUN_COUNT and await self._has_moved()

    async def _has_enough(self) -> bool:
        await self._count()
        return self._acknowledged >= self.plan.messages

    async def _count(self) -> None:
        """What senders have written since the last look."""
        # Two that look at the same time would both see the same lines, and count them twice.
        async with self._counting:
            paths = list(self._directory.glob("sender-*.jsonl"))
            for event in await asyncio.to_thread(self._sent.read, paths):
                if (event.what, event.type) == ("send", "ok"):
                    self._acknowledged += len(event.values)

    async def _has_moved(self) -> bool:
        """Whether a message that went to the backlog has come home."""
        for path in self._directory.glob(f"syphon-*{RECEIPTS_SUFFIX}"):
            if any(path.glob("run=*/*.parquet")) if path.is_dir() else path.stat().st_size:
                return True
        return any(path.stat().st_size for path in self._directory.glob("mover-*.jsonl"))

    async def _progress(self) -> None:
        """A line every few seconds, and the depth of the backlog for the picture."""
        began_s = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_S)
            await self._count()
            try:
                depth = sum([count async for _broker, _place, count, _dead in self._backlog()])
            except TwinbusError:
                depth = -1
            else:
                self._journal.write("depth", "ok", count=depth)
            waiting = "unknown" if depth < 0 else f"{depth:,}"
            self._tell(
                f"{time.monotonic() - began_s:5.0f} s  acknowledged {self._acknowledged:>8,}  "
                f"waiting in the backlog {waiting}"
            )

    # -- the end ------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Until nothing is anywhere. What a syphon set aside that is gone, for a queue that was
        gone, another one finds when it starts, or an hour later."""
        await self._until(self._is_empty, PATIENCE_S)
        if self.plan.has_spark and not await self._is_empty():
            await self._site.end("syphon")
            for role in self.plan.roles:
                if kind_of(role) == "syphon":
                    self._journal.write("kill", "ok", process=self._site.child(role).name)
                    await self._site.start(role)
        await self._until(self._is_empty, self.plan.drain_s_max)

    async def _is_empty(self) -> bool:
        """Nobody who cannot be asked is empty."""
        try:
            counts = {place: count async for _, place, count, _ in self._counts()}
            if self.plan.has_twin:
                for place in self.plan.backlog:
                    counts[place] -= len(await self._of_the_twin(place))
        except TwinbusError:
            return False
        return not any(count for place, count in counts.items() if place != PROBE)

    async def _counts(self) -> AsyncIterator[tuple[str, str, int, int]]:
        """Broker, place, messages and dead letters of everything there is."""
        places = [place for each in self.plan.places.values() for place in each]
        async for counted in self._counts_of(PRIMARY, [*places, PROBE]):
            yield counted
        async for counted in self._backlog():
            yield counted

    async def _backlog(self) -> AsyncIterator[tuple[str, str, int, int]]:
        async for counted in self._counts_of(SECONDARY, self.plan.backlog):
            yield counted

    async def _counts_of(
        self, broker: str, places: Sequence[str]
    ) -> AsyncIterator[tuple[str, str, int, int]]:
        for place in places:
            kind = "topics" if "/subscriptions/" in place else "queues"
            facts = await self._site.brokers[broker].ask("GET", f"{kind}/{place}")
            waiting = sum(facts[f"{state}_message_count"] for state in WAITING)
            yield broker, place, waiting, facts["dead_letter_message_count"]

    async def _take_stock(self) -> None:
        """Write down what is dead, and what is left when that is taken out."""
        async for broker, place, _count, dead in self._counts():
            if dead:
                await self._bury(broker, place)
        async for _broker, place, count, dead in self._counts():
            of_the_twin = 0
            if self.plan.has_twin and place in self.plan.backlog:
                of_the_twin = await self._account_for_the_twin(place)
            self._journal.write("left", "ok", place=place, count=count + dead - of_the_twin)

    async def _account_for_the_twin(self, place: str) -> int:
        """Write down, as received, what belongs to the other primary; how many there were."""
        found = await self._of_the_twin(place)
        for each in found:
            restored = restore(each.encoded, now_ms=0)
            message = decode_message(each._replace(encoded=restored.encoded))
            facts = {
                "values": (str(message.message_id),),
                "place": TWIN,
                "copy": self.plan.backlog.index(place) << 40 | each.sequence_number,
            }
            self._journal.write("receive", "ok", **facts, print=print_of(message))
            self._journal.write("complete", "ok", **facts)
        return len(found)

    async def _of_the_twin(self, place: str) -> list[ReceivedMessage]:
        """The messages of the other primary in a backlog queue."""
        text = self._site.brokers[SECONDARY].connection_string()
        driver = AmqpDriver.from_connection_string(text)
        found: list[ReceivedMessage] = []
        try:
            receiver, begin = driver.receiver(place), 1
            while page := await receiver.peek(250, from_sequence=begin, timeout_s=10.0):
                found += page
                begin = page[-1].sequence_number + 1
        finally:
            await driver.close()
        return [each for each in found if str(decode_message(each).message_id).startswith(TWIN)]

    async def _bury(self, broker: str, place: str) -> None:
        driver = AmqpDriver.from_connection_string(self._site.brokers[broker].connection_string())
        try:
            receiver = driver.receiver(f"{place}/{DEAD_LETTERS}")
            while found := await receiver.receive(100, wait_s=1.0):
                for message in map(decode_message, found):
                    self._journal.write(
                        "dead",
                        "ok",
                        values=(str(message.message_id),),
                        place=place,
                        detail=message.dead_letter_reason or "",
                    )
                await receiver.complete(found, timeout_s=10.0)
        finally:
            await driver.close()
