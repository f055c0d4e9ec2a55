"""Benchmarks of a broker under load: publish rates, acknowledgement latency, drain rate.

Every round uses a fresh queue and ends with a count; each system gets one short unmeasured round
first. RabbitMQ has no batch publish: its rate for batches is its pipelined rate, best window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from verification.benchmarks.report import Figure
from verification.benchmarks.run import BATCH, KILOBYTE, Bench, fill, settle
from verification.benchmarks.systems import System
from verification.benchmarks.workers import DrainJob, PacedJob, Ran, WindowedJob, run_together

WARM_UP_S: Final = 1.0
DRAIN_MESSAGES: Final = 200_000
P99_MS_MAX: Final = 50.0
PERCENTS: Final = (50.0, 90.0, 99.0, 99.9, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is published: size, messages per delivery, publishers at once."""

    size_bytes: int = KILOBYTE
    batch: int = 1
    publishers: int = 1


SINGLE: Final = Load()
SINGLE_SMALL: Final = Load(size_bytes=250)
BATCHES: Final = Load(batch=BATCH)
BATCHES_SMALL: Final = Load(batch=BATCH, size_bytes=250)
TWO_PUBLISHERS: Final = Load(publishers=2)


def publish(system: System, load: Load, duration_s: float) -> Ran:
    """Publish into a fresh queue, counted afterwards."""
    queue = system.new_queue()
    batch = load.batch if system.has_batches else 1
    job = WindowedJob(
        queue=queue, size_bytes=load.size_bytes, batch=batch,
        window=system.window(batch), duration_s=duration_s,
    )  # fmt: skip
    ran = run_together([job] * load.publishers, system.pid)
    settle(system, queue, ran.messages)
    return ran


def durable(bench: Bench, name: str, load: Load, ratio_min: float) -> list[Figure]:
    """How many messages a second are acknowledged as durable."""
    for system in bench.systems():
        publish(system, load, WARM_UP_S)

    def rate(system: System) -> float:
        ran = publish(system, load, bench.duration_s)
        bench.note_cost(name, system, ran)
        return ran.rate_per_s

    rates = bench.interleave(name, rate)
    if load == SINGLE:
        bench.note_single_rates(rates)
    kept = None if rates.ours is None else rates.ours >= ratio_min * rates.peer
    return [
        Figure(
            name=name, value=rates.ours, unit="msg/s", peer=bench.peer.name,
            peer_value=rates.peer, wanted=f"at least {ratio_min:g} times", promise_kept=kept,
        )
    ]  # fmt: skip


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


def ack_p99_at_half_load(bench: Bench, name: str) -> list[Figure]:
    """How long an acknowledgement takes at half of the rate that each broker can carry."""
    if not bench.single_rates:
        durable(bench, "durable_single_pipelined", SINGLE, 0)
    details: dict[str, Any] = bench.raw.setdefault(name, {})
    details["paced_at_per_s"] = {system: rate / 2 for system, rate in bench.single_rates.items()}

    def p99_ms(system: System) -> float:
        points = _paced_percentiles_ms(
            system, bench.single_rates[system.name] / 2, bench.duration_s
        )
        details.setdefault("percentiles", []).append({"system": system.name, **points})
        return points["p99_ms"]

    p99s = bench.interleave(name, p99_ms)
    return [
        Figure(
            name=name, value=p99s.ours, unit="ms", peer=bench.peer.name, peer_value=p99s.peer,
            wanted=f"under {P99_MS_MAX:.0f} ms",
            promise_kept=None if p99s.ours is None else p99s.ours < P99_MS_MAX,
        )
    ]  # fmt: skip


def _paced_percentiles_ms(system: System, rate: float, duration_s: float) -> dict[str, float]:
    queue = system.new_queue()
    job = PacedJob(queue=queue, size_bytes=KILOBYTE, rate_per_s=rate, duration_s=duration_s)
    ran = run_together([job], system.pid)
    settle(system, queue, ran.messages)
    latencies_s = ran.sents[0].latencies_s
    return {f"p{at:g}_ms": 1000 * percentile(latencies_s, at) for at in PERCENTS}


def drain_once(system: System) -> Ran:
    """Receive and settle, pipelined, from a queue filled before."""
    queue = system.new_queue()
    fill(system, queue, DRAIN_MESSAGES)
    job = DrainJob(queue=queue, expected=DRAIN_MESSAGES, window=system.window_drain)
    ran = run_together([job], system.pid)
    settle(system, queue, 0)
    return ran


def drain(bench: Bench, name: str) -> list[Figure]:
    """How many messages a second a consumer receives and settles."""

    def rate(system: System) -> float:
        ran = drain_once(system)
        bench.note_cost(name, system, ran)
        return ran.rate_per_s

    rates = bench.interleave(name, rate)
    return [
        Figure(
            name=name, value=rates.ours, unit="msg/s", peer=bench.peer.name,
            peer_value=rates.peer, wanted="no promise yet",
        )
    ]  # fmt: skip
