"""A figure, the table that shows it, and the files that keep it.

latest.json   a list of {name, value, unit, peer, peer_value, ratio}; ratio = value / peer_value
raw/          every round of every run, with the machine it ran on (not under version control)
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

LATEST = Path(__file__).with_name("latest.json")
RAW = Path(__file__).with_name("raw")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    value: float | None
    unit: str
    peer: str
    peer_value: float | None
    wanted: str
    """What the project promises for this figure, in words."""
    promise_kept: bool | None = None

    @property
    def ratio(self) -> float | None:
        if self.value is None or not self.peer_value:
            return None
        return self.value / self.peer_value

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": _rounded(self.peer_value),
            "ratio": _rounded(self.ratio),
        }


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")


def _shown(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if number >= 1000 else f"{number:,.2f}"


def print_table(figures: Sequence[Figure]) -> None:
    table = Table(title="twinbus next to its peers, same machine, same run")
    for column in ("benchmark", "ours", "peer", "unit", "ratio", "wanted", "kept"):
        right = column in ("ours", "peer", "ratio")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for figure in figures:
        kept = {True: "yes", False: "NO", None: ""}[figure.promise_kept]
        table.add_row(
            figure.name, _shown(figure.value), f"{_shown(figure.peer_value)} ({figure.peer})",
            figure.unit, _shown(figure.ratio), figure.wanted, kept,
        )  # fmt: skip
    Console(width=None if os.isatty(1) else 140).print(table)


def write_latest(figures: Sequence[Figure], path: Path = LATEST) -> None:
    """Replace the figures that were measured now and keep the others that stand in the file."""
    fresh = {figure.name: figure.as_json() for figure in figures}
    kept = json.loads(path.read_text()) if path.exists() else []
    rows = [fresh.pop(row["name"], row) for row in kept] + list(fresh.values())
    path.write_text(json.dumps(rows, indent=2) + "\n")


def machine() -> dict[str, Any]:
    cpu = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory_kb / 1024**2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def write_raw(rounds: dict[str, Any], directory: Path = RAW) -> Path:
    """Keep every round under a name that sorts by time."""
    directory.mkdir(exist_ok=True)
    (directory / ".gitignore").write_text("*\n")
    path = directory / time.strftime("%Y%m%dT%H%M%S.json")
    path.write_text(json.dumps(rounds, indent=2) + "\n")
    return path
