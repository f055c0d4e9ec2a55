"""What one input may cost, and whether it did cost more.

    with the target:  meter.call("ingest", ingest, payload, ...)   each piece that holds the loop
    afterwards:       verdict = judge(target, data)                None, or what was broken

Rule 1: CPU is the time of this thread in the longest single call that a target measures.
Rule 2: memory is the peak of what Python allocated after ``meter.begin()``.
Rule 3: figures are those of the reference machine: the fastest of some repetitions, divided by how
        much slower this machine was in the best moment between them. Both are the least of several,
        so that a moment in which others used the machine makes no input slow, and excuses none.
Rule 4: a single call that runs for WATCHDOG_S is interrupted; it has failed whatever the machine
        does. An execution that takes EXECUTION_S_MAX in many short calls is given up, which is no
        failure.
Rule 5: a machine that is busy for longer than a judgement takes can still be wrong about an input.
        So a finding is judged again later, and at the end of a run in a process of its own
        (findings.py, run.py).
"""

from __future__ import annotations

import cProfile
import gc
import logging
import pstats
import signal
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Protocol

from verification.fuzz import speed

KIB: Final = 1 << 10
MIB: Final = 1 << 20

CPU_NS_MAX: Final = 5_000_000
CPU_NS_MAX_STRANGER: Final = 1_000_000
INPUT_BYTES_MAX: Final = MIB
INPUT_BYTES_MAX_STRANGER: Final = 64 * KIB

MEMORY_FACTOR_MAX: Final = 64
# What an empty connection, session and link of the broker take, with tables of their first sizes.
MEMORY_BYTES_FLOOR: Final = 256 * KIB

REPEATS: Final = 5
# What is only a little above the limit is repeated more often.
REPEATS_MAX: Final = 20
CLEARLY_ABOVE: Final = 1.5
# So far above the limit no noise is: one repetition is enough.
FAR_ABOVE: Final = 20
# A conversation of thousands of calls takes seconds; then so many repetitions have to do.
JUDGE_S_MAX: Final = 20.0
WATCHDOG_S: Final = 5.0
EXECUTION_S_MAX: Final = 60.0


class HeldTooLong(BaseException):
    """The watchdog interrupted a call; no handler of the product may take it for its own."""


class GivenUp(BaseException):
    """An execution took too long, although no call of it did."""


class Meter:
    """Measures the calls of one execution."""

    def __init__(self) -> None:
        self.slowest_ns = 0
        self.slowest = ""
        """The name of the longest call."""
        self.total_ns = 0
        self.peak_bytes = 0
        self.peak = ""
        """The name of the call in which memory was highest."""
        self.profile: cProfile.Profile | None = None
        """Where the time of the calls goes, if somebody wants to know."""
        self._base_bytes = 0
        self._is_tracing = False
        self._began_ns: int | None = None
        """When the call began that is under way."""

    def begin(self) -> None:
        """What was allocated so far belongs to the target, not to the input."""
        if tracemalloc.is_tracing():
            self._is_tracing = True
            self._base_bytes = tracemalloc.get_traced_memory()[0]

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call something that holds the loop until it returns."""
        # One call may be made inside of another: a peer that is cut while it is read from.
        outer_ns, self._began_ns = self._began_ns, time.thread_time_ns()
        try:
            if self._is_tracing:
                return self._traced(name, function, *args)
            if self.profile is not None:
                return self.profile.runcall(function, *args)
            return self._timed(name, function, *args)
        finally:
            self._began_ns = outer_ns

    @property
    def held_s(self) -> float:
        """How long the call takes by now that is under way."""
        return 0.0 if self._began_ns is None else (time.thread_time_ns() - self._began_ns) / 1e9

    def _timed(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        began = time.thread_time_ns()
        try:
            return function(*args)
        finally:
            spent = time.thread_time_ns() - began
            self.total_ns += spent
            if spent > self.slowest_ns:
                self.slowest_ns, self.slowest = spent, name

    def _traced(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        tracemalloc.reset_peak()
        try:
            return function(*args)
        finally:
            peak = tracemalloc.get_traced_memory()[1] - self._base_bytes
            if peak > self.peak_bytes:
                self.peak_bytes, self.peak = peak, name


class Target(Protocol):
    """Something that takes bytes from outside."""

    name: str
    documented: tuple[type[BaseException], ...]
    """What it may raise."""

    def generate(self, random: Any, size: int) -> bytes:
        """An input of about that size."""

    def mutate(self, random: Any, data: bytes, other: bytes) -> bytes:
        """A changed input, perhaps with parts of another."""

    def is_stranger(self, data: bytes) -> bool:
        """Whether it comes from a peer without a token: less may be said, in less time."""

    def execute(self, data: bytes, meter: Meter) -> None:
        """Give the input to the product."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A promise that an input broke."""

    kind: str
    """cpu, memory or exception."""
    cause: str
    """What findings with the same reason have in common."""
    figure: float
    """Milliseconds, or bytes for each byte of the input."""
    allowed: float
    detail: str = ""

    def __str__(self) -> str:
        if self.kind == "cpu":
            return f"{self.figure:.2f} ms of CPU in one piece, {self.allowed:.2f} allowed"
        if self.kind == "memory":
            return f"{self.figure:.0f} bytes for each byte, {self.allowed:.0f} allowed"
        return self.detail


def size_max(target: Target, data: bytes) -> int:
    return INPUT_BYTES_MAX_STRANGER if target.is_stranger(data) else INPUT_BYTES_MAX


def cpu_ns_max(target: Target, data: bytes) -> int:
    return CPU_NS_MAX_STRANGER if target.is_stranger(data) else CPU_NS_MAX


def size_of(target: Target, data: bytes) -> int:
    """What had to be sent for this input, where that is more than its own bytes."""
    measure = getattr(target, "size_of", len)
    return int(measure(data))


def memory_bytes_max(size: int) -> int:
    return max(MEMORY_FACTOR_MAX * size, MEMORY_BYTES_FLOOR)


@dataclass(slots=True)
class Execution:
    """One execution: its figures, and the error that was not expected."""

    meter: Meter
    error: BaseException | None = None
    outcome: str = ""
    """How it ended, for people and for the corpus: the class of a documented error."""


def execute(target: Target, data: bytes, meter: Meter | None = None) -> Execution:
    """Run one input."""
    execution = Execution(meter or Meter())
    _LOG.errors.clear()
    try:
        with _watched(execution.meter):
            target.execute(data, execution.meter)
    except target.documented as error:
        execution.outcome = type(error).__name__
    except GivenUp:
        execution.outcome = "given up"
    except (Exception, HeldTooLong) as error:
        execution.error = error
    if _LOG.errors and execution.error is None:
        execution.error = _LOG.errors[0]
    return execution


def weigh(target: Target, data: bytes) -> Meter:
    """Run one input for its memory alone: tracing makes everything slower."""
    tracemalloc.start()
    try:
        return execute(target, data).meter
    finally:
        tracemalloc.stop()


def judge_error(target: Target, error: BaseException) -> Verdict:
    """An error that no peer may cause."""
    if isinstance(error, HeldTooLong):
        cause = _place_of(error)
        return Verdict("cpu", f"held: {cause}", WATCHDOG_S * 1000, CPU_NS_MAX / 1e6)
    text = "".join(traceback.format_exception(error))
    kind = type(error).__name__
    return Verdict("exception", f"{kind} {_place_of(error)}", 0, 0, text)


def judge_cpu(target: Target, data: bytes, first: Meter) -> Verdict | None:
    """Whether an execution that seemed slow is slow: again, without the collector (rule 3)."""
    allowed_ns = cpu_ns_max(target, data)
    if first.slowest_ns <= allowed_ns:
        return None
    stop_s = time.monotonic() + JUDGE_S_MAX
    fastest_ns, name, slowness = float("inf"), "", float("inf")
    with _no_collector():
        for repeat in range(1, REPEATS_MAX + 1):
            slowness = min(slowness, speed.slowness(1))
            execution = execute(target, data)
            if isinstance(execution.error, HeldTooLong):
                return judge_error(target, execution.error)
            if execution.meter.slowest_ns < fastest_ns:
                fastest_ns, name = execution.meter.slowest_ns, execution.meter.slowest
            if fastest_ns <= allowed_ns:
                return None
            if fastest_ns > FAR_ABOVE * allowed_ns or time.monotonic() > stop_s:
                break
            figure_ns = fastest_ns / slowness
            # A single look at the machine's speed may have met a busy moment and excuse too much.
            if repeat >= REPEATS and not allowed_ns < figure_ns <= CLEARLY_ABOVE * allowed_ns:
                break
    figure_ns = fastest_ns / slowness
    if figure_ns <= allowed_ns:
        return None
    if slowness >= speed.FACTOR_MAX and fastest_ns <= FAR_ABOVE * allowed_ns:
        return None  # Nothing can be told from such a machine.
    return Verdict("cpu", f"{name}: {_hot_spot(target, data)}", figure_ns / 1e6, allowed_ns / 1e6)


def judge_memory(target: Target, data: bytes, meter: Meter) -> Verdict | None:
    size = max(1, size_of(target, data))
    allowed = memory_bytes_max(size)
    if meter.peak_bytes <= allowed:
        return None
    again = weigh(target, data)
    if again.peak_bytes <= allowed:
        return None
    return Verdict("memory", again.peak, again.peak_bytes / size, allowed / size)


def judge(target: Target, data: bytes) -> Verdict | None:
    """Everything about one input."""
    execution = execute(target, data)
    if execution.error is not None:
        return judge_error(target, execution.error)
    return judge_cpu(target, data, execution.meter) or judge_memory(
        target, data, weigh(target, data)
    )


# --- causes --------------------------------------------------------------------------------------


def _place_of(error: BaseException) -> str:
    """The last two places of ours that the error went through."""
    places = [
        f"{frame.filename.rpartition('twinbus/')[2]}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "twinbus/" in frame.filename
    ]
    return " > ".join(places[-2:])


def _hot_spot(target: Target, data: bytes) -> str:
    """The function of ours in which most of the time goes."""
    meter = Meter()
    meter.profile = profile = cProfile.Profile()
    execute(target, data, meter)
    found = [
        (own_s, f"{place[0].rpartition('twinbus/')[2]}:{place[2]}")
        for place, (_calls, _count, own_s, _all_s, _callers) in pstats.Stats(profile).stats.items()
        if "twinbus/" in place[0] and "verification" not in place[0]
    ]
    return max(found, default=(0.0, "nowhere of ours"))[1]


# --- surroundings --------------------------------------------------------------------------------


@contextmanager
def _no_collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _watched(meter: Meter) -> Iterator[None]:
    """Interrupt what takes too long, by the clock of the CPU."""
    began_s = time.process_time()

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        held_s = meter.held_s
        if held_s >= WATCHDOG_S:
            raise HeldTooLong
        if time.process_time() - began_s >= EXECUTION_S_MAX:
            raise GivenUp
        signal.setitimer(signal.ITIMER_PROF, max(WATCHDOG_S - held_s, WATCHDOG_S / 10))

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, WATCHDOG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class _ErrorLog(logging.Handler):
    """Errors that the product caught and only wrote down: mistakes of ours, all of them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])


_LOG: Final = _ErrorLog()
_LOGGERS: Final = ("twinbus", "asyncio", "uvicorn")


def listen_to_the_log() -> None:
    """Take the product's log: tracebacks are findings, and nothing else is shown."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.propagate = False
        if _LOG not in logger.handlers:
            logger.addHandler(_LOG)


def leave_the_log() -> None:
    """Give the log back, for programs that go on."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.propagate = True
        logger.removeHandler(_LOG)
