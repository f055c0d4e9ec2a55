"""The cost report's sums in pandas, a program of its own: ``cost_pandas.py WAY DIRECTORY``.

    as-written   read_json(lines=True) for every file, then concat, drop_duplicates, groupby
    fastest      the same with engine="pyarrow", Arrow's types, and categories for what repeats

It prints one line of JSON: what was found, and the seconds from the first file to the last sum.
Imports are not in them, as Spark's start is not in the job's.

Rule 1: no import of this project: pandas is installed in another environment.
Rule 2: torn lines are left out before they are parsed, because read_json gives up at the first.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

KEY = ["namespace", "source", "run", "number"]
GROUP = ["minute", "namespace", "entity", "operation", "source", "run"]
AMOUNTS = ["calls", "messages", "units", "bytes_in", "bytes_out"]
REPEATED = ["namespace", "source", "run", "entity", "operation"]
PER_UNIT = 0.0000008


def read_as_written(data: bytes) -> pd.DataFrame:
    lines = pd.read_json(io.BytesIO(data), lines=True)
    lines["minute"] = pd.to_datetime(lines["from"]).dt.floor("min")
    return lines[[*KEY, "minute", "entity", "operation", *AMOUNTS]]


def read_fastest(data: bytes) -> pd.DataFrame:
    lines = pd.read_json(io.BytesIO(data), lines=True, engine="pyarrow", dtype_backend="pyarrow")[
        [*KEY, "from", "entity", "operation", *AMOUNTS]
    ]
    # Arrow has made timestamps of the text already.
    lines["minute"] = lines.pop("from").astype("datetime64[ns, UTC]").dt.floor("min")
    for name in REPEATED:
        lines[name] = lines[name].astype("category")
    return lines.astype(dict.fromkeys(("number", *AMOUNTS), "int64"))


READERS = {"as-written": read_as_written, "fastest": read_fastest}


def without_torn(data: bytes) -> tuple[bytes, int]:
    """Whole lines, and how many others there were."""
    if data.count(b"}\n") == data.count(b"\n"):
        return data, 0
    lines = data.splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"}\n")]
    return b"".join(whole), len(lines) - len(whole)


def same_categories(parts: list[pd.DataFrame]) -> None:
    """concat would make objects of categories that differ from file to file."""
    for name in REPEATED:
        kinds = pd.api.types.union_categoricals([part[name].head(0) for part in parts]).categories
        for part in parts:
            part[name] = part[name].cat.set_categories(kinds)


def report(way: str, directory: Path) -> dict[str, Any]:
    parts, damaged = [], 0
    for path in sorted(directory.rglob("operations*.jsonl")):
        data, torn = without_torn(path.read_bytes())
        damaged += torn
        parts.append(READERS[way](data))
    if way == "fastest":
        same_categories(parts)
    lines = pd.concat(parts, ignore_index=True)
    del parts
    count = len(lines)
    lines = lines.drop_duplicates(KEY)
    sums = lines.groupby(GROUP, observed=True, as_index=False, sort=False)[AMOUNTS].sum()
    sums["day"] = sums["minute"].dt.floor("D")
    slices = sums.groupby(["entity", "day"], observed=True, as_index=False)[AMOUNTS].sum()
    slices["cost"] = slices["units"] * PER_UNIT
    slices = slices.sort_values("cost", ascending=False)
    return {
        "records": len(lines),
        "duplicates": count - len(lines),
        "damaged": damaged,
        "units": int(slices["units"].sum()),
        "slices": slices,
    }


def digest(slices: pd.DataFrame) -> str:
    """The same for the same sums, whoever has computed them."""
    days = slices["day"].dt.strftime("%Y-%m-%d")
    columns = [slices["entity"], days, *(slices[name] for name in AMOUNTS)]
    sums = sorted(" ".join(map(str, row)) for row in zip(*columns, strict=True))
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def main() -> None:
    way, directory = sys.argv[1], Path(sys.argv[2])
    began_s = time.monotonic()
    found = report(way, directory)
    seconds = time.monotonic() - began_s
    slices = found.pop("slices")
    found |= {"slices": len(slices), "sums": digest(slices), "pandas": pd.__version__}
    print(json.dumps({**found, "seconds": seconds}))


if __name__ == "__main__":
    main()
