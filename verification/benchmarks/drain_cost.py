"""What a message costs the processors when the syphon on Spark brings it home.

    syphon_cost_1m_vs_10k, ..._100k_vs_10k   does it grow with the backlog?
    syphon_cost_1m_vs_100k                   and where the fixed part weighs little?
    syphon_cost_10_queues_vs_1               does it grow with the number of backlog queues?

A cost is the sum of the JVM, all Python processes and both brokers, on a warm query, in messages
of 250 B. CPU time is steadier than a rate when the machine is shared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

from verification.benchmarks.drain import Drained, drain_once, warm_syphon
from verification.benchmarks.drain_site import site
from verification.benchmarks.report import Figure
from verification.benchmarks.run import Bench, progress

SIZE_BYTES: Final = 250
# How often each is measured: the fixed part of a batch weighs most in a small one.
BACKLOGS: Final = {"10k": (10_000, 3), "100k": (100_000, 3), "1m": (1_000_000, 1)}
QUEUES: Final = (1, 10)
MESSAGES_QUEUES: Final = 100_000
RATIO_MAX: Final = 1.3

Measure = Callable[[int, int], Drained]


def scenario(bench: Bench, name: str) -> list[Figure]:
    """The same warm query through all of it."""
    if bench.ours is None:
        return []
    with site() as where, warm_syphon(where) as syphon:

        def measure(messages: int, queues: int) -> Drained:
            busy = bench.note_busy(name)
            drained = drain_once(where, syphon, messages, SIZE_BYTES, queues=queues)
            progress(f"{name}, {messages:,} from {queues} queues: {drained}{busy}")
            return drained

        by_backlog = _by_backlog(measure)
        by_queues = _by_queues(measure, bench.rounds)
    bench.raw.setdefault(name, {}).update(backlog=by_backlog, queues=by_queues)
    small = by_backlog["10k"]
    return [
        *(
            _figure(f"{name}_{label}_vs_10k", cost, "itself with 10 k", small)
            for label, cost in by_backlog.items()
            if label != "10k"
        ),
        _figure(f"{name}_1m_vs_100k", by_backlog["1m"], "itself with 100 k", by_backlog["100k"]),
        _figure(f"{name}_10_queues_vs_1", by_queues[10], "itself with 1 queue", by_queues[1]),
    ]


def _by_backlog(measure: Measure) -> dict[str, float]:
    return {
        label: statistics.median(measure(messages, 10).cpu_us_all for _ in range(times))
        for label, (messages, times) in BACKLOGS.items()
    }


def _by_queues(measure: Measure, rounds: int) -> dict[int, float]:
    costs: dict[int, list[float]] = {queues: [] for queues in QUEUES}
    for _ in range(rounds):
        for queues in QUEUES:
            costs[queues].append(measure(MESSAGES_QUEUES, queues).cpu_us_all)
    return {queues: statistics.median(found) for queues, found in costs.items()}


def _figure(name: str, cost: float, peer: str, peer_cost: float) -> Figure:
    return Figure(
        name=name, value=cost, unit="CPU us/message", peer=peer, peer_value=peer_cost,
        wanted=f"ratio at most {RATIO_MAX:g}", promise_kept=cost <= RATIO_MAX * peer_cost,
    )  # fmt: skip
