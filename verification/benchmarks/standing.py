"""Benchmarks of a broker with a standing queue: resident memory, and coming back after kill -9.

Each size gets a broker of its own with empty data, filled once, killed, started again and counted.

    fill -> resident memory -> kill -9 -> start -> first message -> resident memory -> count
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from verification.benchmarks.processes import resident_mb, wait_until_quiet
from verification.benchmarks.report import Figure
from verification.benchmarks.run import Bench, fill, progress
from verification.benchmarks.systems import System, seconds_until_served

TEN_THOUSAND: Final = 10_000
MILLION: Final = 1_000_000
RESTART_S_MAX: Final = 10.0
MEMORY_RATIO_MAX: Final = 1.10


@dataclass(frozen=True, slots=True)
class Standings:
    resident_mb: float
    restart_s: float
    resident_restarted_mb: float


def stand(system: System, messages: int) -> Standings:
    """Fill a started system, kill it, start it again, and count what it kept."""
    queue = system.new_queue()
    fill(system, queue, messages)
    before_mb = resident_mb(system.pid)
    system.kill()
    restart_s = seconds_until_served(system, queue)
    wait_until_quiet(system.pid)
    after_mb = resident_mb(system.pid)
    system.check_count(queue, messages)
    system.drop(queue)
    wait_until_quiet(system.pid)
    return Standings(before_mb, restart_s, after_mb)


def our_standing(bench: Bench, messages: int) -> Standings | None:
    """Measured once per run and size, although two benchmarks ask for it."""
    if bench.ours is None:
        return None
    known: dict[str, dict[str, float]] = bench.raw.setdefault("standing", {})
    key = f"{bench.ours.name}, {messages} messages"
    if key not in known:
        system = bench.fresh_ours(f"standing-{messages}")
        system.start()
        try:
            known[key] = asdict(stand(system, messages))
        finally:
            system.stop()
        progress(f"{key}: {known[key]}")
    return Standings(**known[key])


def resident_memory(bench: Bench, name: str) -> list[Figure]:
    """The same broker with 10 k and with 1 M queued messages, before and after a restart."""
    small, large = our_standing(bench, TEN_THOUSAND), our_standing(bench, MILLION)
    if small is None or large is None:
        return []
    return [
        _memory(name, large.resident_mb, small.resident_mb),
        _memory(f"{name}_restarted", large.resident_restarted_mb, small.resident_restarted_mb),
    ]


def _memory(name: str, large_mb: float, small_mb: float) -> Figure:
    return Figure(
        name=name, value=large_mb, unit="MiB with 1 M", peer="itself with 10 k",
        peer_value=small_mb, wanted=f"ratio at most {MEMORY_RATIO_MAX:g}",
        promise_kept=large_mb <= MEMORY_RATIO_MAX * small_mb,
    )  # fmt: skip


def restart_1m(bench: Bench, name: str) -> list[Figure]:
    """Seconds from the start of a killed broker with 1 M messages to the first one received."""
    ours = our_standing(bench, MILLION)
    peer = stand(bench.peer, MILLION)
    bench.raw.setdefault("standing", {})[bench.peer.name] = asdict(peer)
    progress(f"{bench.peer.name}, {MILLION} messages: {peer}")
    return [
        Figure(
            name=name, value=ours.restart_s if ours else None, unit="s", peer=bench.peer.name,
            peer_value=peer.restart_s, wanted=f"at most {RESTART_S_MAX:.0f} s",
            promise_kept=ours.restart_s <= RESTART_S_MAX if ours else None,
        )
    ]  # fmt: skip
