"""Inputs that broke a promise, and how to see it again.

findings/<target>-<kind>-<digest>.bin     the smallest input that was found
findings/<target>-<kind>-<digest>.txt     what it did

Rule 1: what is told broke its promise twice, some seconds apart: when it was seen, and when the
        time for a smaller input is over. What did not was the machine's doing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from verification.fuzz import corpus
from verification.fuzz.minimise import minimise
from verification.fuzz.oracle import (
    Target,
    Verdict,
    cpu_ns_max,
    execute,
    judge,
    judge_memory,
    weigh,
)

FINDINGS: Final = Path(__file__).parent / "findings"


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with its input."""

    target: str
    verdict: Verdict
    data: bytes
    seen_bytes: int
    """How long the input was that was seen first."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.target, self.verdict.kind, self.verdict.cause

    def save(self, root: Path = FINDINGS) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        name = f"{self.target}-{self.verdict.kind}-{corpus.digest_of(self.data)}"
        path = root / f"{name}.bin"
        path.write_bytes(self.data)
        (root / f"{name}.txt").write_text(
            f"{self.target}: {self.verdict}\n{self.verdict.cause}\n{len(self.data)} bytes, first "
            f"seen with {self.seen_bytes}\n{self.replay(path)}\n\n{self.verdict.detail}"
        )
        return path

    def replay(self, path: Path) -> str:
        return f"python -m verification.fuzz --target {self.target} --replay {path}"


def describe(target: Target, data: bytes, verdict: Verdict, time_s_max: float) -> Finding | None:
    """The finding with the smallest input that can be found in that time; None if the input keeps
    its promise now (rule 1)."""

    def still_breaks(shorter: bytes) -> bool:
        execution = execute(target, shorter)
        if verdict.kind == "exception":
            return type(execution.error).__name__ == verdict.cause.partition(" ")[0]
        if verdict.kind == "memory":
            return judge_memory(target, shorter, weigh(target, shorter)) is not None
        # It stays well above the limit, so that it can be seen again on another day.
        allowed_ns = max(1.2 * cpu_ns_max(target, shorter), verdict.figure * 0.5e6)
        again = execution.meter
        for _ in range(2):
            if again.slowest_ns <= allowed_ns:
                return False
            again = execute(target, shorter).meter
        return again.slowest_ns > allowed_ns

    began_s = time.monotonic()
    smallest = minimise(data, still_breaks, time_s_max)
    if verdict.kind == "exception":
        # An error is no matter of speed: it is told, also if it needed what came before it.
        return Finding(target.name, verdict, smallest, len(data))
    time.sleep(max(0.0, began_s + time_s_max - time.monotonic()))
    for shown in dict.fromkeys((smallest, data)):
        again = judge(target, shown)
        if again is not None and again.kind == verdict.kind:
            # The cause stays that of the input as it was seen: a smaller one may hide it.
            figure = max(again.figure, verdict.figure)
            verdict = replace(verdict, detail=again.detail, figure=figure)
            return Finding(target.name, verdict, shown, len(data))
    return None
