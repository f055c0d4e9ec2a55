"""Makes trouble: what each card does to the site, and how it is undone.

Rule 1: what was done is undone, whatever else goes wrong meanwhile: an order to a broker is given
        until it has been carried out.
Rule 2: what a fault may cost is written down when it strikes: who was killed, by how much a clock
        was wrong, what was in a queue that was deleted.
Rule 3: a fault is written down as begun only if it has happened. Where that is left to chance, a
        part of Spark that must be there or a sync that must fail, it is tried first.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final

from twinbus.drivers.amqp import AmqpDriver
from twinbus.encoding.brokered_message import decode_message, encode_message
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import TwinbusError
from twinbus.message import BrokeredMessage
from verification.fault_campaign.books import Books
from verification.fault_campaign.cards import ONE_LEFT, SYNC_ERROR, Fault
from verification.fault_campaign.history import ASKED
from verification.fault_campaign.plan import PRIMARY, SECOND_SYPHON, kind_of, queue_properties
from verification.fault_campaign.processes import BrokerChild
from verification.fault_campaign.site import Site
from verification.fault_campaign.syphon import SparkChild

ORDER_S_MAX: Final = 60.0
AGAIN_S: Final = 0.3
# Lines of a deletion are in the audit log by then.
BOOKS_S: Final = 0.5
# A broker whose sync has failed answers nobody, and is found within this time.
SYNC_S_MAX: Final = 5.0
# A syphon on Spark that has just been killed is at work again within this time on a busy machine.
VICTIM_S_MAX: Final = 60.0
# So long a worker must have a connection to the primary to be killed; then any will do.
BUSY_WORKER_S_MAX: Final = 20.0
FILLER: Final = "filler"
FILLER_BYTES: Final = 200_000
PEEK_COUNT_MAX: Final = 1_000
FULL_MB: Final = 1
NS_PER_S: Final = 1_000_000_000
US_PER_S: Final = 1_000_000


class Nemesis:
    """The faults of one run."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._journal = site.journal
        self._rng = Random(f"nemesis-{site.plan.seed}")
        self._books = {name: Books(broker.metering) for name, broker in site.brokers.items()}
        self._deeds: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill": self._kill,
            "end": self._end,
            "stop": self._stop,
            "line": self._line,
            "disk": self._disk,
            "sync": self._sync,
            "clock": self._clock,
            "backlog": self._backlog,
            "destination": self._delete,
            "key": self._rotate,
            "syphon": self._syphon,
        }

    async def strike_all(self, faults: Sequence[Fault]) -> None:
        began_s = time.monotonic()

        async def strike(fault: Fault) -> None:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
            await self.strike(fault)

        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(strike(fault))

    async def strike(self, fault: Fault) -> None:
        """One fault; one that finds nobody to strike is no fault, and is told as such."""
        facts = {"process": fault.process, "place": fault.broker or fault.place}
        looked_s = time.monotonic()
        while (waited_s := time.monotonic() - looked_s) <= VICTIM_S_MAX:
            # Between two looks others have their turn: whoever starts it again, for one.
            async with self._site.turn(fault.process, facts["place"]):
                begin_s = time.monotonic()
                name = await self._try(fault, waited_s)
                if name is not None:
                    self._journal.write("fault", "invoke", detail=name, at_s=begin_s, **facts)
                    await self._deeds[fault.verb](fault)
                    self._journal.write("fault", "ok", detail=name, **facts)
                    return
            await asyncio.sleep(AGAIN_S)
        self._journal.write("fault", "info", detail=fault.name, **facts)

    async def _try(self, fault: Fault, waited_s: float) -> str | None:
        """What has begun, by its name; None if nothing has, and it is to be tried again."""
        if fault.part:
            child = self._site.child(fault.process)
            assert isinstance(child, SparkChild)
            port = self._site.brokers[PRIMARY].port if waited_s < BUSY_WORKER_S_MAX else None
            return fault.name if child.kill_part(fault.part, self._rng, port) else None
        if fault.name == SYNC_ERROR and not await self._sync_failed(fault):
            return f"kill {fault.process}"  # It is killed all the same.
        return fault.name

    # -- processes ----------------------------------------------------------------------------

    async def _kill(self, fault: Fault) -> None:
        child = self._site.child(fault.process)
        if fault.part:  # That is dead already.
            self._journal.write("kill", "ok", process=child.name, detail=fault.part)
            await asyncio.sleep(fault.lasts_s)  # Spark, or our watch, sees to the rest.
            return
        self._site.notice(child)
        await child.kill()
        self._journal.write("kill", "ok", process=child.name)
        await asyncio.sleep(fault.lasts_s)
        await self._site.start(fault.process)

    async def _end(self, fault: Fault) -> None:
        child = self._site.child(fault.process)
        await self._site.end_one(child)
        # Locks that a broker had given out are void, and a syphon that could not end a chunk in
        # time leaves no receipts for it.
        self._journal.write("kill", "ok", process=child.name, detail=ASKED)
        await asyncio.sleep(fault.lasts_s)
        await self._site.start(fault.process)

    async def _stop(self, fault: Fault) -> None:
        child = self._site.child(fault.process)
        child.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.lasts_s)
        child.signal(signal.SIGCONT)

    async def _line(self, fault: Fault) -> None:
        line = self._site.lines[fault.process, fault.broker]
        if fault.weather is None:
            line.reset_all()
            return
        line.set(fault.weather)
        await asyncio.sleep(fault.lasts_s)
        line.set(line.climate)

    # -- machines -----------------------------------------------------------------------------

    async def _disk(self, fault: Fault) -> None:
        broker = self._site.brokers[fault.process]
        if not broker.disk.is_own:  # We may not mount one: the broker plays it.
            await self._order(broker, "POST", "faults", {"kind": "disk-full", "id": "full"})
            await asyncio.sleep(fault.lasts_s)
            await self._order(broker, "DELETE", "faults/full")
            return
        await asyncio.to_thread(broker.disk.fill)
        await asyncio.sleep(fault.lasts_s)
        broker.disk.free()

    async def _sync(self, fault: Fault) -> None:
        board = self._site.boards[fault.process]
        if "slow" in fault.name:
            board.set("sync_delay_us", int(fault.amount * US_PER_S))
            await asyncio.sleep(fault.lasts_s)
            board.set("sync_delay_us", 0)
            return
        # Nobody knows what such a disk holds: whoever watches over the broker starts it again.
        await self._kill(fault)

    async def _sync_failed(self, fault: Fault) -> bool:
        """Let one of the next syncs of a broker fail; whether there was one."""
        board, broker = self._site.boards[fault.process], self._site.brokers[fault.process]
        before = board.get("sync_failed")
        board.set("sync_fails_in", int(fault.amount))
        ends_s = time.monotonic() + SYNC_S_MAX
        while await broker.is_well() and time.monotonic() < ends_s:
            await asyncio.sleep(AGAIN_S)
        board.set("sync_fails_in", 0)
        return board.get("sync_failed") > before

    async def _clock(self, fault: Fault) -> None:
        board = self._site.boards[fault.process]
        for off_s, lasts_s in ((fault.amount, fault.lasts_s), (0.0, 0.0)):
            board.set("clock_offset_ns", int(off_s * NS_PER_S))
            self._journal.write("clock", "ok", process=fault.process, detail=str(off_s))
            await asyncio.sleep(lasts_s)

    # -- entities and keys --------------------------------------------------------------------

    async def _backlog(self, fault: Fault) -> None:
        if fault.name == ONE_LEFT:
            others = [place for place in self._site.plan.backlog if place != fault.place]
            changes = ({"status": "Disabled"}, {"status": "Active"})
            await asyncio.gather(
                *(self._change(replace(fault, place=place), *changes) for place in others)
            )
        elif fault.name.endswith("deleted"):
            await self._delete(fault)
        elif fault.name.endswith("disabled"):
            await self._change(fault, {"status": "Disabled"}, {"status": "Active"})
        else:
            await self._fill(fault)

    async def _change(self, fault: Fault, there: dict[str, Any], back: dict[str, Any]) -> None:
        broker, queue = self._site.brokers[fault.process], f"queues/{fault.place}"
        await self._order(broker, "PATCH", queue, there)
        await asyncio.sleep(fault.lasts_s)
        await self._order(broker, "PATCH", queue, back)

    async def _fill(self, fault: Fault) -> None:
        """Large messages that are due next month; before that they are withdrawn."""
        broker, queue = self._site.brokers[fault.process], f"queues/{fault.place}"
        await self._order(broker, "PATCH", queue, {"max_size_mb": FULL_MB})
        due = datetime.now(UTC) + timedelta(days=30)
        filler = BrokeredMessage(
            bytes(FILLER_BYTES), message_id=FILLER, scheduled_enqueue_time_utc=due
        )
        driver = AmqpDriver.from_connection_string(broker.connection_string())
        numbers: list[int] = []
        try:
            sender = driver.sender(fault.place)
            parcel = OutgoingMessage(encode_message(filler))
            try:
                while len(numbers) < 2 * (FULL_MB << 20) // FILLER_BYTES:
                    numbers += await sender.schedule([parcel], timeout_s=5.0)
            except TwinbusError:
                pass  # It is full, or away.
            await asyncio.sleep(fault.lasts_s)
            # And one whose number was lost with its answer, which may be the first of all.
            numbers += await self._scheduled(driver, broker, fault.place)
            while numbers:
                there = sorted(set(numbers))
                await self._surely(partial(sender.cancel_scheduled, there, timeout_s=5.0))
                numbers = await self._scheduled(driver, broker, fault.place)
        finally:
            await driver.close()
        await self._order(broker, "PATCH", queue, {"max_size_mb": 1_024})

    async def _scheduled(self, driver: AmqpDriver, broker: BrokerChild, queue: str) -> list[int]:
        facts = await self._order(broker, "GET", f"queues/{queue}")
        if not facts["scheduled_message_count"]:
            return []
        receiver = driver.receiver(queue)
        seen = await self._surely(partial(receiver.peek, PEEK_COUNT_MAX, timeout_s=5.0))
        messages = [(each.sequence_number, decode_message(each)) for each in seen]
        return [number for number, each in messages if each.message_id == FILLER]

    async def _delete(self, fault: Fault) -> None:
        broker, queue = self._site.brokers[fault.process], f"queues/{fault.place}"
        await self._order(broker, "DELETE", queue)
        await asyncio.sleep(BOOKS_S)
        there = await asyncio.to_thread(self._books[broker.name].removed_with, fault.place)
        self._journal.write("removed", "ok", values=tuple(there), place=fault.place)
        await asyncio.sleep(fault.lasts_s)
        await self._order(broker, "PUT", queue, queue_properties())
        # A sender that was started meanwhile has made one to its own liking.
        await self._order(broker, "PATCH", queue, queue_properties())

    async def _rotate(self, fault: Fault) -> None:
        """Everybody of a kind is refused until somebody gives them the new key."""
        kind, broker = fault.process, self._site.brokers[fault.broker]
        await self._surely(lambda: broker.rotate_key(kind))
        await asyncio.sleep(fault.lasts_s)
        for role, child in list(self._site.roles.items()):
            if kind_of(role) != kind or role == SECOND_SYPHON:
                continue
            async with self._site.turn(role):
                child = self._site.roles[role]
                if child.is_alive:
                    await self._site.end_one(child)
                    self._journal.write("kill", "ok", process=child.name, detail="a new key")
                    await self._site.start(role)

    async def _syphon(self, fault: Fault) -> None:
        if fault.process == SECOND_SYPHON:
            await self._site.start(SECOND_SYPHON)
            await asyncio.sleep(fault.lasts_s)
            await self._site.end_one(self._site.roles[SECOND_SYPHON])
            return
        state = self._site.state_of(fault.process)
        await asyncio.to_thread(shutil.rmtree, state / "checkpoints", ignore_errors=True)
        await asyncio.sleep(fault.lasts_s)

    # -- orders -------------------------------------------------------------------------------

    async def _order(self, broker: BrokerChild, method: str, path: str, json: Any = None) -> Any:
        return await self._surely(lambda: broker.ask(method, path, json))

    async def _surely(self, order: Callable[[], Awaitable[Any]]) -> Any:
        """Again and again while the broker is away; what is done already is done."""
        ends_s = time.monotonic() + ORDER_S_MAX
        while True:
            try:
                return await order()
            except TwinbusError as error:
                status = getattr(error, "status", None)
                if status in (404, 409) or type(error).__name__ == "MessageNotFound":
                    return None  # An earlier order was carried out, and its answer was lost.
                if time.monotonic() > ends_s:
                    raise
                await asyncio.sleep(AGAIN_S)
