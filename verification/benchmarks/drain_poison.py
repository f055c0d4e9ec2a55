"""What is left of the rate of good messages when some that nobody can deliver lie among them.

One of five destinations requires sessions; a message without one is refused there together with
the batch that it came in, found, and dead-lettered in the backlog. Rounds with and without poison
take turns on one warm query.
"""

from __future__ import annotations

import statistics
from typing import Final

from verification.benchmarks.drain import Drained, drain, warm_syphon
from verification.benchmarks.drain_movers import Mover
from verification.benchmarks.drain_site import DESTINATIONS, Site, site
from verification.benchmarks.report import Figure
from verification.benchmarks.run import Bench, progress

MESSAGES: Final = 100_000
SIZE_BYTES: Final = 200
ROUNDS_FACTOR: Final = 3
"""A share of two noisy figures needs more rounds than a figure."""
DENSITIES: Final = {"1_in_1000": (1_000, 0.9), "1_in_100": (100, None)}
"""One poison after so many good messages, and the share that is promised."""


def scenario(bench: Bench, name: str) -> list[Figure]:
    """The same warm query through all of it."""
    if bench.ours is None:
        return []
    found: dict[str, list[Drained]] = {"clean": [], **{label: [] for label in DENSITIES}}
    with site() as where, warm_syphon(where) as syphon:
        where.home.delete_queue(DESTINATIONS[-1])
        where.home.put(f"queues/{DESTINATIONS[-1]}", {"requires_session": True})
        for _ in range(ROUNDS_FACTOR * bench.rounds):
            for label in found:
                busy = bench.note_busy(name)
                every, _share = DENSITIES.get(label, (0, None))
                found[label].append(_drained(where, syphon, every))
                progress(f"{name}, {label}: {found[label][-1]}{busy}")
    bench.raw.setdefault(name, {}).update(
        {
            label: [{"msg/s": each.rate_per_s, "cpu_us": each.cpu_us} for each in rounds]
            for label, rounds in found.items()
        }
    )
    return [_figure(name, label, found) for label in DENSITIES]


def _drained(where: Site, syphon: Mover, poison_every: int) -> Drained:
    syphon.hold()
    where.clear()
    where.fill(MESSAGES, SIZE_BYTES, has_sessions=True, poison_every=poison_every)
    return drain(where, syphon, MESSAGES)


def _figure(name: str, label: str, found: dict[str, list[Drained]]) -> Figure:
    good, clean = (
        statistics.median(each.rate_per_s for each in found[which]) for which in (label, "clean")
    )
    _every, share = DENSITIES[label]
    return Figure(
        name=f"{name}_{label}", value=good, unit="good msg/s", peer="itself without poison",
        peer_value=clean, wanted=f"at least {share:g}" if share else "no promise",
        promise_kept=None if share is None else good >= share * clean,
    )  # fmt: skip
