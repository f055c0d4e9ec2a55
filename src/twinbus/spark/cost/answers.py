"""The rows of slicing.sliced() as the values of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import Row

from twinbus.core.cost_report import DetourCost, KindCost, OpenRun, PairCost, Quality, Slice
from twinbus.core.costs import Operation
from twinbus.spark.cost.days import day_named, moment_of_minute
from twinbus.spark.cost.slicing import BY_ENTITY, BY_STEP, set_numbers

__all__ = ["Answers"]

ENTITIES_MAX: Final = 12
_COUNTS: Final = ("calls", "messages", "units", "bytes_in", "bytes_out", "cost")
_TIMES: Final = ("day", "hour")
_DETOUR: Final = (Operation.SEND.value, Operation.RECEIVE.value)


class Answers:
    """What the one query of a report has found."""

    def __init__(self, rows: Sequence[Row], by: tuple[str, ...]) -> None:
        sets = set_numbers(by)
        self._by = by
        self._slices = [row for row in rows if row.which == sets[by]]
        self._steps = [row for row in rows if row.which == sets[BY_STEP]]
        self._entities = [row for row in rows if row.which == sets[BY_ENTITY]]

    def __bool__(self) -> bool:
        return bool(self._slices)

    def slices(self) -> tuple[Slice, ...]:
        """Most expensive first, within their time if that comes first."""
        found = [_slice({word: _shown(word, row[word]) for word in self._by}, row)
                 for row in self._slices]  # fmt: skip
        found.sort(key=_expensive_first)
        if self._by[0] in _TIMES:
            found.sort(key=lambda each: each.keys[self._by[0]])
        return tuple(found)

    def total(self) -> Slice:
        return Slice(keys={}, **{name: _sum(self._slices, name) for name in _COUNTS})

    def entities(self) -> tuple[Slice, ...]:
        """The most expensive ones."""
        found = [_slice({name: row[name] for name in BY_ENTITY}, row) for row in self._entities]
        return tuple(sorted(found, key=_expensive_first)[:ENTITIES_MAX])

    def namespaces(self) -> set[str]:
        return {row.namespace for row in self._entities}

    def kinds(self) -> tuple[KindCost, ...]:
        return tuple(
            KindCost(
                at=moment_of_minute(step),
                operation=operation,
                units=_sum(rows, "units"),
                cost=_sum(rows, "cost"),
            )
            for (step, operation), rows in _grouped(self._steps, "step", "operation")
            if any(row.units or row.cost for row in rows)
        )

    def detours(self) -> tuple[DetourCost, ...]:
        found = [row for row in self._of_pairs() if row.operation in _DETOUR]
        return tuple(
            DetourCost(
                at=moment_of_minute(step),
                pair=pair,
                sent=_sum(_of(rows, Operation.SEND), "messages"),
                received=_sum(_of(rows, Operation.RECEIVE), "messages"),
                cost=_sum(rows, "cost"),
            )
            for (step, pair), rows in _grouped(found, "step", "pair")
        )

    def pairs(self) -> tuple[PairCost, ...]:
        """What each pair cost on top of the messages themselves, most expensive first."""
        found = []
        for (pair,), rows in _grouped(self._of_pairs(), "pair"):
            into, out = _of(rows, Operation.SEND), _of(rows, Operation.RECEIVE)
            pings, polls = _of(rows, Operation.PING), _of(rows, Operation.EMPTY_RECEIVE)
            named = sum(_sum(each, "units") for each in (into, out, pings, polls))
            found.append(
                PairCost(
                    pair=pair,
                    detoured_messages=_sum(into, "messages"),
                    detour_units=_sum(into, "units") + _sum(out, "units"),
                    ping_units=_sum(pings, "units"),
                    polling_units=_sum(polls, "units"),
                    other_units=_sum(rows, "units") - named,
                    cost=_sum(rows, "cost"),
                )
            )
        return tuple(sorted(found, key=lambda each: (-each.cost, each.pair)))

    def _of_pairs(self) -> list[Row]:
        return [row for row in self._steps if row.pair is not None]

    def idle_share(self) -> float:
        units = _sum(self._steps, "units")
        return _sum(_of(self._steps, Operation.EMPTY_RECEIVE), "units") / units if units else 0.0

    def idle_cost(self) -> Decimal:
        cost: Decimal = _sum(_of(self._steps, Operation.EMPTY_RECEIVE), "cost")
        return cost

    def quality(self, damaged: Mapping[str, int], open_runs: tuple[OpenRun, ...]) -> Quality:
        return Quality(
            records=_sum(self._slices, "records"),
            duplicates=_sum(self._slices, "duplicates"),
            late=_sum(self._slices, "late"),
            damaged=dict(damaged),
            open_runs=open_runs,
        )


def _slice(keys: Mapping[str, str], row: Row) -> Slice:
    return Slice(keys=keys, **{name: row[name] for name in _COUNTS})


def _shown(word: str, value: Any) -> str:
    if word == "day":
        return day_named(value)
    if word == "hour":
        return moment_of_minute(value).strftime("%Y-%m-%d %H:00")
    return str(value)


def _expensive_first(each: Slice) -> tuple[Decimal, int, tuple[str, ...]]:
    return -each.cost, -each.units, tuple(each.keys.values())


def _of(rows: Iterable[Row], operation: Operation) -> list[Row]:
    return [row for row in rows if row.operation == operation.value]


def _sum(rows: Iterable[Row], name: str) -> Any:
    return sum((row[name] for row in rows), Decimal(0) if name == "cost" else 0)


def _grouped(rows: Iterable[Row], *names: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    """Rows by the values of these columns, in their order."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return sorted(groups.items(), key=lambda item: item[0])
