"""How fast this machine is now, beside the machine that the limits are meant for.

Rule 1: a slower machine has proportionally longer limits; a faster one has no shorter ones.
Rule 2: the workloads are of the kind that decoders do: small calls, slices and numbers in one, many
        new objects in the other. Whoever else uses the machine may slow one of them and not the
        other (a neighbour on the same core, or one that uses the memory); the slower one counts.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Final

ROUNDS: Final = 5
# A machine that is slower than this is busy with something else; nothing can be told from it.
FACTOR_MAX: Final = 8.0

_UINT: Final = struct.Struct(">I")
_DATA: Final = bytes(range(256)) * 16


def calls() -> int:
    """Small calls, slices and numbers: the same work every time."""
    found: dict[int, bytes] = {}
    total = 0
    for pos in range(0, 4_000, 4):
        value = _UINT.unpack_from(_DATA, pos)[0]
        found[value ^ pos] = _DATA[pos : pos + 8]
        total += _step(value, pos)
    return total + len(found)


def _step(value: int, pos: int) -> int:
    return (value >> 3) + pos if value & 1 else value % 7


def objects() -> int:
    """New objects, about a megabyte of them."""
    items = [(number, str(number)) for number in range(OBJECT_COUNT)]
    return len({text: number for number, text in items})


OBJECT_COUNT: Final = 6_000

# CPU time of each workload on the machine of docs/BENCHMARKS.md, the fastest of many.
REFERENCES_NS: Final[dict[Callable[[], int], int]] = {calls: 290_000, objects: 1_010_000}


def measure_ns(workload: Callable[[], int], rounds: int = ROUNDS) -> int:
    """CPU time of a workload: the fastest of some rounds."""
    fastest = 1 << 62
    for _ in range(rounds):
        began = time.thread_time_ns()
        for _ in range(5):
            workload()
        fastest = min(fastest, (time.thread_time_ns() - began) // 5)
    return fastest


def slowness(rounds: int = ROUNDS) -> float:
    """How many times slower than the reference this machine is; at least 1."""
    slowest = max(
        measure_ns(workload, rounds) / reference_ns
        for workload, reference_ns in REFERENCES_NS.items()
    )
    return min(FACTOR_MAX, max(1.0, slowest))
