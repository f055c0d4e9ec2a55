"""The paired client next to the SDK's own, and how soon it has found the backlog.

    paired_aio_send      one task sends 1 KB messages one after the other, to a healthy primary
    paired_sync_send     the same without an event loop, through the drop-in and (_twinbus)
                         through the clients of ``twinbus``
    failover_first_ack   kill -9 of the primary under load, failover interval 0, the SDK on both
                         sides: from the kill to the first acknowledgement of a backlog queue
    failover_many_sends  1, 50 and 500 sends at once while the primary refuses all of them, both
                         drivers: from the first error to the diversion, and to the last
                         acknowledgement

The clients take turns of a fraction of a second in one process: what the machine does in the
meantime happens to all of them. The figure is the median of the turns' ratios.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from verification.benchmarks.processes import BenchError
from verification.benchmarks.report import Figure
from verification.benchmarks.run import KILOBYTE, Bench, progress
from verification.benchmarks.twinbus_node import TwinbusNode

if TYPE_CHECKING:
    from twinbus.pairing.client.factory_options import DriverName

QUEUE: Final = "orders"
TURN_S: Final = 0.4
TURNS: Final = 40
WARM_UP_S: Final = 1.0
RATIO_MIN: Final = 0.97
FIRST_ACK_S_MAX: Final = 0.3
KILLS: Final = 50
DIVERTED_S_MAX: Final = 0.3
AT_ONCE: Final = (1, 50, 500)
DRIVERS: Final[tuple[DriverName, ...]] = ("amqp", "servicebus")
FAILOVERS: Final = 5
SENDERS: Final = 4
# A load that saw no acknowledgement of the backlog for so long has failed.
ACK_WAIT_S_MAX: Final = 30.0


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
    return [_figure(bench, name, plain, paired, "the plain SDK, aio", RATIO_MIN)]


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
    """Paired against plain, all sync."""
    if bench.ours is None:
        return []
    with two_nodes() as (home, away):
        plain, dropped_in, brokered = _sync_turns(home, away)
    peer = "the plain SDK, sync"
    return [
        _figure(bench, name, plain, dropped_in, peer, RATIO_MIN),
        _figure(bench, f"{name}_twinbus", plain, brokered, peer, RATIO_MIN),
    ]


def _sync_turns(home: TwinbusNode, away: TwinbusNode) -> list[list[float]]:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    import twinbus
    from twinbus.azure import PairedServiceBusClient, Pairing

    pairing = Pairing(secondary=away.connection_string)
    with (
        ServiceBusClient.from_connection_string(home.connection_string) as stock,
        PairedServiceBusClient.from_connection_string(
            home.connection_string, pairing=pairing
        ) as ours,
        twinbus.MessagingFactory.from_connection_string(home.connection_string) as factory,
        twinbus.MessagingFactory.from_connection_string(away.connection_string) as secondary,
        twinbus.NamespaceManager.from_connection_string(away.connection_string) as manager,
        stock.get_queue_sender(QUEUE) as plain,
        ours.get_queue_sender(QUEUE) as paired,
    ):
        factory.pair_namespace(twinbus.SendAvailabilityPairedNamespaceOptions(manager, secondary))
        client, body = factory.create_queue_client(QUEUE), bytes(KILOBYTE)
        ways: list[Callable[[], object]] = [
            lambda: plain.send_messages(ServiceBusMessage(body), timeout=60),
            lambda: paired.send_messages(ServiceBusMessage(body), timeout=60),
            lambda: client.send(twinbus.BrokeredMessage(body), timeout=60),
        ]

        def turn(send: Callable[[], object], seconds: float) -> float:
            count, began_s = 0, time.perf_counter()
            while time.perf_counter() - began_s < seconds:
                send()
                count += 1
            return count / (time.perf_counter() - began_s)

        for send in ways:
            turn(send, WARM_UP_S)
        rates: list[list[float]] = [[] for _ in ways]
        for number in range(TURNS):
            for step in range(len(ways)):
                at = (number + step) % len(ways)
                rates[at].append(turn(ways[at], TURN_S))
        return rates


def _figure(
    bench: Bench,
    name: str,
    plain: list[float],
    paired: list[float],
    peer: str,
    ratio_min: float,
) -> Figure:
    bench.raw[name] = {"plain": plain, "paired": paired}
    ratio = statistics.median(ours / theirs for ours, theirs in zip(paired, plain, strict=True))
    peer_value = statistics.median(plain)
    progress(f"{name}: plain {peer_value:,.0f}/s, paired {ratio:.3f} of that")
    return Figure(
        name=name, value=ratio * peer_value, unit="msg/s", peer=peer, peer_value=peer_value,
        wanted=f"at least {ratio_min:g} times", promise_kept=ratio >= ratio_min,
    )  # fmt: skip


def failover_first_ack(bench: Bench, name: str) -> list[Figure]:
    """The worst of many kills, through each way into a pair in turn."""
    if bench.ours is None:
        return []
    took_s: dict[str, list[float]] = {way: [] for way in _WAYS}
    with two_nodes() as (home, away):
        for number in range(KILLS):
            way = list(_WAYS)[number % len(_WAYS)]
            took_s[way].append(_WAYS[way](home, away))
            progress(f"{name}, kill {number + 1} of {KILLS}, {way}: {took_s[way][-1]:.3f} s")
            home.start()
    bench.raw[name] = {"seconds": took_s}
    worst_s = max(max(each) for each in took_s.values())
    return [
        Figure(
            name=name, value=worst_s, unit="s", peer="the promise", peer_value=FIRST_ACK_S_MAX,
            wanted=f"at most {FIRST_ACK_S_MAX:g} s", promise_kept=worst_s <= FIRST_ACK_S_MAX,
        )
    ]  # fmt: skip


def failover_many_sends(bench: Bench, name: str) -> list[Figure]:
    """The worst of a few failovers, for each driver and number of sends."""
    if bench.ours is None:
        return []
    diverted_s: dict[str, list[float]] = {}
    last_s: dict[str, list[float]] = {}
    with two_nodes() as (home, away):
        for driver, count in itertools.product(DRIVERS, AT_ONCE):
            key = f"{driver}_{count}"
            took = [asyncio.run(_fail_over(home, away, driver, count)) for _ in range(FAILOVERS)]
            diverted_s[key], last_s[key] = map(list, zip(*took, strict=True))
            progress(
                f"{name}, {key}: diverted {max(diverted_s[key]):.3f} s after the first error, "
                f"the last acknowledged after {max(last_s[key]):.3f} s"
            )
    bench.raw[name] = {"diverted_s": diverted_s, "last_s": last_s}
    worst_s = max(max(each) for each in diverted_s.values())
    return [
        Figure(
            name=name, value=worst_s, unit="s", peer="the promise", peer_value=DIVERTED_S_MAX,
            wanted=f"at most {DIVERTED_S_MAX:g} s", promise_kept=worst_s <= DIVERTED_S_MAX,
        ),
        *(
            Figure(
                name=f"{name}_last_{key}", value=max(each), unit="s", peer="", peer_value=None,
                wanted="none",
            )
            for key, each in last_s.items()
        ),
    ]  # fmt: skip


async def _fail_over(
    home: TwinbusNode, away: TwinbusNode, driver: DriverName, count: int
) -> tuple[float, float]:
    """From the first error to the diversion, and to the last acknowledgement."""
    from twinbus.aio import (
        BrokeredMessage,
        MessagingFactory,
        NamespaceManager,
        SendAvailabilityPairedNamespaceOptions,
    )
    from twinbus.failover.events import Diverted, Suspected

    text, at_s = away.connection_string, dict[type, float]()
    async with (
        MessagingFactory.from_connection_string(home.connection_string, driver=driver) as primary,
        MessagingFactory.from_connection_string(text, driver=driver) as secondary,
        NamespaceManager.from_connection_string(text) as manager,
    ):
        await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(
                manager,
                secondary,
                failover_interval=0,
                on_event=lambda told: at_s.setdefault(type(told.event), told.event.at_s),
            )
        )
        sender = primary.create_message_sender(QUEUE)
        await sender.send(BrokeredMessage(bytes(KILOBYTE)))
        home.cannot_send(QUEUE)
        try:
            await asyncio.gather(
                *(sender.send(BrokeredMessage(bytes(KILOBYTE))) for _ in range(count))
            )
            ended_s = time.monotonic()
        finally:
            home.all_well()
    first_s = at_s[Suspected]
    return at_s[Diverted] - first_s, ended_s - first_s


class _Load:
    """Sends that go on through a kill, and when the backlog took the first of them."""

    def __init__(self, is_diverted: Callable[[], bool]) -> None:
        self._is_diverted = is_diverted
        self.killed_s = float("inf")
        self.first_ack_s: float | None = None

    def kill(self, home: TwinbusNode) -> None:
        self.killed_s = time.monotonic()
        home.kill()

    def acknowledged(self) -> bool:
        """A send has returned; whether it is time to stop."""
        if self.first_ack_s is None and self.killed_s < float("inf") and self._is_diverted():
            self.first_ack_s = time.monotonic()
        return self.first_ack_s is not None or time.monotonic() > self.killed_s + ACK_WAIT_S_MAX

    @property
    def took_s(self) -> float:
        if self.first_ack_s is None:
            raise BenchError("no send was acknowledged by the backlog after the kill")
        return self.first_ack_s - self.killed_s


async def _aio_load(load: _Load, home: TwinbusNode, send: Callable[[], Awaitable[object]]) -> float:
    async def sends() -> None:
        while True:
            await send()
            if load.acknowledged():
                return

    tasks = [asyncio.create_task(sends()) for _ in range(SENDERS)]
    await asyncio.sleep(WARM_UP_S)
    await asyncio.to_thread(load.kill, home)
    await asyncio.gather(*tasks)
    return load.took_s


def _by_factory(home: TwinbusNode, away: TwinbusNode) -> float:
    from twinbus.aio import (
        BrokeredMessage,
        MessagingFactory,
        NamespaceManager,
        SendAvailabilityPairedNamespaceOptions,
    )

    async def run() -> float:
        text = away.connection_string
        async with (
            MessagingFactory.from_connection_string(
                home.connection_string, driver="servicebus"
            ) as primary,
            MessagingFactory.from_connection_string(text, driver="servicebus") as secondary,
            NamespaceManager.from_connection_string(text) as manager,
        ):
            await primary.pair_namespace(
                SendAvailabilityPairedNamespaceOptions(manager, secondary, failover_interval=0)
            )
            sender = primary.create_message_sender(QUEUE)
            load = _Load(lambda: primary.health(QUEUE).is_diverted)
            return await _aio_load(
                load, home, lambda: sender.send(BrokeredMessage(bytes(KILOBYTE)))
            )

    return asyncio.run(run())


def _by_drop_in_aio(home: TwinbusNode, away: TwinbusNode) -> float:
    from azure.servicebus import ServiceBusMessage

    from twinbus.azure.aio import PairedServiceBusClient, Pairing

    async def run() -> float:
        async with (
            PairedServiceBusClient.from_connection_string(
                home.connection_string, pairing=Pairing(secondary=away.connection_string)
            ) as client,
            client.get_queue_sender(QUEUE) as sender,
        ):
            load = _Load(lambda: client.messaging_factory.health(QUEUE).is_diverted)
            return await _aio_load(
                load, home, lambda: sender.send_messages(ServiceBusMessage(bytes(KILOBYTE)))
            )

    return asyncio.run(run())


def _by_drop_in_sync(home: TwinbusNode, away: TwinbusNode) -> float:
    from azure.servicebus import ServiceBusMessage

    from twinbus.azure import PairedServiceBusClient, Pairing

    with (
        PairedServiceBusClient.from_connection_string(
            home.connection_string, pairing=Pairing(secondary=away.connection_string)
        ) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        load = _Load(lambda: client.messaging_factory.health(QUEUE).is_diverted)

        def sends() -> None:
            while True:
                sender.send_messages(ServiceBusMessage(bytes(KILOBYTE)))
                if load.acknowledged():
                    return

        threads = [threading.Thread(target=sends) for _ in range(SENDERS)]
        for thread in threads:
            thread.start()
        time.sleep(WARM_UP_S)
        load.kill(home)
        for thread in threads:
            thread.join()
    return load.took_s


_WAYS: Final[Mapping[str, Callable[[TwinbusNode, TwinbusNode], float]]] = {
    "twinbus.aio": _by_factory,
    "twinbus.azure.aio": _by_drop_in_aio,
    "twinbus.azure": _by_drop_in_sync,
}
