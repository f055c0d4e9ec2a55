"""The oracle of ``make fuzz`` sees what it is there for: slow, greedy and surprised code (M13)."""

from __future__ import annotations

import logging
import time
from random import Random
from uuid import UUID

import pytest

from verification.fuzz import findings, oracle, speed
from verification.fuzz.findings import Finding, describe
from verification.fuzz.oracle import KIB, HeldTooLong, Meter, Verdict, execute, judge, judge_cpu
from verification.fuzz.targets.base import BaseTarget
from verification.fuzz.worker import TargetRun


class Planted(BaseTarget):
    """A target whose behaviour a test chooses."""

    name = "planted"
    documented = (ValueError,)

    def generate(self, random: Random, size: int) -> bytes:
        return random.randbytes(min(size, 4 * KIB))

    def execute(self, data: bytes, meter: Meter) -> None:
        meter.begin()
        meter.call("take", self.take, data)

    def take(self, data: bytes) -> None:
        """Nothing is wrong with this one."""


class Stranger(Planted):
    def is_stranger(self, data: bytes) -> bool:
        return True


def judge_time(target: BaseTarget, data: bytes) -> Verdict | None:
    """Its CPU alone: memory is counted for the whole process, in which other tests have threads."""
    return judge_cpu(target, data, execute(target, data).meter)


def spin(milliseconds: float) -> None:
    stop_ns = time.thread_time_ns() + milliseconds * 1e6
    while time.thread_time_ns() < stop_ns:
        pass


class SlowDecoder(Planted):
    """A dictionary of keys that all have one hash, as a map of UUIDs once was."""

    def take(self, data: bytes) -> None:
        prime = (1 << 61) - 1
        assert len({UUID(int=number * prime): None for number in range(len(data))}) == len(data)


class MemoryHog(Planted):
    def take(self, data: bytes) -> None:
        self.kept = [bytearray(1_000) for _ in data]


class Surprised(Planted):
    def take(self, data: bytes) -> None:
        if data[:1] == b"\x07":
            raise KeyError("nobody documents this")
        raise ValueError("this one is documented")


class Apologetic(Planted):
    """It catches its own mistake and writes it down."""

    def take(self, data: bytes) -> None:
        try:
            raise KeyError("a mistake of ours")
        except KeyError:
            logging.getLogger("twinbus.broker").exception("a frame could not be handled")


class Endless(Planted):
    def take(self, data: bytes) -> None:
        while True:
            pass


def test_an_input_that_costs_little_is_no_finding() -> None:
    """M13: what is within its limits is not complained about."""
    assert judge(Planted(), b"x" * 1_000) is None


def test_a_slow_decoder_is_found() -> None:
    """M13: colliding keys hold the loop."""
    verdict = judge(SlowDecoder(), b"x" * 1_000)
    assert verdict is not None
    assert verdict.kind == "cpu"
    assert verdict.cause.startswith("take: ")
    assert verdict.figure > verdict.allowed == 5


def test_a_stranger_has_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: 1 ms before a token, 5 ms after it."""
    monkeypatch.setattr(speed, "slowness", lambda _rounds=1: 1.0)

    class Slow(Stranger):
        def take(self, data: bytes) -> None:
            spin(3)

    class SlowTenant(Slow):
        def is_stranger(self, data: bytes) -> bool:
            return False

    verdict = judge(Slow(), b"x")
    assert verdict is not None
    assert verdict.allowed == 1
    assert judge_time(SlowTenant(), b"x") is None


def test_what_is_slow_once_is_noise() -> None:
    class Distracted(Planted):
        count = 0

        def take(self, data: bytes) -> None:
            self.count += 1
            if self.count == 1:
                spin(50)

    target = Distracted()
    assert judge(target, b"x") is None
    assert target.count > 1


def test_what_never_ends_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "WATCHDOG_S", 0.2)
    execution = oracle.execute(Endless(), b"x")
    assert isinstance(execution.error, HeldTooLong)
    verdict = judge(Endless(), b"x")
    assert verdict is not None
    assert verdict.kind == "cpu"


def test_a_memory_hog_is_found() -> None:
    """M13: at most 64 bytes for each byte that was sent, and 256 KiB for the shortest."""
    verdict = judge(MemoryHog(), b"x" * 4_000)
    assert verdict is not None
    assert verdict.kind == "memory"
    assert verdict.figure > 900
    assert judge(MemoryHog(), b"x" * 200) is None, "below the floor"


def test_an_undocumented_error_is_found_and_a_documented_one_is_not() -> None:
    verdict = judge(Surprised(), b"\x07")
    assert verdict is not None
    assert verdict.kind == "exception"
    assert "nobody documents this" in verdict.detail
    assert judge(Surprised(), b"\x08") is None


def test_an_error_that_is_only_written_down_is_found() -> None:
    oracle.listen_to_the_log()
    try:
        verdict = judge(Apologetic(), b"x")
    finally:
        oracle.leave_the_log()
    assert verdict is not None
    assert "a mistake of ours" in verdict.detail


def test_a_run_tells_a_cause_once_with_a_smaller_input() -> None:
    found: list[Finding] = []
    tried = TargetRun(Surprised(), Random(1), found.append)
    tried.minimise_s = 0.5
    for _ in range(3):
        tried.try_input(b"\x07" + bytes(500))
    assert [len(each.data) for each in found] == [1]
    assert tried.figures.findings == 3


def test_a_slower_machine_has_longer_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes 8 ms on a machine of half the speed is no finding."""

    class Eight(Planted):
        def take(self, data: bytes) -> None:
            spin(8)

    monkeypatch.setattr(speed, "slowness", lambda _rounds=1: 2.0)
    assert judge_time(Eight(), b"x") is None
    monkeypatch.setattr(speed, "slowness", lambda _rounds=1: 1.0)
    assert judge_time(Eight(), b"x") is not None


def test_a_busy_moment_does_not_excuse_a_slow_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: one look at the machine's speed that met a busy moment hides nothing."""

    class Twenty(Planted):
        def take(self, data: bytes) -> None:
            spin(20)

    looks = iter([1.0, 6.0])
    monkeypatch.setattr(speed, "slowness", lambda _rounds=1: next(looks, 1.0))
    verdict = judge_time(Twenty(), b"x")
    assert verdict is not None
    assert verdict.figure == pytest.approx(20, rel=0.5)


def test_nothing_is_told_from_a_machine_that_is_far_too_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Sixty(Planted):
        def take(self, data: bytes) -> None:
            spin(60)

    monkeypatch.setattr(speed, "slowness", lambda _rounds=1: speed.FACTOR_MAX)
    assert judge_time(Sixty(), b"x") is None


class Talkative(Planted):
    """Many short calls."""

    def execute(self, data: bytes, meter: Meter) -> None:
        meter.begin()
        while meter.total_ns < 400_000_000:
            meter.call("take", sum, range(30_000))


def test_many_short_calls_are_not_one_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: the watchdog looks at a single call; a long conversation holds nobody."""
    monkeypatch.setattr(oracle, "WATCHDOG_S", 0.1)
    execution = execute(Talkative(), b"x")
    assert execution.error is None
    assert execution.outcome == ""
    assert execution.meter.total_ns >= 400_000_000


def test_an_execution_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "WATCHDOG_S", 0.1)
    monkeypatch.setattr(oracle, "EXECUTION_S_MAX", 0.1)
    execution = execute(Talkative(), b"x")
    assert execution.error is None
    assert execution.outcome == "given up"


class Neighbourly(Planted):
    """Slow while somebody else uses the machine."""

    def __init__(self, busy_s: float) -> None:
        self.calm_at_s = time.monotonic() + busy_s

    def take(self, data: bytes) -> None:
        if time.monotonic() < self.calm_at_s:
            spin(9)


def test_what_is_slow_for_a_while_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: a neighbour who is busy for longer than a judgement takes makes no finding."""
    monkeypatch.setattr(speed, "slowness", lambda _rounds=1: 1.0)
    found: list[Finding] = []
    tried = TargetRun(Neighbourly(busy_s=1.0), Random(1), found.append)
    tried.minimise_s = 1.5
    tried.try_input(bytes(500))
    assert found == []
    assert tried.figures.noise == 1
    assert tried.figures.findings == 0


def test_a_finding_shows_an_input_that_breaks_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """M13: if the smaller input is fast on a second look, the one that was seen is shown."""
    monkeypatch.setattr(speed, "slowness", lambda _rounds=1: 1.0)

    class Slow(Planted):
        def take(self, data: bytes) -> None:
            if len(data) == 500:
                spin(9)

    monkeypatch.setattr(findings, "minimise", lambda data, still_breaks, time_s_max: data[:20])
    target, data = Slow(), bytes(500)
    verdict = judge_time(target, data)
    assert verdict is not None
    finding = describe(target, data, verdict, 1.0)
    assert finding is not None
    assert finding.data == data
