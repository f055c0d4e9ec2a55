"""Runs a plan: starts everything, makes trouble, heals, drains, counts.

    brokers, lines, roles --> faults by the schedule --> healed --> enough was acknowledged
    --> senders end --> backlog and queues run empty --> all end --> dead letters and counts

Rule 1: the controller's own work, counts and dead letters, goes straight to the brokers.
Rule 2: whatever happens, no process outlives the run.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from campaign.checker import Verdict, check
from campaign.history import Event, Journal, merged
from campaign.plan import BROKER_HOST, BROKERS, PRIMARY, SECONDARY, Plan, kind_of
from campaign.processes import LAUNCHERS, BrokerChild, Child, Launchers
from campaign.proxy import Line
from campaign.roles import ADDRESS_VARIABLES, JOURNAL_VARIABLE, PLAN_VARIABLE
from campaign.schedule import Fault, schedule
from campaign.syphon import RECEIPTS_SUFFIX, receipts_in, syphon_command
from twinbus.cli.syphon import EXIT_LEFT
from twinbus.core.encoding import decode_message
from twinbus.drivers.amqp import AmqpDriver

LOOK_S: Final = 0.5
# Enough to begin with on a busy machine: pairing, links, the first messages.
ACKNOWLEDGE_S_MAX: Final = 120.0
BEGUN_COUNT: Final = 100
DEAD_LETTERS: Final = "$DeadLetterQueue"
WAITING: Final = ("active", "scheduled", "deferred")


class Campaign:
    """One run, in a directory of its own.

    ``faults`` is what happens instead of the schedule, ``launchers`` the beginnings of command
    lines that start other programs than the usual ones (processes.py).
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        *,
        faults: Sequence[Fault] | None = None,
        launchers: Launchers | None = None,
    ) -> None:
        self.plan = plan
        self._launchers = {**LAUNCHERS, **(launchers or {})}
        self._faults = schedule(plan) if faults is None else faults
        self._directory = directory
        self._journal = Journal(directory / "controller.jsonl", "controller")
        self._brokers = {
            name: BrokerChild(name, directory, plan.config_json(name), self._launchers[name])
            for name in BROKERS
        }
        self._roles: dict[str, Child] = {}
        self._lives: Counter[str] = Counter()
        self._lines: dict[tuple[str, str], Line] = {}
        self._turns: dict[object, asyncio.Lock] = {}
        """What happens to one process or one line happens one after the other."""

    async def run(self) -> Verdict:
        async with self._everything():
            await self._until(self._has_begun, ACKNOWLEDGE_S_MAX)
            await self._trouble()
            await self._until(self._has_enough, ACKNOWLEDGE_S_MAX)
            await self._end("sender")
            await self._until(self._is_empty, self.plan.drain_s_max)
            await self._end("mover")
            await self._end("syphon")
            await self._end("receiver")
            await self._take_stock()
        self._journal.close()
        written = merged(self._directory.glob("*.jsonl"))
        receipts = [
            event
            for path in self._directory.glob(f"*{RECEIPTS_SUFFIX}")
            for event in receipts_in(path, path.name.removesuffix(RECEIPTS_SUFFIX))
        ]
        return check([*written, *receipts], self.plan.rules)

    @asynccontextmanager
    async def _everything(self) -> AsyncIterator[None]:
        """Brokers, lines and roles; none of them is left behind."""
        async with AsyncExitStack() as stack:
            for broker in self._brokers.values():
                stack.push_async_callback(broker.kill)
                await broker.start()
            for role in self.plan.roles:
                for name, broker in self._brokers.items():
                    self._lines[role, name] = line = Line(
                        listen=(self.plan.host_of(role), broker.port),
                        target=(BROKER_HOST, broker.port),
                        rng=Random(f"{self.plan.seed}-{role}-{name}"),
                        climate=self.plan.climate_of(role),
                    )
                    await stack.enter_async_context(line)
                stack.push_async_callback(self._kill_role, role)
            await asyncio.gather(*(self._start_role(role) for role in self.plan.roles))
            yield

    # -- roles --------------------------------------------------------------------------------

    async def _start_role(self, role: str) -> None:
        name = f"{role}.{self._lives[role]}"
        self._lives[role] += 1
        child = self._roles[role] = Child(name, self._directory)
        host = self.plan.host_of(role)
        addresses = {
            broker: self._brokers[broker].connection_string(host) for broker in self._brokers
        }
        launcher = self._launchers[kind_of(role)]
        if kind_of(role) == "syphon":
            arguments, environment = syphon_command(self.plan, addresses, self._receipts(name))
            await child.spawn([*launcher, *arguments], environment)
            return
        await child.spawn(
            [*launcher, name],
            {
                PLAN_VARIABLE: self.plan.to_json(),
                JOURNAL_VARIABLE: str(self._directory / f"{name}.jsonl"),
                **{ADDRESS_VARIABLES[broker]: text for broker, text in addresses.items()},
            },
        )
        await child.first_line()

    def _receipts(self, name: str) -> Path:
        return self._directory / f"{name}{RECEIPTS_SUFFIX}"

    async def _kill_role(self, role: str) -> None:
        if role in self._roles:
            await self._roles[role].kill()

    async def _end(self, kind: str) -> None:
        """All processes of a kind finish what they are doing."""
        children = [child for role, child in self._roles.items() if role.startswith(kind)]
        for child, code in zip(
            children, await asyncio.gather(*(child.end() for child in children)), strict=True
        ):
            if code not in (0, EXIT_LEFT):  # A syphon that had to wait for somebody says so.
                raise RuntimeError(f"{child.name} ended with {code}:\n{child.log()}")

    # -- faults -------------------------------------------------------------------------------

    async def _trouble(self) -> None:
        began_s = time.monotonic()

        async def strike(fault: Fault) -> None:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
            target = (fault.process, fault.broker)
            async with self._turns.setdefault(target, asyncio.Lock()):
                self._journal.write("fault", "invoke", detail=fault.name, place=str(target))
                await self._strike(fault)
                self._journal.write("fault", "ok", detail=fault.name, place=str(target))

        async with asyncio.TaskGroup() as group:
            for fault in self._faults:
                group.create_task(strike(fault))

    async def _strike(self, fault: Fault) -> None:
        if fault.broker:
            await self._change_weather(self._lines[fault.process, fault.broker], fault)
        elif fault.is_kill:
            await self._kill(fault)
        else:
            child = self._child(fault.process)
            child.signal(signal.SIGSTOP)
            await asyncio.sleep(fault.lasts_s)
            child.signal(signal.SIGCONT)

    def _child(self, name: str) -> Child:
        return self._brokers[name] if name in self._brokers else self._roles[name]

    async def _change_weather(self, line: Line, fault: Fault) -> None:
        if fault.weather is None:
            line.reset_all()
            return
        line.set(fault.weather)
        await asyncio.sleep(fault.lasts_s)
        line.set(line.climate)

    async def _kill(self, fault: Fault) -> None:
        child = self._child(fault.process)
        await child.kill()
        self._journal.write("kill", "ok", process=child.name)
        await asyncio.sleep(fault.lasts_s)
        if fault.process in self._brokers:
            await self._brokers[fault.process].start()
        else:
            await self._start_role(fault.process)

    # -- the end ------------------------------------------------------------------------------

    async def _until(self, is_so: Callable[[], Awaitable[bool]], seconds: float) -> None:
        """Wait for something; when it does not come, the checker will say what is missing."""
        end_s = time.monotonic() + seconds
        while not await is_so() and time.monotonic() < end_s:
            await asyncio.sleep(LOOK_S)

    async def _has_begun(self) -> bool:
        """Whether there is a load, on both ways home: faults before it would prove nothing."""
        return await self._acknowledged() >= BEGUN_COUNT and await self._has_moved()

    async def _has_enough(self) -> bool:
        return await self._acknowledged() >= self.plan.messages

    async def _acknowledged(self) -> int:
        events = await self._written("sender")
        return sum(
            len(event.values) for event in events if (event.what, event.type) == ("send", "ok")
        )

    async def _has_moved(self) -> bool:
        return bool(await self._written("mover"))

    async def _written(self, kind: str) -> list[Event]:
        """What the processes of a kind have written so far."""
        paths = list(self._directory.glob(f"{kind}-*.jsonl"))
        return await asyncio.to_thread(merged, paths)

    async def _is_empty(self) -> bool:
        return not any([count async for _broker, _place, count, _dead in self._counts()])

    async def _counts(self) -> AsyncIterator[tuple[str, str, int, int]]:
        """Broker, place, messages and dead letters of everything there is."""
        for broker, places in (
            (PRIMARY, [place for each in self.plan.places.values() for place in each]),
            (SECONDARY, self.plan.backlog),
        ):
            for place in places:
                kind = "topics" if "/subscriptions/" in place else "queues"
                facts = await self._brokers[broker].facts(f"{kind}/{place}")
                waiting = sum(facts[f"{state}_message_count"] for state in WAITING)
                yield broker, place, waiting, facts["dead_letter_message_count"]

    async def _take_stock(self) -> None:
        """Write down what is dead, and what is left when that is taken out."""
        async for broker, place, _count, dead in self._counts():
            if dead:
                await self._bury(broker, place)
        async for _broker, place, count, dead in self._counts():
            self._journal.write("left", "ok", place=place, count=count + dead)

    async def _bury(self, broker: str, place: str) -> None:
        driver = AmqpDriver.from_connection_string(self._brokers[broker].connection_string())
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
