"""A whole namespace in one thread: real peers on wires that end in memory.

    rig = Rig(MemoryStore())
    client = rig.connect()          a WireClient; what it asks is answered before it returns
    rig.advance(30)                 half a minute passes
    rig.restart()                   the process dies; its disk stays

Everything between the socket and the disk is the real thing. The loop, its clock and the store
threads are simulated, so that the same steps give the same answers every time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from random import Random
from typing import Any

from tests.support.catalogue_changes import unheard
from tests.support.simulated_loop import SimLoop, SimThread
from tests.support.wire_client import WireClient
from twinbus.amqp.connection import Connection, ConnectionOptions, Role
from twinbus.amqp.events import DeliveriesReceived
from twinbus.amqp.limits import AmqpLimits
from twinbus.broker.access.rules import Claim, RuleSet
from twinbus.broker.access.sas import AccessGrant
from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.fairness.loop_turns import Turns
from twinbus.broker.namespace.namespace import Namespace
from twinbus.broker.options import BrokerOptions
from twinbus.broker.server.connection import ClientConnection
from twinbus.broker.storage.interface import Store
from twinbus.common.clock import Instant

# Jumps of the clock are no silence of the peers.
LIMITS = AmqpLimits(idle_timeout_s=4_000_000.0)
FOR_EVER = AccessGrant((), Claim.MANAGE | Claim.SEND | Claim.LISTEN, 1 << 40, "", "root", "key")
# Two ways to compute the same moment differ by less than this.
ROUNDING_S = 1e-6
# Turns of the loop that one step may take before something is said to run in circles.
TURNS_MAX = 10_000


class Rig:
    """One namespace, its store and its clock."""

    def __init__(self, store: Store, create: Callable[[Namespace], Any]) -> None:
        """``create`` makes the entities, if they are not there yet."""
        self._store = store
        self._create = create
        self._starts = 0
        self.loop = SimLoop()
        self._start()

    def _start(self) -> None:
        self._threads: list[SimThread] = []
        self._wires: list[Wire] = []
        self._starts += 1
        self.namespace = Namespace(
            "model",
            self._store,
            RuleSet(),
            BrokerOptions(limits=LIMITS),
            self.loop,
            Random(self._starts),
            loop=self.loop,
            # How long something took must not decide what happens next.
            turns=Turns(self.loop, iteration_s=math.inf),
            start_thread=self._start_thread,
        )
        self._create(self.namespace)
        self.run()

    def _start_thread(self, *arguments: Any) -> Any:
        thread = SimThread(*arguments)
        self._threads.append(thread)
        return thread

    def now(self) -> Instant:
        return self.loop.now()

    def connect(self) -> MemoryClient:
        """A client that may do everything."""
        wire = Wire(self)
        self._wires.append(wire)
        client = MemoryClient(self, wire)
        client.open()
        wire.peer.granted(FOR_EVER)
        return client

    # -- time -----------------------------------------------------------------------------

    def run(self) -> None:
        """Let everything happen that needs no more time."""
        for _ in range(TURNS_MAX):
            if not self._take_step():
                return
        raise AssertionError("the broker does not come to rest")

    def _take_step(self) -> bool:
        if self.loop.is_busy or self._is_timer_due():
            self.loop.turn()
            return True
        for thread in self._threads:
            if thread.has_answers:
                thread.tell()
                return True
            if thread.has_jobs:
                thread.run()
                return True
        return False

    def _is_timer_due(self) -> bool:
        at_s = self.loop.next_timer_s()
        return at_s is not None and at_s <= self.loop.now_s

    def advance(self, seconds: float) -> None:
        """Time passes, with every timer at its time."""
        end_s = self.loop.now_s + seconds
        while (at_s := self.loop.next_timer_s()) is not None and at_s <= end_s + ROUNDING_S:
            self.loop.now_s = max(self.loop.now_s, at_s)
            self.run()
        self.loop.now_s = max(self.loop.now_s, end_s)
        self.run()

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock; no time passes, and the broker hears of it."""
        self.loop.skew_ms += round(seconds * 1_000)
        for machine in self.namespace.catalogue.machines():
            self.namespace.touch(machine)
        self.run()

    def restart(self, *, while_storing: bool = False) -> None:
        """The process dies and begins again with what is on disk.

        ``while_storing`` says that what had been asked of the disk was still done.
        """
        if while_storing:
            for thread in self._threads:
                while thread.has_jobs:
                    thread.run()
        self._store.close()
        self.loop = SimLoop(self.loop.now_s, self.loop.skew_ms)
        self._start()


def create_queue(namespace: Namespace, description: QueueDescription) -> None:
    """Make the queue unless it is there already."""
    if namespace.catalogue.find(description.path) is None:
        at_ms = namespace.now().wall_ms
        namespace.submit(lambda draft: draft.create(description, None, at_ms), unheard)


class Wire(asyncio.Transport):
    """The broker's end of a connection, and what it wrote."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self._is_closing = False
        # A peer takes the loop that runs; for a moment this is ours.
        asyncio._set_running_loop(rig.loop)  # type: ignore[arg-type]
        try:
            self.peer = ClientConnection(rig.namespace)
        finally:
            asyncio._set_running_loop(None)
        self.peer.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""

    def pause_reading(self) -> None:
        """A model sends little."""

    resume_reading = write_eof = pause_reading

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.peer.connection_lost(None)

    close = abort


class MemoryClient(WireClient):
    """A WireClient without a socket. When it has waited once, there is nothing to wait for."""

    def __init__(self, rig: Rig, wire: Wire) -> None:
        self._rig = rig
        self._wire = wire
        self.timeout_s = 1.0
        self._prepare(
            Connection(
                Role.CLIENT,
                ConnectionOptions(container_id="model", hostname="localhost", limits=LIMITS),
            )
        )

    def flush(self) -> None:
        self.pump()

    def push(self) -> None:
        """Give the broker our bytes and one turn, so that it has asked its disk and no more."""
        self._wire.peer.data_received(self.connection.take_output())
        self._rig.loop.turn()

    def pump(self, timeout_s: float = 0.0) -> bool:
        """Exchange bytes until neither side has anything to say."""
        any_came = False
        while True:
            data = self.connection.take_output()
            if data:
                self._wire.peer.data_received(data)
            self._rig.run()
            came, self._wire.written = b"".join(self._wire.written), []
            if not came and not data:
                return any_came
            any_came = True
            for event in self.connection.receive(came):
                self.events += event.singles() if isinstance(event, DeliveriesReceived) else [event]

    def wait_for(
        self, kind: type[Any], matches: Callable[[Any], bool] = lambda _event: True
    ) -> Any:
        self.pump()
        for event in self.events:
            if isinstance(event, kind) and matches(event):
                self.events.remove(event)
                return event
        raise AssertionError(f"no {kind.__name__} came; only {self.events!r:.400}")

    def close(self) -> None:
        """The cable is pulled."""
        self._wire.abort()
        self._rig.run()
