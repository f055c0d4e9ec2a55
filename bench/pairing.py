"""The paired client next to the SDK's own, and how soon it has found the backlog.

    paired_aio_send      one task sends 1 KB messages one after the other, to a healthy primary
    paired_sync_send     the same without an event loop
    failover_first_ack   kill -9 of the primary under load, failover interval 0: from the kill to
                         the first acknowledgement of a backlog queue

The two clients take turns of a fraction of a second in one process: what the machine does in the
meantime happens to both. The figure is the median of the turns' ratios.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.processes import BenchError
from bench.report import Figure
from bench.run import KILOBYTE, Bench, progress
from bench.twinbus_node import TwinbusNode

QUEUE: Final = "orders"
TURN_S: Final = 0.4
TURNS: Final = 40
WARM_UP_S: Final = 1.0
AIO_RATIO_MIN: Final = 0.97
FIRST_ACK_S_MAX: Final = 1.0
KILLS: Final = 5


@contextmanager
def two_nodes() -> Iterator[tuple[TwinbusNode, TwinbusNode]]:
    """A primary and a secondary, each a process of its own, with the queue made."""
    with tempfile.TemporaryDirectory(prefix="bench-pair-") as directory:
        nodes: list[TwinbusNode] = []
        try:
            for name in ("home", "away"):
                # Made one after the other: each takes a port that is free at that moment.
                nodes.append(TwinbusNode(Path(directory) / name, name))
                nodes[-1].start()
            home, away = nodes
            home.create_queue(QUEUE)
            yield home, away
        finally:
            for node in nodes:
                node.stop()


def aio_send(bench: Bench, name: str) -> list[Figure]:
    """Paired against plain, both async."""
    if bench.ours is None:
        return []
    with two_nodes() as (home, away):
        plain, paired = asyncio.run(_aio_turns(home, away))
    return [_figure(bench, name, plain, paired, "the plain SDK, aio", AIO_RATIO_MIN)]


async def _aio_turns(home: TwinbusNode, away: TwinbusNode) -> tuple[list[float], list[float]]:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusClient

    from twinbus.azure.aio import PairedServiceBusClient, Pairing

    pairing = Pairing(secondary=away.connection_string)
    async with (
        ServiceBusClient.from_connection_string(home.connection_string) as stock,
        PairedServiceBusClient.from_connection_string(
            home.connection_string, pairing=pairing
        ) as ours,
        stock.get_queue_sender(QUEUE) as plain,
        ours.get_queue_sender(QUEUE) as paired,
    ):
        body = bytes(KILOBYTE)

        def turn(sender: Any) -> Callable[[float], Awaitable[float]]:
            async def send(seconds: float) -> float:
                count, began_s = 0, time.perf_counter()
                while time.perf_counter() - began_s < seconds:
                    # As applications do; the SDK sends nothing without a time-out of its own.
                    await sender.send_messages(ServiceBusMessage(body), timeout=60)
                    count += 1
                return count / (time.perf_counter() - began_s)

            return send

        turns = [turn(plain), turn(paired)]
        for each in turns:
            await each(WARM_UP_S)
        rates: list[list[float]] = [[], []]
        for number in range(TURNS):
            for at in (0, 1) if number % 2 else (1, 0):
                rates[at].append(await turns[at](TURN_S))
        return rates[0], rates[1]


def sync_send(bench: Bench, name: str) -> list[Figure]:
    """Paired against plain, both sync: the cost of the door to the loop is in it."""
    if bench.ours is None:
        return []
    with two_nodes() as (home, away):
        plain, paired = _sync_turns(home, away)
    return [_figure(bench, name, plain, paired, "the plain SDK, sync", None)]


def _sync_turns(home: TwinbusNode, away: TwinbusNode) -> tuple[list[float], list[float]]:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    from twinbus.azure import PairedServiceBusClient, Pairing

    pairing = Pairing(secondary=away.connection_string)
    with (
        ServiceBusClient.from_connection_string(home.connection_string) as stock,
        PairedServiceBusClient.from_connection_string(
            home.connection_string, pairing=pairing
        ) as ours,
        stock.get_queue_sender(QUEUE) as plain,
        ours.get_queue_sender(QUEUE) as paired,
    ):
        body = bytes(KILOBYTE)

        def send(sender: Any, seconds: float) -> float:
            count, began_s = 0, time.perf_counter()
            while time.perf_counter() - began_s < seconds:
                sender.send_messages(ServiceBusMessage(body), timeout=60)
                count += 1
            return count / (time.perf_counter() - began_s)

        senders = (plain, paired)
        for sender in senders:
            send(sender, WARM_UP_S)
        rates: list[list[float]] = [[], []]
        for number in range(TURNS):
            for at in (0, 1) if number % 2 else (1, 0):
                rates[at].append(send(senders[at], TURN_S))
        return rates[0], rates[1]


def _figure(
    bench: Bench,
    name: str,
    plain: list[float],
    paired: list[float],
    peer: str,
    ratio_min: float | None,
) -> Figure:
    bench.raw[name] = {"plain": plain, "paired": paired}
    ratio = statistics.median(ours / theirs for ours, theirs in zip(paired, plain, strict=True))
    peer_value = statistics.median(plain)
    progress(f"{name}: plain {peer_value:,.0f}/s, paired {ratio:.3f} of that")
    return Figure(
        name=name, value=ratio * peer_value, unit="msg/s", peer=peer, peer_value=peer_value,
        wanted="no promise" if ratio_min is None else f"at least {ratio_min:g} times",
        promise_kept=None if ratio_min is None else ratio >= ratio_min,
    )  # fmt: skip


def failover_first_ack(bench: Bench, name: str) -> list[Figure]:
    """The worst of several kills."""
    if bench.ours is None:
        return []
    took_s = []
    for number in range(1, KILLS + 1):
        with two_nodes() as (home, away):
            took_s.append(asyncio.run(_first_ack_s(home, away)))
        progress(f"{name}, kill {number} of {KILLS}: {took_s[-1]:.3f} s")
    bench.raw[name] = {"seconds": took_s}
    worst_s = max(took_s)
    return [
        Figure(
            name=name, value=worst_s, unit="s", peer="the promise", peer_value=FIRST_ACK_S_MAX,
            wanted=f"at most {FIRST_ACK_S_MAX:g} s", promise_kept=worst_s <= FIRST_ACK_S_MAX,
        )
    ]  # fmt: skip


async def _first_ack_s(home: TwinbusNode, away: TwinbusNode) -> float:
    from twinbus.aio import (
        BrokeredMessage,
        MessagingFactory,
        NamespaceManager,
        SendAvailabilityPairedNamespaceOptions,
    )

    text = away.connection_string
    async with (
        MessagingFactory.from_connection_string(home.connection_string) as primary,
        MessagingFactory.from_connection_string(text) as secondary,
        NamespaceManager.from_connection_string(text) as manager,
    ):
        await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(manager, secondary, failover_interval=0)
        )
        sender = primary.create_message_sender(QUEUE)
        acknowledged_s: list[tuple[float, bool]] = []
        is_over = asyncio.Event()

        async def load() -> None:
            while not is_over.is_set():
                await sender.send(BrokeredMessage(bytes(KILOBYTE)))
                acknowledged_s.append((time.monotonic(), primary.health(QUEUE).is_diverted))

        tasks = [asyncio.create_task(load()) for _ in range(4)]
        await asyncio.sleep(1.0)
        killed_s = time.monotonic()
        await asyncio.to_thread(home.kill)
        await asyncio.sleep(3.0)
        is_over.set()
        await asyncio.gather(*tasks)
    diverted = [at_s for at_s, is_diverted in acknowledged_s if is_diverted and at_s > killed_s]
    if not diverted:
        raise BenchError("no send was acknowledged by the backlog after the kill")
    return diverted[0] - killed_s
