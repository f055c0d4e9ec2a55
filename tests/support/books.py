"""Both sides' books: what a client's lines say, and what the broker itself counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from twinbus.testing import NamespaceFixture


class Total(NamedTuple):
    """So much of one operation on one entity."""

    messages: int
    units: int
    bytes: int


Totals = dict[tuple[str, str], Total]
"""By entity and operation; nothing is left out but what is zero."""


def records_in(directory: Path, kind: str) -> list[dict[str, Any]]:
    """All whole lines of ``operations`` or ``audit`` logs; of the latter those about messages."""
    files = sorted(directory.rglob(f"{kind}-*.jsonl"))
    lines = [line for path in files for line in path.read_text().splitlines()]
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [each for each in records if each.get("event") not in ("opened", "closed")]


def by_client(directory: Path) -> Totals:
    """From the lines of all clients below a directory."""
    sums: Totals = {}
    for line in records_in(directory, "operations"):
        key = line["entity"], line["operation"]
        new = line["messages"], line["units"], line["bytes_in"] + line["bytes_out"]
        if any(new):
            sums[key] = Total(*map(sum, zip(sums.get(key, (0, 0, 0)), new, strict=True)))
    return sums


def by_broker(bus: NamespaceFixture) -> Totals:
    """From the broker's own counters."""

    def read() -> Totals:
        return {
            (each.entity, each.operation.value): Total(
                each.messages, each.units, each.bytes_in + each.bytes_out
            )
            for each in bus._namespace.access.meter
            if any(each.total())
        }

    return bus._thread.run_function(read)


def in_numbers(totals: Totals, *operations: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Messages and units, perhaps of some operations only. Bytes differ a little: a broker counts
    a message as it stores it, a client as it is on the wire."""
    return {
        key: (each.messages, each.units)
        for key, each in totals.items()
        if not operations or key[1] in operations
    }
