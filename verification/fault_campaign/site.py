"""Everything that runs: both brokers, a line for every way to them, and the roles.

Rule 1: whatever happens, no process outlives the run, and nothing stays mounted.
Rule 2: what happens to one process or one line happens one after the other.
Rule 3: whoever ends without being told is written down, and fails the run. A syphon on Spark is
        started again, as whoever runs one does, and is forgiven if a part of it was killed just
        before (undone.py).
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from twinbus.cli.syphon.commands import EXIT_LEFT
from verification.fault_campaign.history import BY_ITSELF, Journal
from verification.fault_campaign.machine import Board, built_shim
from verification.fault_campaign.plan import (
    BROKER_HOST,
    BROKERS,
    CLAIMS,
    MOVING,
    SECONDARY,
    SMALL_QUEUE,
    SMALL_QUEUE_MB,
    Plan,
    kind_of,
)
from verification.fault_campaign.processes import BrokerChild, Child, Launchers
from verification.fault_campaign.proxy import Line
from verification.fault_campaign.roles import ADDRESS_VARIABLES, JOURNAL_VARIABLE, PLAN_VARIABLE
from verification.fault_campaign.syphon import RECEIPTS_SUFFIX, SparkChild, syphon_command

LOOK_S: Final = 0.5
# A syphon that had to wait for somebody, or could not read a queue, says so; one that was still
# starting knows no better than to die.
SYPHON_CODES: Final = (0, 1, EXIT_LEFT, -signal.SIGTERM)


class Site:
    """The processes of one run, and the lines between them."""

    def __init__(self, plan: Plan, directory: Path, journal: Journal, launchers: Launchers) -> None:
        self.plan = plan
        self.journal = journal
        self._directory = directory
        self._launchers = launchers
        self.boards = self._boards() if plan.has_spark else {}
        self.brokers = {
            name: BrokerChild(
                name, directory, plan.config_json(name), launchers[name], self.boards.get(name)
            )
            for name in BROKERS
        }
        self.roles: dict[str, Child] = {}
        self.lines: dict[tuple[str, str], Line] = {}
        self._lives: Counter[str] = Counter()
        self._turns: dict[object, asyncio.Lock] = {}
        self._ended: set[str] = set()
        """Kinds of processes that are not to be started again by themselves."""

    def _boards(self) -> dict[str, Board]:
        shim = built_shim(self._directory)
        if shim is None:
            raise RuntimeError("a C compiler is needed for faults of disks and clocks: install gcc")
        return {
            name: Board(self._directory / f"{name}.board", shim)
            for name in (*BROKERS, *self.plan.all_roles)
        }

    @asynccontextmanager
    async def everything(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for broker in self.brokers.values():
                if self.plan.has_spark:
                    broker.disk.mount()
                    stack.callback(broker.disk.unmount)
                stack.push_async_callback(broker.kill)
                await broker.start()
                await broker.make_keys()
            if self.plan.has_small_queue:
                queue = self.plan.backlog[SMALL_QUEUE]
                size = {"max_size_mb": SMALL_QUEUE_MB}
                await self.brokers[SECONDARY].ask("PATCH", f"queues/{queue}", size)
            for role in self.plan.all_roles:
                for name in CLAIMS[kind_of(role)]:
                    await stack.enter_async_context(self._line(role, self.brokers[name]))
                stack.push_async_callback(self._kill_role, role)
            await self._start_roles()
            watch = asyncio.create_task(self._watch())
            stack.callback(watch.cancel)
            yield
            watch.cancel()

    async def _start_roles(self) -> None:
        """All of them; senders first where they have to do without a secondary for a while."""
        roles = self.plan.roles
        if self.plan.late_secondary_s:
            secondary = self.brokers[SECONDARY]
            await secondary.kill()
            early = [role for role in roles if kind_of(role) not in MOVING]
            await asyncio.gather(*(self.start(role) for role in early))
            await asyncio.sleep(self.plan.late_secondary_s)
            await secondary.start()
            roles = [role for role in roles if role not in early]
        await asyncio.gather(*(self.start(role) for role in roles))

    def _line(self, role: str, broker: BrokerChild) -> Line:
        self.lines[role, broker.name] = line = Line(
            listen=(self.plan.host_of(role), broker.port),
            target=(BROKER_HOST, broker.port),
            rng=Random(f"{self.plan.seed}-{role}-{broker.name}"),
            climate=self.plan.climate_of(role),
        )
        return line

    async def _kill_role(self, role: str) -> None:
        child = self.roles.get(role)
        if child is not None:
            await child.kill()
            if isinstance(child, SparkChild):
                child.sweep()

    def turn(self, process: str, place: str = "") -> asyncio.Lock:
        """Whose turn it is with a process, one of its lines, or one of its queues."""
        return self._turns.setdefault((process, place), asyncio.Lock())

    def state_of(self, role: str) -> Path:
        """The state directory of a syphon on Spark."""
        return self._directory / f"{role}.state"

    def child(self, name: str) -> Child:
        return self.brokers[name] if name in self.brokers else self.roles[name]

    # -- roles --------------------------------------------------------------------------------

    async def start(self, name: str) -> None:
        """Start a broker again, or a role under a new name."""
        if name in self.brokers:
            await self.brokers[name].start()
            self.journal.write("start", "ok", process=name)
            return
        life = f"{name}.{self._lives[name]}"
        self._lives[name] += 1
        kind, host = kind_of(name), self.plan.host_of(name)
        self._ended.discard(kind)
        addresses = {
            broker: self.brokers[broker].connection_string(kind, host) for broker in CLAIMS[kind]
        }
        on_spark = self.plan.is_on_spark(name)
        before = self.roles.get(name)
        if isinstance(before, SparkChild):
            before.sweep()
        child_class = SparkChild if on_spark else Child
        child = self.roles[name] = child_class(life, self._directory, self.boards.get(name))
        self.journal.write("start", "ok", process=life)
        launcher = [*self._launchers[kind]]
        if kind == "syphon":
            receipts = self._directory / f"{life}{RECEIPTS_SUFFIX}"
            state = self.state_of(name) if on_spark else None
            arguments, environment = syphon_command(self.plan, addresses, receipts, state)
            await child.spawn([*launcher, *arguments], environment)
            return
        await child.spawn(
            [*launcher, life],
            {
                PLAN_VARIABLE: self.plan.to_json(),
                JOURNAL_VARIABLE: str(self._directory / f"{life}.jsonl"),
                **{ADDRESS_VARIABLES[broker]: text for broker, text in addresses.items()},
            },
        )
        await child.first_line()

    async def end(self, kind: str) -> None:
        """All processes of a kind finish what they are doing."""
        self._ended.add(kind)
        children = [child for role, child in self.roles.items() if kind_of(role) == kind]
        await asyncio.gather(*(self.end_one(child) for child in children))

    async def end_one(self, child: Child) -> None:
        if not child.is_alive:
            self.notice(child)
            return
        code = await child.end()
        if code not in (SYPHON_CODES if kind_of(child.name) == "syphon" else (0,)):
            raise RuntimeError(f"{child.name} ended with {code}:\n{child.log()}")

    # -- those who end by themselves ----------------------------------------------------------

    def notice(self, child: Child) -> bool:
        """Write down, once, that a process has ended without being told; whether it has."""
        if not child.has_died:
            return False
        child.is_accounted = True
        code = f"exit code {child.process.returncode}"
        self.journal.write("died", "info", process=child.name, detail=code)
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for name, child in [*self.brokers.items(), *self.roles.items()]:
                if not child.has_died:
                    continue
                if isinstance(child, SparkChild):
                    await self._start_again(name, child)
                else:
                    self.notice(child)

    async def _start_again(self, role: str, child: Child) -> None:
        """What has ended by itself and may (rule 3)."""
        if kind_of(role) in self._ended:
            return
        async with self.turn(role):
            # Whoever had the turn may have seen to it.
            if self.roles[role] is child and self.notice(child):
                self.journal.write("kill", "ok", process=child.name, detail=BY_ITSELF)
                await self.start(role)
