"""RabbitMQ's Shovel, the peer of our mover: two nodes, quorum queues, on-confirm, prefetch 1000.

The shovel runs in the node that holds the destination, as ours has the mover near the primary.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

from bench.processes import BenchError, wait_for
from bench.rabbitmq import RabbitNode
from bench.rabbitmq_wire import Channel
from bench.run import KILOBYTE
from bench.systems import RabbitQueue
from bench.workers import WindowedJob, run_together

NAME: Final = "RabbitMQ Shovel"
PREFETCH: Final = 1_000
WINDOW_FILL: Final = 4_000
MOVE_S_MAX: Final = 300.0


class Shovel:
    """A pair of nodes; ``move`` fills one and times the way of all messages to the other."""

    def __init__(self, directory: Path) -> None:
        self._source = RabbitNode(directory / "source")
        self._home = RabbitNode(directory / "home", plugins=("rabbitmq_shovel",))
        self._runs = 0

    def start(self) -> None:
        self._source.start()
        self._home.start()

    def stop(self) -> None:
        self._source.stop()
        self._home.stop()

    def move(self, messages: int, size_bytes: int = KILOBYTE) -> float:
        """Messages a second from the first arrivals on: what starts a shovel takes a second, and
        would count against it."""
        self._runs += 1
        queue = f"backlog-{self._runs}"
        self._declare(self._source, queue)
        self._declare(self._home, queue)
        self._fill(queue, messages, size_bytes)
        self._home.control("set_parameter", "shovel", queue, self._definition(queue))
        rate = self._rate_of_arrival(queue, messages)
        self._home.control("clear_parameter", "shovel", queue)
        self._drop(queue)
        return rate

    def _definition(self, queue: str) -> str:
        return json.dumps(
            {
                "src-protocol": "amqp091",
                "src-uri": f"amqp://guest:guest@127.0.0.1:{self._source.port}",
                "src-queue": queue,
                "src-prefetch-count": PREFETCH,
                "dest-protocol": "amqp091",
                "dest-uri": f"amqp://guest:guest@127.0.0.1:{self._home.port}",
                "dest-queue": queue,
                "ack-mode": "on-confirm",
            }
        )

    def _declare(self, node: RabbitNode, queue: str) -> None:
        channel = Channel(node.port)
        channel.declare_quorum_queue(queue)
        channel.close()

    def _fill(self, queue: str, messages: int, size_bytes: int) -> None:
        job = WindowedJob(
            queue=RabbitQueue(self._source.port, queue), size_bytes=size_bytes, batch=1,
            window=WINDOW_FILL, duration_s=MOVE_S_MAX, deliveries_max=messages,
        )  # fmt: skip
        sent = run_together([job], self._source.pid).messages
        if sent != messages:
            raise BenchError(f"RabbitMQ confirmed {sent} of {messages} messages")

    def _rate_of_arrival(self, queue: str, messages: int) -> float:
        channel = Channel(self._home.port)

        def count(at_least: int) -> tuple[int, float] | None:
            found = channel.message_count(queue)
            return (found, time.monotonic()) if found >= at_least else None

        try:
            first, began_s = wait_for("the shovel's start", lambda: count(1), MOVE_S_MAX)
            last, ended_s = wait_for("its last message", lambda: count(messages), MOVE_S_MAX)
        finally:
            channel.close()
        if first == last:
            raise BenchError("the shovel was done before it could be timed: move more messages")
        return (last - first) / (ended_s - began_s)

    def _drop(self, queue: str) -> None:
        for node in (self._source, self._home):
            channel = Channel(node.port)
            channel.delete_queue(queue)
            channel.close()
