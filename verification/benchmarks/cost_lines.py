"""Operations logs as a fleet of brokers would have written them, from a seed.

    12 pairs of namespaces, outages now and then; every ten seconds a line for each entity and kind
    of operation at which something happened; a week is ten million lines

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
        writer.interval(at)
        at += INTERVAL
    return writer.close()


class _Namespace:
    """One of them, with the lines of its tallies as far as they stay the same."""

    def __init__(
        self, name: str, chance: Random, everyday: list[str], in_outage: list[str]
    ) -> None:
        self.name = name
        self.number = 0
        self.begins = f'{{"version":1,"run":"{chance.getrandbits(64):016x}","number":'
        self.source = f'"source":"broker","namespace":"{name}",'
        self._everyday = _busy(everyday)
        self._in_outage = _busy(everyday + in_outage)

    def busy(self, at: datetime, chance: int) -> list[tuple[int, str]]:
        """The tallies that have counted something: not everything happens in every interval."""
        is_outage = at.hour % 8 == 3 and at.minute < 45
        return (self._in_outage if is_outage else self._everyday)[chance % 10]


def _busy(tallies: list[str]) -> list[list[tuple[int, str]]]:
    return [
        [(nth * 101, tally) for nth, tally in enumerate(tallies) if (turn + nth * 7) % 10 >= 4]
        for turn in range(10)
    ]


class _Writer:
    def __init__(self, directory: Path, chance: Random) -> None:
        self._directory, self._chance = directory, chance
        self.namespaces = list(_namespaces(chance))
        amounts = [_amounts(chance) for _ in range(AMOUNTS)]
        # Twice, so that one may go on behind the end.
        self._amounts = [text for text, _ in amounts] * 2
        self._amount_units = [units for _, units in amounts] * 2
        self._files: dict[str, list[bytes]] = {}
        self.lines = self._records = self._again = self._torn = self._late = self._units = 0
        self._bytes = 0

    def interval(self, at: datetime) -> None:
        """The lines of all namespaces for ten seconds."""
        times = f',"from":"{_stamp(at)}","to":"{_stamp(at + INTERVAL)}",'
        days = tuple((at + timedelta(days=days)).date().isoformat() for days in (0, 1))
        for namespace in self.namespaces:
            self._lines(namespace, at, times, days)

    def _lines(
        self, namespace: _Namespace, at: datetime, times: str, days: tuple[str, ...]
    ) -> None:
        chance = self._chance
        first = chance.randrange(AMOUNTS)
        busy = namespace.busy(at, first)
        if not busy:
            return
        begins, rest, amounts = namespace.begins, times + namespace.source, self._amounts
        made = [
            f"{begins}{number}{rest}{tally}{amounts[first + far]}"
            for number, (far, tally) in enumerate(busy, namespace.number + 1)
        ]
        units = self._amount_units
        self._units += sum([units[first + far] for far, _ in busy])
        namespace.number += len(made)
        self._records += len(made)
        day = days[0]
        if chance.random() < LATE_SHARE * len(made):
            self._late += len(made)
            day = days[1]
        copies = made
        if chance.random() < AGAIN_SHARE:
            self._again += len(made)
            copies = made + made
        if chance.random() < TORN_SHARE * len(made):
            self._torn += 1
            copies = [*copies, made[-1][: chance.randrange(10, 80)] + "\n"]
        self.lines += len(copies)
        self._write(namespace.name, day, "".join(copies).encode())

    def _write(self, namespace: str, day: str, data: bytes) -> None:
        name = f"{namespace}/operations-{day}.jsonl"
        waiting = self._files.setdefault(name, [])
        waiting.append(data)
        self._bytes += len(data)
        if len(waiting) >= 500:
            self._flush(name)

    def _flush(self, name: str) -> None:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.writelines(self._files[name])
        self._files[name].clear()

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
            _tally(entity, operation)
            for entity in ENTITIES
            for operation in ("send", "receive", "settle", "empty-receive")
        ]
        queues = [f"{primary}/x-servicebus-transfer/{n}" for n in range(BACKLOG_QUEUES)]
        detour = [_tally(queue, operation) for queue in queues for operation in ("send", "receive")]
        pings = [_tally(entity, "ping") for entity in ENTITIES]
        polls = [_tally(queue, "empty-receive") for queue in queues[:4]]
        yield _Namespace(primary, chance, everyday[:12], pings)
        yield _Namespace(f"{primary}-dr", chance, polls, detour)


def _tally(entity: str, operation: str) -> str:
    return f'"entity":"{entity}","operation":"{operation}",'


def _amounts(chance: Random) -> tuple[str, int]:
    messages = int(chance.paretovariate(0.9))
    messages = min(messages, 50_000)
    size = chance.randrange(100, 4_000)
    fields = {
        "calls": max(1, messages // 20), "messages": messages, "units": messages,
        "bytes_in": messages * size, "bytes_out": 0,
    }  # fmt: skip
    return json.dumps(fields, separators=(",", ":"))[1:] + "\n", messages


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")
