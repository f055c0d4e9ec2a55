"""One run of the benchmarks: the systems, the rounds, and everything that was measured.

Rule: rounds alternate (ours, peer, ours, peer, …) and the figure is the median, because a machine
      drifts more within a minute than two brokers differ.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from verification.benchmarks.processes import machine_busy_share, wait_until_quiet
from verification.benchmarks.systems import System
from verification.benchmarks.workers import QueueAccess, Ran, WindowedJob, run_together

KILOBYTE: Final = 1024
BATCH: Final = 100

# Above this share the figures are not those of a quiet machine.
BUSY_SHARE_MAX: Final = 0.1

# Longer than any fill takes: the number of messages ends it, not the clock.
FILL_S_MAX: Final = 600.0


def progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclass(slots=True, kw_only=True)
class Bench:
    ours: System | None
    """None when only the peer is measured."""
    fresh_ours: Callable[[str], System]
    """A further broker of ours with empty data, not yet started."""
    peer: System
    rounds: int
    duration_s: float
    raw: dict[str, Any] = field(default_factory=dict)
    """Every round by benchmark name, for the raw file."""
    single_rates: dict[str, float] = field(default_factory=dict)
    """Single pipelined rate by system name, once measured: the half-load benchmark needs it."""

    def systems(self) -> list[System]:
        return [system for system in (self.ours, self.peer) if system is not None]

    def interleave(self, name: str, measure: Callable[[System], float]) -> Medians:
        """Measure every system ``rounds`` times in turn."""
        rounds: dict[str, list[float]] = {system.name: [] for system in self.systems()}
        for number in range(1, self.rounds + 1):
            for system in self.systems():
                busy = self.note_busy(name)
                value = measure(system)
                rounds[system.name].append(value)
                progress(
                    f"{name}, round {number} of {self.rounds}: {system.name} {value:,.2f}{busy}"
                )
        self.raw.setdefault(name, {})["rounds"] = rounds
        medians = {system: statistics.median(values) for system, values in rounds.items()}
        return Medians(medians.get(self.ours.name) if self.ours else None, medians[self.peer.name])

    def note_busy(self, name: str) -> str:
        """Record what others use of the machine before a round; say so when it matters."""
        busy = machine_busy_share()
        self.raw.setdefault(name, {}).setdefault("busy_before_round", []).append(round(busy, 2))
        return f" (others used {busy:.0%} of the machine)" if busy > BUSY_SHARE_MAX else ""

    def note_cost(self, name: str, system: System, ran: Ran) -> None:
        costs = self.raw.setdefault(name, {}).setdefault("broker_cpu_us_per_message", {})
        costs.setdefault(system.name, []).append(round(ran.broker_cpu_us_per_message, 1))

    def note_single_rates(self, rates: Medians) -> None:
        self.single_rates[self.peer.name] = rates.peer
        if self.ours is not None and rates.ours is not None:
            self.single_rates[self.ours.name] = rates.ours


@dataclass(frozen=True, slots=True)
class Medians:
    ours: float | None
    peer: float


def settle(system: System, queue: QueueAccess, expected: int) -> None:
    """End a round: the count is right, the queue is gone, the broker rests."""
    system.check_count(queue, expected)
    system.drop(queue)
    wait_until_quiet(system.pid)


def fill(system: System, queue: QueueAccess, messages: int) -> None:
    """Put exactly ``messages`` messages of 1 KB into a queue, the fastest way the broker has."""
    batch = BATCH if system.has_batches else 1
    job = WindowedJob(
        queue=queue, size_bytes=KILOBYTE, batch=batch, window=system.window(batch),
        duration_s=FILL_S_MAX, deliveries_max=messages // batch,
    )  # fmt: skip
    run_together([job], system.pid)
