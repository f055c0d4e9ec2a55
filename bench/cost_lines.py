"""Operations logs as a fleet of brokers would have written them, from a seed.

    12 pairs of namespaces, 8 entities each, outages now and then; a week is ten million lines

Rule 1: the same seed gives the same bytes.
Rule 2: what goes wrong in real logs goes wrong here: torn lines, blocks that a shipper has sent
        twice, lines that arrived in the file of the next day.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

SEED: Final = 20_261_116
PAIRS: Final = 12
ENTITIES: Final = (
    "orders", "invoices", "shipments", "payments", "returns", "telemetry/readings",
    "catalogue/changes/subscriptions/search", "catalogue/changes/subscriptions/billing",
)  # fmt: skip
BACKLOG_QUEUES: Final = 10
INTERVAL: Final = timedelta(seconds=10)
BEGINS: Final = datetime(2026, 11, 2, tzinfo=UTC)
TORN_SHARE: Final = 1 / 50_000
AGAIN_SHARE: Final = 1 / 5_000
LATE_SHARE: Final = 1 / 10_000
AMOUNTS: Final = 4_096


@dataclass(frozen=True, slots=True)
class Written:
    """What a reader must find."""

    lines: int
    """All of them, whatever they are."""
    records: int
    """Good ones, each counted once."""
    duplicates: int
    damaged: int
    late: int
    units: int
    bytes: int


def write_logs(directory: Path, lines: int, seed: int = SEED) -> Written:
    """So many lines, or a few more."""
    writer = _Writer(directory, Random(seed))
    at = BEGINS
    while writer.lines < lines:
        for namespace in writer.namespaces:
            writer.interval(namespace, at)
        at += INTERVAL
    return writer.close()


@dataclass(slots=True)
class _Namespace:
    name: str
    run: str
    tallies: list[tuple[str, str]]
    backlog: list[tuple[str, str]]
    """What is done while a primary is away, or comes back."""
    number: int = 0


class _Writer:
    def __init__(self, directory: Path, chance: Random) -> None:
        self._directory, self._chance = directory, chance
        self.namespaces = list(_namespaces(chance))
        self._amounts = [_amounts(chance) for _ in range(AMOUNTS)]
        self._files: dict[str, tuple[str, list[bytes]]] = {}
        self.lines = self._records = self._again = self._torn = self._late = self._units = 0
        self._bytes = 0

    def interval(self, namespace: _Namespace, at: datetime) -> None:
        """The lines of one namespace for ten seconds."""
        chance = self._chance
        day, hour = at.date().isoformat(), at.hour
        tallies = namespace.tallies
        if namespace.backlog and hour % 8 == 3 and at.minute < 45:
            tallies = tallies + namespace.backlog
        front = (
            f'{{"version":1,"run":"{namespace.run}","number":%d,"from":"{_stamp(at)}",'
            f'"to":"{_stamp(at + INTERVAL)}","source":"broker","namespace":"{namespace.name}",'
            '"entity":"%s","operation":"%s",%s}\n'
        )
        made = []
        first = chance.randrange(AMOUNTS)
        for nth, (entity, operation) in enumerate(tallies):
            # Not everything happens in every ten seconds.
            if (first + nth * 7) % 10 < 4:
                continue
            namespace.number += 1
            text, units = self._amounts[(first * 31 + nth * 101) % AMOUNTS]
            made.append(front % (namespace.number, entity, operation, text))
            self._units += units
        self._records += len(made)
        if made and chance.random() < LATE_SHARE * len(made):
            self._late += len(made)
            day = (at + timedelta(days=1)).date().isoformat()
        copies = made
        if made and chance.random() < AGAIN_SHARE:
            self._again += len(made)
            copies = made + made
        if chance.random() < TORN_SHARE * len(made):
            self._torn += 1
            copies = [*copies, made[-1][: chance.randrange(10, 80)] + "\n"]
        self.lines += len(copies)
        self._write(namespace.name, day, "".join(copies).encode())

    def _write(self, namespace: str, day: str, data: bytes) -> None:
        path = self._directory / namespace / f"operations-{day}.jsonl"
        name = str(path)
        _, waiting = self._files.setdefault(name, (name, []))
        waiting.append(data)
        self._bytes += len(data)
        if len(waiting) >= 500:
            self._flush(name)

    def _flush(self, name: str) -> None:
        path, waiting = Path(name), self._files[name][1]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.writelines(waiting)
        waiting.clear()

    def close(self) -> Written:
        for name in self._files:
            self._flush(name)
        return Written(
            lines=self.lines, records=self._records, duplicates=self._again, damaged=self._torn,
            late=self._late, units=self._units, bytes=self._bytes,
        )  # fmt: skip


def _namespaces(chance: Random) -> Iterator[_Namespace]:
    for number in range(PAIRS):
        primary = f"contoso-{number:02d}"
        everyday = [
            (entity, operation)
            for entity in ENTITIES
            for operation in ("send", "receive", "settle", "empty-receive")
        ]
        queues = [f"{primary}/x-servicebus-transfer/{n}" for n in range(BACKLOG_QUEUES)]
        detour = [(queue, operation) for queue in queues for operation in ("send", "receive")]
        pings = [(entity, "ping") for entity in ENTITIES]
        yield _Namespace(primary, f"{chance.getrandbits(64):016x}", everyday[:12], pings)
        polls = [(queue, "empty-receive") for queue in queues[:4]]
        yield _Namespace(f"{primary}-dr", f"{chance.getrandbits(64):016x}", polls, detour)


def _amounts(chance: Random) -> tuple[str, int]:
    messages = int(chance.paretovariate(0.9))
    messages = min(messages, 50_000)
    size = chance.randrange(100, 4_000)
    fields = {
        "calls": max(1, messages // 20), "messages": messages, "units": messages,
        "bytes_in": messages * size, "bytes_out": 0,
    }  # fmt: skip
    return json.dumps(fields, separators=(",", ":"))[1:-1], messages


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")
