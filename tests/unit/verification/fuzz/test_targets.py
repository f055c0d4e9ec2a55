"""Every target of ``make fuzz`` takes generated, mutated and kept inputs."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from verification.fuzz import corpus, oracle
from verification.fuzz.conversations import Who
from verification.fuzz.coverage import Coverage
from verification.fuzz.findings import Finding
from verification.fuzz.in_memory import FILLING, HANDSHAKES, MemoryBroker
from verification.fuzz.minimise import minimise
from verification.fuzz.oracle import HeldTooLong, Target, execute, size_max
from verification.fuzz.run import Summary, grow
from verification.fuzz.targets import NAMES, make_target
from verification.fuzz.worker import Figures, Kept, TargetRun, Worker

EXECUTIONS = 40


@pytest.fixture(params=NAMES)
def target(request: pytest.FixtureRequest) -> Target:
    return make_target(request.param)


def fine(target: Target, data: bytes) -> str:
    """How an input ended, which was documented."""
    execution = execute(target, data)
    assert execution.error is None, f"{target.name}: {data[:200]!r}"
    return execution.outcome


def test_small_inputs_end_as_documented(target: Target) -> None:
    random = Random(7)
    outcomes = {fine(target, target.generate(random, size)) for size in (60, 400, 2_000) * 12}
    assert "" in outcomes, "no input was taken: the generator makes nothing that is right"


def test_mutated_inputs_end_as_documented(target: Target) -> None:
    random = Random(8)
    data, other = target.generate(random, 300), target.generate(random, 300)
    for _ in range(EXECUTIONS):
        data = target.mutate(random, data, other)[:4_000]
        assert not isinstance(execute(target, data).error, HeldTooLong)


def test_an_empty_input_is_an_input(target: Target) -> None:
    fine(target, b"")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 10, 63 << 10, 255 << 10, 1023 << 10])
@pytest.mark.parametrize("name", ["decoder", "engine", "broker", "ingest", "envelope"])
def test_generators_reach_every_size(name: str, size: int) -> None:
    target, random = make_target(name), Random(9)
    made = [target.generate(random, size) for _ in range(30)]
    tenants = [data for data in made if not target.is_stranger(data)]
    assert max(map(len, tenants)) >= 0.9 * size
    for data in made:
        if target.is_stranger(data):
            assert len(data) < 8 * size_max(target, data)


@pytest.mark.slow
def test_the_corpus_is_replayed_without_surprise(target: Target) -> None:
    """What earlier runs have kept is documented behaviour today as well."""
    inputs = corpus.load(target.name)
    assert inputs, f"the corpus of {target.name} is empty"
    for data in inputs:
        fine(target, data)


def test_the_corpus_is_small() -> None:
    sizes = [path.stat().st_size for path in corpus.CORPUS.rglob("*.z")]
    assert sum(sizes) < 1_000_000


def test_the_corpus_grows_by_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CORPUS", tmp_path)
    monkeypatch.setattr(corpus.save, "__defaults__", (tmp_path,))
    one, two = ("a.py", 1), ("a.py", 2)
    kept = [
        Kept("sas", b"long and the same", frozenset({one})),
        Kept("sas", b"short", frozenset({one})),
        Kept("sas", b"other", frozenset({one, two})),
        Kept("sas", b"slow"),
    ]
    assert grow(kept) == 3
    assert sorted(corpus.load("sas", tmp_path)) == [b"other", b"short", b"slow"]
    assert grow(kept) == 0, "nothing is kept twice"


def test_a_run_of_a_target_keeps_inputs_that_reach_new_lines() -> None:
    found: list[Finding] = []
    run = TargetRun(make_target("sas"), Random(3), found.append)
    run.run(30, executions_max=300)
    assert run.figures.executions == 300
    assert run.figures.weighed >= 15
    assert run.kept
    assert run.figures.lines > 50
    assert not found


def test_a_busy_machine_does_not_spend_its_time_on_the_corpus() -> None:
    """What was not tried is changed all the same; what is new to the corpus cannot be told."""
    run = TargetRun(make_target("sas"), Random(3), lambda finding: None)
    run.load([b"one", b"two"], stop_s=0.0)
    assert run.figures.executions == 0
    assert run.figures.corpus == 2
    run.run(30, executions_max=50)
    assert run.figures.executions == 50
    assert run.kept == []


def test_every_target_has_an_input_however_late_it_is() -> None:
    told: list[object] = []
    Worker(("sas", "decoder"), 1, told.append).run(0.0)
    figures = [each for each in told if isinstance(each, dict)][-1]
    assert all(figures[name].executions for name in ("sas", "decoder"))


def test_coverage_tells_new_lines_once() -> None:
    target, coverage = make_target("sas"), Coverage()
    data = target.generate(Random(1), 100)
    assert coverage.new_lines(lambda: execute(target, data))
    assert not coverage.new_lines(lambda: execute(target, data))


def test_an_input_is_minimised() -> None:
    data = bytes(2_000) + b"needle" + bytes(3_000)
    assert minimise(data, lambda shorter: b"needle" in shorter, 5) == b"needle"


def test_a_tenant_of_the_memory_broker_has_its_token_and_its_messages() -> None:
    broker = MemoryBroker()
    filler = broker.connect()
    filler.say(FILLING)
    broker.run()
    for who in (Who.SENDER, Who.LISTENER, Who.MANAGER):
        line = broker.connect()
        line.say(HANDSHAKES[who])
        broker.run()
        assert line.peer.authorization.has_token
    stranger = broker.connect()
    stranger.say(HANDSHAKES[Who.OPENED])
    broker.run()
    assert not stranger.peer.authorization.has_token
    queue = broker.namespace.catalogue.find("orders")
    assert queue is not None
    assert queue.active_count == 40


def test_a_callback_of_the_memory_broker_is_measured() -> None:
    target = make_target("broker")
    execution = execute(target, bytes((Who.OPENED,)) + b"\x00\x00\x00\x08\x02\x00\x00\x00")
    assert execution.meter.slowest in ("data_received", "connection_lost")
    assert 0 < execution.meter.slowest_ns <= execution.meter.total_ns


def test_a_finding_is_saved_with_the_command_that_replays_it(tmp_path: Path) -> None:
    verdict = oracle.Verdict("cpu", "take: somewhere", 12.5, 5)
    finding = Finding("ingest", verdict, b"data", 10)
    path = finding.save(tmp_path)
    assert path.read_bytes() == b"data"
    told = path.with_suffix(".txt").read_text()
    assert "12.50 ms of CPU in one piece, 5.00 allowed" in told
    assert f"--target ingest --replay {path}" in told


def test_the_summary_adds_up_what_the_processes_told() -> None:
    summary = Summary(("sas",))
    summary.hear(0, {"sas": Figures(executions=10, slowest_ms=0.5, lines=7)})
    summary.hear(1, {"sas": Figures(executions=5, slowest_ms=0.9, lines=9)})
    whole = summary.of("sas")
    assert (whole.executions, whole.slowest_ms, whole.lines) == (15, 0.9, 9)
    finding = Finding("sas", oracle.Verdict("cpu", "x", 2, 1), b"", 0)
    assert summary.hear(0, finding) is finding
    assert summary.hear(1, finding) is None, "another process has told it"
    assert "sas" in summary.table()
