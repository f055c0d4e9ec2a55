"""Operations logs by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RUN = "00000000000000aa"
BACKLOG = "home/x-servicebus-transfer/3"


def line(number: int, at: str = "2026-11-16T10:00:00", **fields: Any) -> dict[str, Any]:
    """One that sends three messages to orders."""
    usual = {
        "version": 1,
        "run": RUN,
        "number": number,
        "from": f"{at}.000Z",
        "to": f"{at[:-1]}9.000Z",
        "source": "broker",
        "namespace": "home",
        "entity": "orders",
        "operation": "send",
        "calls": 1,
        "messages": 3,
        "units": 3,
        "bytes_in": 300,
        "bytes_out": 0,
    }
    return usual | fields


def flushed(number: int, bound: int, at: str = "2026-11-16T10:00:00") -> dict[str, Any]:
    """One that counts nothing, and says how much may be missing behind it."""
    nothing = dict.fromkeys(("calls", "messages", "units", "bytes_in", "bytes_out"), 0)
    return line(number, at, operation="flushed", entity="", unwritten_units_max=bound, **nothing)


def without(name: str, number: int) -> dict[str, Any]:
    return {key: value for key, value in line(number).items() if key != name}


def write(path: Path, lines: Iterable[dict[str, Any] | str]) -> Path:
    """Add lines to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for each in lines:
            file.write(each if isinstance(each, str) else json.dumps(each))
            file.write("\n")
    return path
