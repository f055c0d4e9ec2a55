"""The two brokers behind one port, so that every benchmark treats them alike.

System.new_queue() -> QueueAccess (goes to the workers) -> check_count() -> drop()
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from verification.benchmarks.processes import BenchError, wait_for
from verification.benchmarks.rabbitmq import RabbitNode
from verification.benchmarks.rabbitmq_wire import Channel, RabbitDrainer, RabbitPublisher
from verification.benchmarks.sending import Publisher
from verification.benchmarks.twinbus_node import TwinbusNode
from verification.benchmarks.wire import Address
from verification.benchmarks.wire_links import TwinbusDrainer, TwinbusPublisher
from verification.benchmarks.workers import Drainer, QueueAccess

# RabbitMQ's counts follow its log with a little delay.
COUNT_WAIT_S_MAX = 30.0


class System(Protocol):
    name: str
    window_drain: int
    """Messages that a consumer may hold unsettled."""
    has_batches: bool

    def window(self, batch: int) -> int:
        """Outstanding deliveries, each of ``batch`` messages, that suit this broker best."""

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def new_queue(self) -> QueueAccess:
        """An empty queue that no earlier run has used."""

    def check_count(self, queue: QueueAccess, expected: int) -> None:
        """Raise unless exactly ``expected`` messages are there. May empty the queue."""

    def receive_one(self, queue: QueueAccess) -> None:
        """Return when a message could be received."""

    def drop(self, queue: QueueAccess) -> None:
        """The queue is not needed any more."""


@dataclass(frozen=True, slots=True)
class RabbitQueue:
    port: int
    name: str

    def publisher(self, size_bytes: int, batch: int) -> Publisher:
        if batch != 1:
            raise BenchError("RabbitMQ has no batch publish")
        return RabbitPublisher(self.port, self.name, bytes(size_bytes))

    def drainer(self) -> Drainer:
        return RabbitDrainer(self.port, self.name)


class Rabbit:
    """RabbitMQ with quorum queues."""

    name = "RabbitMQ quorum queue"
    window_drain = 2000
    has_batches = False

    def __init__(self, directory: Path) -> None:
        self._node = RabbitNode(directory)
        self._queues = 0

    def window(self, batch: int) -> int:
        # Tuned in its favour: docs/BENCHMARKS.md has the windows that were tried.
        return 4000

    @property
    def pid(self) -> int:
        return self._node.pid

    def start(self) -> None:
        self._node.start()

    def stop(self) -> None:
        self._node.stop()

    def kill(self) -> None:
        self._node.kill()

    def new_queue(self) -> RabbitQueue:
        self._queues += 1
        queue = RabbitQueue(self._node.port, f"bench-{self._queues}")
        channel = Channel(queue.port)
        channel.declare_quorum_queue(queue.name)
        channel.close()
        return queue

    def check_count(self, queue: QueueAccess, expected: int) -> None:
        assert isinstance(queue, RabbitQueue)
        channel = Channel(queue.port)
        try:
            wait_for(
                f"a count of {expected} messages in {queue.name}",
                lambda: channel.message_count(queue.name) == expected or None,
                COUNT_WAIT_S_MAX,
            )
        finally:
            channel.close()

    def receive_one(self, queue: QueueAccess) -> None:
        assert isinstance(queue, RabbitQueue)

        def received() -> bool | None:
            channel = Channel(queue.port)
            try:
                return channel.get_one(queue.name) or None
            finally:
                channel.close()

        wait_for("a message from RabbitMQ", received, COUNT_WAIT_S_MAX)

    def drop(self, queue: QueueAccess) -> None:
        assert isinstance(queue, RabbitQueue)
        channel = Channel(queue.port)
        channel.delete_queue(queue.name)
        channel.close()


@dataclass(frozen=True, slots=True)
class TwinbusQueue:
    address: Address
    name: str

    def publisher(self, size_bytes: int, batch: int) -> Publisher:
        return TwinbusPublisher(self.address, self.name, bytes(size_bytes), batch)

    def drainer(self) -> Drainer:
        return TwinbusDrainer(self.address, self.name)


class Twinbus:
    """Our broker in its own process."""

    window_drain = 2000
    has_batches = True

    def __init__(self, directory: Path, name: str = "twinbus", source: Path | None = None) -> None:
        self.name = name
        self._node = TwinbusNode(directory, source=source)
        self._queues = 0

    def window(self, batch: int) -> int:
        return max(1, 8000 // batch)

    @property
    def pid(self) -> int:
        return self._node.pid

    def start(self) -> None:
        self._node.start()

    def stop(self) -> None:
        self._node.stop()

    def kill(self) -> None:
        self._node.kill()

    def new_queue(self) -> TwinbusQueue:
        self._queues += 1
        queue = TwinbusQueue(self._node.address, f"bench-{self._queues}")
        self._node.create_queue(queue.name)
        return queue

    def check_count(self, queue: QueueAccess, expected: int) -> None:
        """Counts by receiving and deleting; what is locked would stay, and shows in the size."""
        assert isinstance(queue, TwinbusQueue)
        drainer = TwinbusDrainer(queue.address, queue.name, delete_on_receive=True)
        try:
            drainer.drain(expected, self.window_drain)
            extra = drainer.count_extra()
        finally:
            drainer.close()
        if extra or self._node.size_bytes(queue.name):
            raise BenchError(f"{queue.name} held more than the {expected} messages expected")

    def receive_one(self, queue: QueueAccess) -> None:
        assert isinstance(queue, TwinbusQueue)
        drainer = TwinbusDrainer(queue.address, queue.name)
        drainer.receive_one()
        drainer.close()

    def drop(self, queue: QueueAccess) -> None:
        assert isinstance(queue, TwinbusQueue)
        self._node.delete_queue(queue.name)


def seconds_until_served(system: System, queue: QueueAccess) -> float:
    """Start a stopped system and time it until a message of ``queue`` arrives."""
    started_s = time.monotonic()
    system.start()
    system.receive_one(queue)
    return time.monotonic() - started_s
