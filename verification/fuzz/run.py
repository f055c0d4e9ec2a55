"""A run: two processes, a line of progress, a table at the end, and the corpus that grew.

Rule 1: the seed chooses the inputs; an input alone is enough to see a finding again.
Rule 2: any finding makes the run fail. One about CPU is confirmed first, when the run is over: in a
        process of its own, on several occasions. The two processes of a run slow each other, and
        so does whatever else the machine does for some seconds.
Rule 3: a target that had no input fails the run, too: nothing was looked at.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from dataclasses import fields
from typing import Any, Final

from verification.fuzz import corpus, speed
from verification.fuzz.findings import Finding
from verification.fuzz.oracle import execute, judge_cpu, listen_to_the_log
from verification.fuzz.targets import make_target
from verification.fuzz.worker import Figures, Kept, Worker

PROGRESS_S: Final = 5.0
# What a worker may take beyond its time: minimising the last finding.
GRACE_S: Final = 120.0
# When an input is judged again, and how long after each other.
OCCASIONS: Final = 5
OCCASION_PAUSE_S: Final = 2.0
CONFIRM_S_MAX: Final = 180.0

Message = tuple[int, Any]


class Summary:
    """What all processes have told."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._figures: dict[int, dict[str, Figures]] = {}
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self.kept: list[Kept] = []

    def hear(self, worker: int, what: Any) -> Finding | None:
        """Take a message; a finding that is new is returned."""
        if isinstance(what, Finding):
            if what.key in self.findings:
                return None
            self.findings[what.key] = what
            return what
        if isinstance(what, Kept):
            self.kept.append(what)
        else:
            self._figures[worker] = what
        return None

    def of(self, name: str) -> Figures:
        """The figures of one target, of all processes together."""
        whole = Figures()
        for figures in self._figures.values():
            each = figures.get(name, Figures())
            for item in fields(Figures):
                merge = _MERGES.get(item.name, _add)
                setattr(
                    whole, item.name, merge(getattr(whole, item.name), getattr(each, item.name))
                )
        return whole

    def progress(self, elapsed_s: float) -> str:
        executions = sum(self.of(name).executions for name in self.names)
        kept = sum(self.of(name).corpus for name in self.names)
        slowest = "  ".join(f"{name} {self.of(name).slowest_ms:.1f}" for name in self.names)
        factor = max(self.of(name).memory_factor for name in self.names)
        return (
            f"{elapsed_s:5.0f} s  {executions:,} executions  {executions / elapsed_s:,.0f}/s  "
            f"corpus {kept}  findings {len(self.findings)}  memory x{factor:.0f}  ms: {slowest}"
        )

    def table(self) -> str:
        head = (
            f"{'target':10}{'executions':>12}{'>900 KB':>9}{'weighed':>9}{'lines':>7}{'corpus':>8}"
            f"{'slowest ms':>12}{'of limit':>10}{'memory':>8}{'noise':>7}{'findings':>10}"
        )
        rows = [head]
        for name in self.names:
            of = self.of(name)
            causes = sum(key[0] == name for key in self.findings)
            rows.append(
                f"{name:10}{of.executions:>12,}{of.inputs_1_mib:>9,}{of.weighed:>9,}{of.lines:>7,}"
                f"{of.corpus:>8,}{of.slowest_ms:>12.2f}{of.slowest_share:>10.0%}"
                f"{f'x{of.memory_factor:.0f}':>8}{of.noise:>7,}{causes:>10,}"
            )
        return "\n".join(rows)


def _add(one: float, other: float) -> float:
    return one + other


_MERGES: Final[dict[str, Any]] = {
    "lines": max,
    "corpus": max,
    "slowest_ms": max,
    "slowest_share": max,
    "memory_factor": max,
}


def run(names: tuple[str, ...], seconds: float, seed: int, workers: int) -> int:
    """Run for a while; 1 if anything was found."""
    factor = speed.slowness()
    print(f"seed {seed}; this machine takes {factor:.2f} times the reference", flush=True)
    summary = Summary(names)
    inbox: multiprocessing.Queue[Message] = multiprocessing.Queue()
    began_s = time.monotonic()
    processes = [
        multiprocessing.Process(target=_work, args=(number, names, seed, seconds, inbox))
        for number in range(workers)
    ]
    for process in processes:
        process.start()
    is_whole = _listen(inbox, summary, processes, began_s, seconds)
    for process in processes:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
        is_whole = is_whole and process.exitcode == 0
    print(f"\n{summary.progress(time.monotonic() - began_s)}\n\n{summary.table()}\n")
    print(f"{grow(summary.kept)} inputs were added to the corpus")
    is_kept = True
    for finding in summary.findings.values():
        is_confirmed = confirm(finding)
        is_kept = is_kept and not is_confirmed
        word = "FOUND" if is_confirmed else "NOT CONFIRMED"
        print(
            f"{word} {finding.target}: {finding.verdict.kind} {finding.verdict.cause}", flush=True
        )
    if not is_whole:
        print("A process of the run ended too early.")
    idle = [name for name in names if not summary.of(name).executions]
    if idle:
        print(f"No input was given to {', '.join(idle)}: the run was too short.")
    return 0 if is_kept and is_whole and not idle else 1


def confirm(finding: Finding) -> bool:
    """Whether an input breaks its promise while nothing else of the run is busy (rule 2)."""
    if finding.verdict.kind != "cpu":
        return True
    process = multiprocessing.Process(target=_confirm, args=(finding.target, finding.data))
    process.start()
    process.join(CONFIRM_S_MAX)
    if process.is_alive():
        process.kill()
        process.join()
    # Whatever else ended the process is a reason to look at the input.
    return process.exitcode != KEPT


KEPT: Final = 3
"""How a process ends that saw the input keep its promise."""


def _confirm(name: str, data: bytes) -> None:
    listen_to_the_log()
    target = make_target(name)
    execute(target, data)  # Whatever is loaded at first use is no cost of the input.
    for _ in range(OCCASIONS):
        if judge_cpu(target, data, execute(target, data).meter) is None:
            os._exit(KEPT)
        time.sleep(OCCASION_PAUSE_S)


def _listen(
    inbox: multiprocessing.Queue[Message],
    summary: Summary,
    processes: list[multiprocessing.Process],
    began_s: float,
    seconds: float,
) -> bool:
    """Hear the processes until all have said that they are done; False if one never does."""
    told_s = began_s
    done = 0
    while done < len(processes):
        now_s = time.monotonic()
        if now_s > began_s + seconds + GRACE_S:
            return False
        if now_s - told_s > PROGRESS_S:
            told_s = now_s
            print(summary.progress(now_s - began_s), flush=True)
        try:
            number, what = inbox.get(timeout=1.0)
        except queue.Empty:
            if all(not process.is_alive() for process in processes):
                return False
            continue
        if what is None:
            done += 1
            continue
        finding = summary.hear(number, what)
        if finding is not None:
            path = finding.save()
            told = str(finding.verdict).strip().splitlines()[-1]
            print(f"SEEN {finding.target}: {told}\n  {finding.verdict.cause}")
            print(f"  {finding.seen_bytes} bytes, {len(finding.data)} after minimising")
            print(f"  {finding.replay(path)}", flush=True)
    return True


def _work(
    number: int,
    names: tuple[str, ...],
    seed: int,
    seconds: float,
    inbox: multiprocessing.Queue[Message],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listen_to_the_log()
    worker = Worker(names, 1_000 * seed + number, lambda what: inbox.put((number, what)))
    worker.run(seconds)
    inbox.put((number, None))
    inbox.close()
    inbox.join_thread()


def grow(kept: list[Kept]) -> int:
    """Add to the corpus what reaches lines that nothing else does, and what was slow."""
    added = 0
    for name in {each.target for each in kept}:
        mine = [each for each in kept if each.target == name]
        seen: set[Any] = set()
        chosen = []
        for each in sorted(mine, key=lambda item: len(item.data)):
            if not each.lines or each.lines - seen:
                seen |= each.lines
                chosen.append(each.data)
        added += corpus.save(name, chosen)
    return added
