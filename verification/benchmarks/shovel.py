"""RabbitMQ's Shovel, the peer of our mover: two nodes, quorum queues, on-confirm, prefetch 1000.

The shovel runs in the node that holds the destination, as ours has the mover near the primary.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from verification.benchmarks.processes import BenchError, wait_for
from verification.benchmarks.rabbitmq import RabbitNode
from verification.benchmarks.rabbitmq_wire import Channel
from verification.benchmarks.run import KILOBYTE
from verification.benchmarks.systems import RabbitQueue
from verification.benchmarks.workers import WindowedJob, run_together

NAME: Final = "RabbitMQ Shovel"
PREFETCH: Final = 1_000
WINDOW_FILL: Final = 4_000
MOVE_S_MAX: Final = 300.0


class _Way(NamedTuple):
    """One shovel; it is called like its source."""

    source: str
    destination: str


class Shovel:
    """A pair of nodes; ``move`` fills one and times the way of all messages to the other."""

    def __init__(self, directory: Path) -> None:
        self._source = RabbitNode(directory / "source")
        self._home = RabbitNode(directory / "home", plugins=("rabbitmq_shovel",))
        self._directory = directory
        self._runs = 0

    def start(self) -> None:
        self._source.start()
        self._home.start()

    def stop(self) -> None:
        self._source.stop()
        self._home.stop()

    def move(
        self,
        messages: int,
        size_bytes: int = KILOBYTE,
        *,
        sources: int = 1,
        destinations: int = 1,
    ) -> float:
        """Messages a second from the first arrivals on: what starts a shovel takes a second, and
        would count against it. One shovel for each source; all start at the same moment."""
        self._runs += 1
        ways = [
            _Way(f"backlog-{self._runs}-{n}", f"home-{self._runs}-{n % destinations}")
            for n in range(sources)
        ]
        homes = sorted({way.destination for way in ways})
        for way in ways:
            self._declare(self._source, way.source)
        for home in homes:
            self._declare(self._home, home)
        self._fill([way.source for way in ways], messages, size_bytes)
        self._start_shovels(ways)
        rate = self._rate_of_arrival(homes, messages)
        self._end_shovels(ways)
        self._drop(self._source, [way.source for way in ways])
        self._drop(self._home, homes)
        return rate

    def _start_shovels(self, ways: Sequence[_Way]) -> None:
        """By one import: rabbitmqctl takes a second for each call."""
        parameters = [
            {
                "component": "shovel",
                "vhost": "/",
                "name": way.source,
                "value": self._definition(way),
            }
            for way in ways
        ]
        file = self._directory / "shovels.json"
        file.write_text(json.dumps({"parameters": parameters}))
        self._home.control("import_definitions", str(file))

    def _end_shovels(self, ways: Sequence[_Way]) -> None:
        names = ",".join(f'<<"{way.source}">>' for way in ways)
        self._home.control(
            "eval",
            '[rabbit_runtime_parameters:clear(<<"/">>, <<"shovel">>, Name, <<"bench">>)'
            f" || Name <- [{names}]].",
        )

    def _definition(self, way: _Way) -> dict[str, object]:
        return {
            "src-protocol": "amqp091",
            "src-uri": f"amqp://guest:guest@127.0.0.1:{self._source.port}",
            "src-queue": way.source,
            "src-prefetch-count": PREFETCH,
            "dest-protocol": "amqp091",
            "dest-uri": f"amqp://guest:guest@127.0.0.1:{self._home.port}",
            "dest-queue": way.destination,
            "ack-mode": "on-confirm",
        }

    def _declare(self, node: RabbitNode, queue: str) -> None:
        channel = Channel(node.port)
        channel.declare_quorum_queue(queue)
        channel.close()

    def _fill(self, queues: Sequence[str], messages: int, size_bytes: int) -> None:
        for queue in queues:
            share = messages // len(queues)
            job = WindowedJob(
                queue=RabbitQueue(self._source.port, queue), size_bytes=size_bytes, batch=1,
                window=WINDOW_FILL, duration_s=MOVE_S_MAX, deliveries_max=share,
            )  # fmt: skip
            sent = run_together([job], self._source.pid).messages
            if sent != share:
                raise BenchError(f"RabbitMQ confirmed {sent} of {share} messages")

    def _rate_of_arrival(self, queues: Sequence[str], messages: int) -> float:
        channel = Channel(self._home.port)

        def count(at_least: int) -> tuple[int, float] | None:
            found = sum(map(channel.message_count, queues))
            return (found, time.monotonic()) if found >= at_least else None

        try:
            first, began_s = wait_for("the shovel's start", lambda: count(1), MOVE_S_MAX)
            last, ended_s = wait_for("its last message", lambda: count(messages), MOVE_S_MAX)
        finally:
            channel.close()
        if first == last:
            raise BenchError("the shovel was done before it could be timed: move more messages")
        return (last - first) / (ended_s - began_s)

    def _drop(self, node: RabbitNode, queues: Sequence[str]) -> None:
        channel = Channel(node.port)
        for queue in queues:
            channel.delete_queue(queue)
        channel.close()
