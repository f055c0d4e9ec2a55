"""The syphon on Spark brings a backlog home, beside RabbitMQ's Shovel and the loop by hand.

200,000 messages from ten backlog queues to five destinations, by a warm query: from the release of
the held query to the last message home. Both brokers are durable processes. All movers settle a
message after the other side has confirmed it, run on the same machine, and take turns.

``python -m verification.benchmarks.drain`` measures ours alone; ``--drivers amqp servicebus``
through both drivers, which take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from verification.benchmarks.drain_movers import (
    HAND_S_MIN,
    START_S_MAX,
    HandLoop,
    LocalSyphon,
    Mover,
    SparkSyphon,
)
from verification.benchmarks.drain_site import BACKLOG_QUEUES, DESTINATIONS, Site, site
from verification.benchmarks.processes import BenchError
from verification.benchmarks.report import Figure
from verification.benchmarks.run import KILOBYTE, Bench, progress
from verification.benchmarks.shovel import NAME as SHOVEL
from verification.benchmarks.shovel import Shovel

MESSAGES: Final = 200_000
MESSAGES_WARM_UP: Final = 20_000
MESSAGES_BY_HAND: Final = 50_000
"""More than the loop by hand moves in its time, which is what ends it."""
SIZES: Final = {"200b": 200, "1kb": KILOBYTE}
SHOVEL_RATIO_MIN: Final = 1.5
HAND_RATIO_MIN: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """One backlog that came home."""

    messages: int
    seconds: float
    cpu_us: dict[str, float]
    """CPU microseconds a message: of the mover by kind of process, and of each broker."""

    @property
    def rate_per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us_all(self) -> float:
        return sum(self.cpu_us.values())

    def __str__(self) -> str:
        costs = ", ".join(f"{who} {us:.1f}" for who, us in self.cpu_us.items())
        return f"{self.rate_per_s:,.0f} msg/s; CPU us a message: {costs}"


def drain_once(
    where: Site, mover: Mover, messages: int, size_bytes: int, *, queues: int | None = None
) -> Drained:
    """Fill the backlog while the mover is held, let go, and count until all are home."""
    mover.hold()
    where.clear()
    where.fill(messages, size_bytes, queues=queues)
    return drain(where, mover, messages)


def drain(where: Site, mover: Mover, messages: int) -> Drained:
    """Let a held mover go, and count until so many messages are home."""
    used, brokers_s = mover.used(), where.cpu_s()
    began_s = time.monotonic()
    mover.release()
    ended_s = where.wait_until_home(messages, check=mover.check)
    where.check(messages)
    where.rest()
    cpu_s = mover.used().since(used)
    cpu_s |= {name: after_s - brokers_s[name] for name, after_s in where.cpu_s().items()}
    cpu_us = {who: 1e6 * seconds / messages for who, seconds in cpu_s.items()}
    return Drained(messages=messages, seconds=ended_s - began_s, cpu_us=cpu_us)


@contextmanager
def warm_syphon(where: Site, driver: str = "amqp") -> Iterator[SparkSyphon]:
    """A query that has moved a small backlog."""
    with tempfile.TemporaryDirectory(prefix="bench-syphon-") as directory:
        syphon = SparkSyphon(where, Path(directory))
        where.fill(MESSAGES_WARM_UP // 10, KILOBYTE)
        try:
            syphon.start("--driver", driver)
            where.wait_until_home(MESSAGES_WARM_UP // 10, START_S_MAX, check=syphon.check)
            drain_once(where, syphon, MESSAGES_WARM_UP, KILOBYTE)
            yield syphon
        finally:
            syphon.stop()


def scenario(bench: Bench, name: str) -> list[Figure]:
    """All three movers, both sizes, in turn."""
    if bench.ours is None:
        return []
    rounds = Rounds(bench, name)
    with (
        tempfile.TemporaryDirectory(prefix="bench-shovel-") as directory,
        site() as ours,
        site() as by_hand,
        warm_syphon(ours) as syphon,
    ):
        shovel = Shovel(Path(directory))
        shovel.start()
        try:
            for number in range(1, bench.rounds + 1):
                for label, size_bytes in SIZES.items():
                    busy = bench.note_busy(name)
                    progress(f"{name} {label}, round {number} of {bench.rounds}{busy}")
                    rounds.ours(label, drain_once(ours, syphon, MESSAGES, size_bytes))
                    rounds.peer(SHOVEL, label, shovelled(shovel, MESSAGES, size_bytes))
                    rounds.peer(HandLoop.name, label, moved_by_hand(by_hand, size_bytes))
        finally:
            shovel.stop()
    return rounds.figures()


def shovelled(shovel: Shovel, messages: int, size_bytes: int) -> float:
    """Messages a second over as many queues as ours; a shovel has one source."""
    return shovel.move(
        messages, size_bytes, sources=BACKLOG_QUEUES, destinations=len(DESTINATIONS)
    )  # fmt: skip


def moved_by_hand(where: Site, size_bytes: int) -> float:
    """Messages a second of the loop by hand, in its time."""
    where.clear_all()
    where.fill(MESSAGES_BY_HAND, size_bytes)
    rate, messages, seconds = HandLoop(where).rate_per_s()
    if seconds < HAND_S_MIN:
        raise BenchError(f"the loop by hand was done after {seconds:.0f} s: give it more messages")
    progress(f"{HandLoop.name}: {messages:,} messages in {seconds:.1f} s")
    return rate


class Rounds:
    """What was measured, and the figures of it."""

    def __init__(self, bench: Bench, name: str) -> None:
        self._bench, self._name = bench, name
        self._ours: dict[str, list[Drained]] = {}
        self._peers: dict[tuple[str, str], list[float]] = {}

    def ours(self, label: str, drained: Drained) -> None:
        self._ours.setdefault(label, []).append(drained)
        progress(f"  {SparkSyphon.name}: {drained}")

    def peer(self, peer: str, label: str, rate: float) -> None:
        self._peers.setdefault((peer, label), []).append(rate)
        progress(f"  {peer}: {rate:,.0f} msg/s")

    def figures(self) -> list[Figure]:
        raw = self._bench.raw.setdefault(self._name, {})
        raw["ours"] = {
            label: [{"msg/s": each.rate_per_s, "cpu_us": each.cpu_us} for each in rounds]
            for label, rounds in self._ours.items()
        }
        raw["peers"] = {f"{peer}, {label}": rates for (peer, label), rates in self._peers.items()}
        figures = []
        for label, rounds in self._ours.items():
            figures += [
                self._rate(label, "", SHOVEL, SHOVEL_RATIO_MIN),
                self._rate(label, "_by_hand", HandLoop.name, HAND_RATIO_MIN),
                *self._costs(label, rounds),
            ]
        return figures

    def _rate(self, label: str, suffix: str, peer: str, ratio_min: float) -> Figure:
        ours = statistics.median(each.rate_per_s for each in self._ours[label])
        theirs = statistics.median(self._peers[peer, label])
        return Figure(
            name=f"{self._name}_{label}{suffix}", value=ours, unit="msg/s", peer=peer,
            peer_value=theirs, wanted=f"at least {ratio_min:g} times",
            promise_kept=ours >= ratio_min * theirs,
        )  # fmt: skip

    def _costs(self, label: str, rounds: list[Drained]) -> Iterator[Figure]:
        for who in rounds[0].cpu_us:
            yield Figure(
                name=f"{self._name}_{label}_cpu_{who.lower()}",
                value=statistics.median(each.cpu_us[who] for each in rounds),
                unit="CPU us/message", peer="no peer", peer_value=None, wanted="no promise",
            )  # fmt: skip


# -- alone --------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure our movers alone, without RabbitMQ.")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--size", type=int, default=KILOBYTE)
    parser.add_argument("--queues", type=int, default=BACKLOG_QUEUES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--local", action="store_true", help="the mover without Spark")
    parser.add_argument("--drivers", nargs="+", choices=("amqp", "servicebus"), default=["amqp"])
    options = parser.parse_args()
    with (
        site() as where,
        tempfile.TemporaryDirectory(prefix="bench-local-") as directory,
        ExitStack() as stack,
    ):
        movers: dict[str, Mover] = {}
        for driver in options.drivers:
            if options.local:
                movers[driver] = LocalSyphon(where, Path(directory) / driver, driver)
                stack.callback(movers[driver].stop)
            else:
                where.clear_all()  # What the one before has moved is not the next one's.
                movers[driver] = stack.enter_context(warm_syphon(where, driver))
            movers[driver].hold()
        _alone(where, movers, options)
    return 0


def _alone(where: Site, movers: dict[str, Mover], options: argparse.Namespace) -> None:
    """In turn: a held mover takes nothing of another's backlog."""
    for _ in range(options.rounds):
        for driver, mover in movers.items():
            drained = drain_once(
                where, mover, options.messages, options.size, queues=options.queues
            )
            mover.hold()
            print(f"{driver}: {drained}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
