"""Where a drain happens: two durable brokers, a filled backlog on one, destinations on the other.

    away: 10 backlog queues, filled as diverted senders would have  --?-->  home: 5 destinations

Rule 1: who moves the messages is not known here. They are counted where they arrive and where
        they left, by the brokers, with few questions: a count must not cost what it measures.
Rule 2: every message has an id of its own and all have equal length, so that filling is cheap.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from verification.benchmarks.processes import BenchError, cpu_seconds, wait_until_quiet
from verification.benchmarks.twinbus_node import TwinbusNode

DESTINATIONS: Final = ("orders", "invoices", "shipments", "payments", "returns")
SESSION: Final = "s"
"""Of every message beside poison, which has none: the destination of both requires one."""
BACKLOG_QUEUES: Final = 10
BATCH: Final = 100
# A question costs the broker about a millisecond.
COUNT_INTERVAL_S: Final = 0.05
HOME_S_MAX: Final = 600.0
ID_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Site:
    home: TwinbusNode
    away: TwinbusNode
    queues: tuple[str, ...]
    """The backlog queues."""

    def fill(
        self,
        messages: int,
        size_bytes: int,
        *,
        queues: int | None = None,
        has_sessions: bool = False,
        poison_every: int = 0,
    ) -> None:
        """Spread ``messages`` over the first ``queues`` backlog queues, for all destinations in
        turn. After every so many there is one more for the last, without a session."""
        used = self.queues[:queues]
        if messages % (len(used) * BATCH):
            raise BenchError(f"{messages} messages are no whole batches for {len(used)} queues")
        asyncio.run(_fill(self.away, used, messages, size_bytes, has_sessions, poison_every))
        self.rest()

    def rest(self) -> None:
        """Return when the brokers have finished their afterwork."""
        for node in (self.home, self.away):
            wait_until_quiet(node.pid)

    def came_home(self) -> int:
        return self.home.active_in_all(DESTINATIONS)

    def wait_until_home(
        self,
        messages: int,
        timeout_s: float = HOME_S_MAX,
        *,
        check: Callable[[], object] = lambda: None,
    ) -> float:
        """When (on the monotonic clock) so many messages had arrived; ``check`` raises when
        there is nobody left to wait for."""
        deadline_s = time.monotonic() + timeout_s
        while (found := self.came_home()) < messages:
            check()
            if time.monotonic() > deadline_s:
                raise BenchError(f"{found} of {messages} messages came home in {timeout_s:.0f} s")
            time.sleep(COUNT_INTERVAL_S)
        return time.monotonic()

    def check(self, messages: int, timeout_s: float = 30.0) -> None:
        """Raise unless exactly ``messages`` are home and the backlog is empty.

        The last completions may follow the last arrival."""
        deadline_s = time.monotonic() + timeout_s
        while left := self.away.held_in_all(self.queues):
            if time.monotonic() > deadline_s:
                raise BenchError(f"{left} messages stay in the backlog")
            time.sleep(COUNT_INTERVAL_S)
        if (found := self.came_home()) != messages:
            raise BenchError(f"{found} messages came home, and {messages} were sent")

    def clear(self) -> None:
        """Empty the destinations. Links to them stay."""
        for destination in DESTINATIONS:
            self.home.purge(destination)

    def clear_all(self) -> None:
        """Empty the backlog too."""
        for queue in self.queues:
            self.away.purge(queue)
        self.clear()

    def cpu_s(self) -> dict[str, float]:
        """What the brokers have used so far."""
        return {
            "primary": cpu_seconds(self.home.pid),
            "secondary": cpu_seconds(self.away.pid),
        }


@contextmanager
def site(backlog_queues: int = BACKLOG_QUEUES) -> Iterator[Site]:
    """Two brokers with empty queues, each a process of its own with its data on disk."""
    with tempfile.TemporaryDirectory(prefix="bench-drain-") as directory:
        nodes: list[TwinbusNode] = []
        try:
            for name in ("home", "away"):
                # Made one after the other: each takes a port that is free at that moment.
                nodes.append(TwinbusNode(Path(directory) / name, name))
                nodes[-1].start()
            home, away = nodes
            queues = tuple(f"home/x-servicebus-transfer/{n}" for n in range(backlog_queues))
            for destination in DESTINATIONS:
                home.create_queue(destination)
            for queue in queues:
                away.create_queue(queue)
            yield Site(home, away, queues)
        finally:
            for node in nodes:
                node.stop()


async def _fill(
    node: TwinbusNode,
    queues: Sequence[str],
    messages: int,
    size_bytes: int,
    has_sessions: bool,
    poison_every: int,
) -> None:
    from twinbus.common.connection_string import parse_connection_string
    from twinbus.drivers.amqp import AmqpDriver
    from twinbus.encoding.transit import OutgoingMessage

    session = SESSION if has_sessions else None
    templates = [_template(destination, size_bytes, session) for destination in DESTINATIONS]
    poison = (b"p" * ID_BYTES).join(_template(DESTINATIONS[-1], size_bytes, None))
    driver = AmqpDriver.from_connection_string(parse_connection_string(node.connection_string))

    async def fill_one(number: int, queue: str) -> None:
        sender = driver.sender(queue)
        share = messages // len(queues)
        for first in range(number * share, (number + 1) * share, BATCH):
            batch = [
                OutgoingMessage(front + b"%0*d" % (ID_BYTES, at) + back)
                for at in range(first, first + BATCH)
                for front, back in (templates[at % len(templates)],)
            ]
            if poison_every and first % poison_every == 0:
                batch.append(OutgoingMessage(poison))
            await sender.send(batch, timeout_s=60)

    try:
        await asyncio.gather(*(fill_one(number, queue) for number, queue in enumerate(queues)))
    finally:
        await driver.close()


def _template(destination: str, size_bytes: int, session: str | None) -> tuple[bytes, bytes]:
    """What stands before and behind the id of a message that waits for ``destination``."""
    from twinbus.encoding.brokered_message import encode_message
    from twinbus.encoding.envelope import alias
    from twinbus.message import BrokeredMessage

    marker = "i" * ID_BYTES
    message = BrokeredMessage(bytes(size_bytes), message_id=marker, session_id=session)
    front, found, back = alias(encode_message(message, now_ms=0), destination).partition(
        marker.encode()
    )
    assert found
    return front, back
