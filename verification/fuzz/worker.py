"""One process of a run: it takes the targets in turn and tells its parent what it saw.

Rule 1: half of the inputs are new ones from the grammar, half are changed ones of the corpus or of
        the slowest so far.
Rule 2: every input is judged by its CPU time and its errors; every MEMORY_EVERYth, each that
        reached new lines and each that is among the slowest is weighed too.
Rule 3: a cause is told once, with the smallest input for it, and counted from then on. What does
        not break its promise again by then is noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from verification.fuzz import corpus
from verification.fuzz.coverage import Coverage, Line
from verification.fuzz.findings import Finding, describe
from verification.fuzz.oracle import (
    Execution,
    Target,
    Verdict,
    cpu_ns_max,
    execute,
    judge_cpu,
    judge_error,
    judge_memory,
    size_max,
    size_of,
    weigh,
)
from verification.fuzz.targets import make_target

SIZES: Final = (64, 300, 1 << 10, 4 << 10, 16 << 10, 63 << 10, 255 << 10, 1023 << 10)
# Small inputs reach lines, large ones reach limits; these are the chances of the sizes above.
WEIGHTS: Final = (10, 14, 14, 10, 8, 6, 2, 1)
SLICE_S: Final = 1.0
LOADING_SHARE: Final = 0.5
COVERAGE_EVERY: Final = 8
COVERAGE_BYTES_MAX: Final = 8 << 10
MEMORY_EVERY: Final = 20
SLOWEST_KEPT: Final = 4
# Of shorter inputs the factor says only what an empty connection takes.
FACTOR_BYTES_MIN: Final = 4_096
CORPUS_IN_MEMORY_MAX: Final = 2_000
# One call that takes too long has as many hot spots as there are inputs; a few are enough.
CAUSES_PER_CALL_MAX: Final = 3
MINIMISE_S: Final = 5.0


@dataclass(slots=True)
class Figures:
    """What was seen of one target so far."""

    executions: int = 0
    inputs_1_mib: int = 0
    """Those of more than 900 KB."""
    lines: int = 0
    corpus: int = 0
    slowest_ms: float = 0.0
    """The longest call that is within the limits, or was found to be noise."""
    slowest_share: float = 0.0
    """The same as a share of what is allowed to that input."""
    memory_factor: float = 0.0
    """The most bytes for each byte of an input, of those above the floor's size."""
    weighed: int = 0
    noise: int = 0
    """Executions that seemed too slow once, and not again."""
    findings: int = 0


@dataclass(slots=True)
class Kept:
    """An input for the corpus."""

    target: str
    data: bytes
    lines: frozenset[Line] = field(default=frozenset())


class TargetRun:
    """One target in one process."""

    def __init__(
        self, target: Target, random: Random, on_finding: Callable[[Finding], None]
    ) -> None:
        self._target = target
        self._random = random
        self._on_finding = on_finding
        self._coverage = Coverage()
        self._inputs: list[bytes] = []
        self._slowest: dict[int, list[tuple[float, bytes]]] = {}
        self._causes: set[tuple[str, str]] = set()
        self.figures = Figures()
        self.kept: list[Kept] = []
        """Inputs that reached lines which nothing in the corpus reaches."""
        self.minimise_s = MINIMISE_S
        self._knows_corpus = True

    def load(self, inputs: list[bytes], stop_s: float = math.inf) -> None:
        """Begin with what earlier runs have kept, as far as the time until then allows."""
        for data in inputs:
            if time.monotonic() > stop_s:
                self._knows_corpus = False
            else:
                self.try_input(data, look=True)
            self._keep_in_memory(data)
        self.kept.clear()

    def run(self, seconds: float, executions_max: int | None = None) -> None:
        """Try inputs for a while."""
        stop_s = time.monotonic() + seconds
        count = 0
        while time.monotonic() < stop_s and (executions_max is None or count < executions_max):
            count += 1
            data = self._next_input()
            is_looked_at = len(data) <= COVERAGE_BYTES_MAX and count % COVERAGE_EVERY == 0
            self.try_input(data, look=is_looked_at)

    def _next_input(self) -> bytes:
        random, target = self._random, self._target
        if not self._inputs or random.random() < 0.5:
            size = random.choices(SIZES, WEIGHTS)[0]
            data = target.generate(random, size)
        else:
            data = target.mutate(random, self._chosen(), random.choice(self._inputs))
        return data[: size_max(target, data)]

    def _chosen(self) -> bytes:
        if self._slowest and self._random.random() < 0.25:
            return self._random.choice(self._slowest[self._random.choice(list(self._slowest))])[1]
        return self._random.choice(self._inputs)

    def try_input(self, data: bytes, *, look: bool = False) -> None:
        """Execute an input and judge it."""
        figures = self.figures
        figures.executions += 1
        figures.inputs_1_mib += len(data) > 900_000
        execution = execute(self._target, data)
        is_slow = self._judge(data, execution)
        lines = self._look(data) if look else frozenset()
        if lines:
            self._keep(data, lines)
        if lines or is_slow or figures.executions % MEMORY_EVERY == 0:
            self._weigh(data)

    def _judge(self, data: bytes, execution: Execution) -> bool:
        """Whether it is among the slowest of its size, or worse."""
        if execution.error is not None:
            self._found(data, judge_error(self._target, execution.error))
            return False
        meter = execution.meter
        allowed_ns = cpu_ns_max(self._target, data)
        if meter.slowest_ns > allowed_ns:
            verdict = judge_cpu(self._target, data, meter)
            if verdict is not None:
                self._found(data, verdict)
                return True
            self.figures.noise += 1
            return False
        share = meter.slowest_ns / allowed_ns
        if share > self.figures.slowest_share:
            self.figures.slowest_share = share
            self.figures.slowest_ms = meter.slowest_ns / 1e6
        return self._keep_slow(data, share)

    def _keep_slow(self, data: bytes, share: float) -> bool:
        size_class = len(data).bit_length() // 3
        best = self._slowest.setdefault(size_class, [])
        if len(best) >= SLOWEST_KEPT and share <= best[-1][0]:
            return False
        best.append((share, data))
        best.sort(key=lambda each: -each[0])
        del best[SLOWEST_KEPT:]
        return True

    def _look(self, data: bytes) -> frozenset[Line]:
        found = frozenset(self._coverage.new_lines(lambda: execute(self._target, data)))
        self.figures.lines = len(self._coverage)
        return found

    def _weigh(self, data: bytes) -> None:
        self.figures.weighed += 1
        meter = weigh(self._target, data)
        verdict = judge_memory(self._target, data, meter)
        if verdict is not None:
            self._found(data, verdict)
        elif len(data) >= FACTOR_BYTES_MIN:
            self.figures.memory_factor = max(
                self.figures.memory_factor, meter.peak_bytes / size_of(self._target, data)
            )

    def _keep(self, data: bytes, lines: frozenset[Line]) -> None:
        self._keep_in_memory(data)
        if self._knows_corpus:
            self.kept.append(Kept(self._target.name, data, lines))

    def _keep_in_memory(self, data: bytes) -> None:
        if len(self._inputs) >= CORPUS_IN_MEMORY_MAX:
            self._inputs[self._random.randrange(len(self._inputs))] = data
        else:
            self._inputs.append(data)
        self.figures.corpus = len(self._inputs)

    def _found(self, data: bytes, verdict: Verdict) -> None:
        self.figures.findings += 1
        key = (verdict.kind, verdict.cause)
        if key in self._causes:
            return
        self._causes.add(key)
        if self._count_alike(verdict) > CAUSES_PER_CALL_MAX:
            return
        finding = describe(self._target, data, verdict, self.minimise_s)
        if finding is None:
            self._causes.discard(key)
            self.figures.findings -= 1
            self.figures.noise += 1
            return
        self._on_finding(finding)

    def _count_alike(self, verdict: Verdict) -> int:
        """How many causes there are by now in the same call."""
        call = verdict.cause.partition(":")[0]
        return sum(
            kind == verdict.kind and cause.partition(":")[0] == call for kind, cause in self._causes
        )

    def slowest_inputs(self) -> list[bytes]:
        """The slowest of each size, for the corpus."""
        return [best[0][1] for best in self._slowest.values() if best]


class Worker:
    """All targets of one process, a second each in turn."""

    def __init__(self, names: tuple[str, ...], seed: int, tell: Callable[[object], None]) -> None:
        self._tell = tell
        self._runs = {
            name: TargetRun(make_target(name), Random(f"{seed} {name}"), tell) for name in names
        }

    def run(self, seconds: float) -> None:
        stop_s = time.monotonic() + seconds
        for number, (name, run) in enumerate(self._runs.items(), 1):
            # A machine that is busy takes minutes for the corpus: new inputs have half of the time.
            part_s = seconds * LOADING_SHARE * number / len(self._runs)
            run.load(corpus.load(name), stop_s - seconds + part_s)
            self._tell_figures()
        # Every target has one slice, however late it is: a run that left one out would say nothing.
        for run in self._runs.values():
            run.run(SLICE_S)
            self._tell_figures()
        while time.monotonic() < stop_s:
            for run in self._runs.values():
                run.run(min(SLICE_S, stop_s - time.monotonic()))
                self._tell_figures()
        for name, run in self._runs.items():
            for kept in run.kept:
                self._tell(kept)
            for data in run.slowest_inputs():
                self._tell(Kept(name, data))

    def _tell_figures(self) -> None:
        self._tell({name: each.figures for name, each in self._runs.items()})
