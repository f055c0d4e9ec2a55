"""``twinbus syphon``, as users run it, on Spark or with --local; its receipts as history.

    program --> JVM --> source runner
                    '-> Python daemon --> workers that move

Rule 1: all readable receipts count, also those of batches that never ended: they were written by
        somebody who knew.
Rule 2: on Spark each part can be killed alone; at the end of a run none of them is left.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil

from twinbus.mover.planning.receipts import ReceiptOutcome
from verification.fault_campaign.cards import JVM, SOURCE, WORKER
from verification.fault_campaign.history import Event
from verification.fault_campaign.plan import PRIMARY, SECONDARY, Plan
from verification.fault_campaign.processes import Child

RECEIPTS_SUFFIX: Final = ".receipts"
CHUNK_COUNT: Final = 200
_DAEMON: Final = "pyspark.daemon"
_SOURCE: Final = "python_streaming_source_runner"


def syphon_command(
    plan: Plan, addresses: Mapping[str, str], receipts: Path, state: Path | None
) -> tuple[list[str], dict[str, str]]:
    """The arguments of the program, and the environment with the keys. ``state`` is for Spark."""
    command = ["syphon", "--output", "json", "--primary-name", PRIMARY]
    command += ["--backlog-queue-count", str(plan.backlog_queues), "--receipts", str(receipts)]
    command += ["--chunk", str(CHUNK_COUNT)]
    command += ["--local"] if state is None else ["--state", str(state)]
    return command, {
        "SERVICEBUS_CONNECTION_STRING": addresses[PRIMARY],
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": addresses[SECONDARY],
    }


class SparkChild(Child):
    """A program with a JVM and what that has started."""

    _seen: list[psutil.Process]

    def family(self) -> list[psutil.Process]:
        """Everybody who lives, the program first; remembered, for nobody may be left behind."""
        found: list[psutil.Process] = []
        if self.is_alive:
            with suppress(psutil.Error):
                head = psutil.Process(self.process.pid)
                found = [head, *head.children(recursive=True)]
        before = getattr(self, "_seen", [])
        self._seen = [*before, *(each for each in found if each not in before)]
        return found

    def signal(self, number: signal.Signals) -> None:
        """A stop is for all of them; whatever else is for the program, which tells the others."""
        family = self.family()
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            super().signal(number)
            return
        for each in family:
            with suppress(psutil.Error):
                each.send_signal(number)

    def kill_part(self, part: str, rng: Random, port: int | None = None) -> bool:
        """kill -9 of one of the others; False if there is none now.

        With the primary's port only a worker that talks to it will do: the others have nothing in
        hand. A role's lines listen on the brokers' own ports.
        """
        chosen = victims(self.family(), part, port)
        if not chosen:
            return False
        try:
            rng.choice(chosen).kill()
        except psutil.NoSuchProcess:  # It was faster.
            return False
        return True

    def sweep(self) -> None:
        """Whoever is left: those of a program that was killed end by themselves a little later."""
        self.family()
        for each in self._seen:
            with suppress(psutil.Error):
                if each.is_running() and each.pid != self.process.pid:
                    each.kill()


def victims(
    family: Sequence[psutil.Process], part: str, port: int | None = None
) -> list[psutil.Process]:
    """Those of a family that are such a part; workers, only if they have a connection to a port."""
    if part == JVM:
        return [each for each in family if name_of(each).startswith("java")]
    if part == SOURCE:
        return [each for each in family if _SOURCE in command_of(each)]
    assert part == WORKER, part
    daemons = [each for each in family if _DAEMON in command_of(each)]
    if port is not None:
        return [each for each in daemons if port in ports_of(each)]
    return daemons[1:] or daemons  # The first one only starts the others.


def name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def command_of(process: psutil.Process) -> str:
    """As one text: a module's name is a part of its argument."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def ports_of(process: psutil.Process) -> set[int]:
    """The other ends of its connections."""
    try:
        return {each.raddr.port for each in process.net_connections("tcp") if each.raddr}
    except psutil.Error:
        return set()


# -- receipts -------------------------------------------------------------------------------------


def receipts_in(path: Path, process: str, monotonic: Callable[[float], float]) -> Iterator[Event]:
    """The receipts of one process: lines of JSON, or a directory of Parquet files."""
    for row in _rows(path) if path.is_dir() else _lines(path):
        outcome = ReceiptOutcome(row["outcome"])
        yield Event(
            what="move",
            type="info" if outcome.may_repeat else "ok",
            process=process,
            at_s=monotonic(row["settled_ms"] / 1_000),
            values=(row["message_id"] or "",),
            place=row["queue"],
            detail=str(outcome),
        )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Without a last line that was torn by a kill."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    columns = ["queue", "message_id", "outcome", "settled_at"]
    for file in sorted(path.glob("run=*/*.parquet")):
        try:
            table = parquet.read_table(file, columns=columns, partitioning=None)
        except (OSError, pa.ArrowInvalid):  # Torn by a kill.
            continue
        for row in table.to_pylist():
            yield {**row, "settled_ms": row["settled_at"].timestamp() * 1_000}
