"""The books of clients in processes that fork or end without closing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.metering.test_client_books import records_in

BEFORE_A_FORK = """
import os, sys, time
from pathlib import Path
from twinbus.cost.units import Operation
from twinbus.metering.client_meter import ClientMeter

unused = ClientMeter(Path(sys.argv[1]), name="unused", other_name="o")
used = ClientMeter(Path(sys.argv[1]), name="used", other_name="o")
used.add_request("orders", Operation.PEEK)
for _ in range(2):
    if os.fork() == 0:
        for books in (unused, used):
            for _ in range(3):
                books.add_request("orders", Operation.EMPTY_RECEIVE)
        sys.exit()  # Like its parent, a child closes nothing itself.
for _ in range(2):
    os.wait()
"""


def test_a_forked_process_has_books_of_its_own(tmp_path: Path) -> None:
    """C1: another run and another thread, and nothing of what its parent has counted."""
    subprocess.run([sys.executable, "-c", BEFORE_A_FORK, str(tmp_path)], check=True, timeout=60)
    for name, runs_expected in (
        ("unused", [["opened", "empty-receive", "closed"]] * 2),
        ("used", [["opened", "empty-receive", "closed"]] * 2 + [["opened", "peek", "closed"]]),
    ):
        runs: dict[str, list[str]] = {}
        for line in records_in(tmp_path / name, "operations"):
            runs.setdefault(line["run"], []).append(line["operation"])
            assert line["units"] == {"empty-receive": 3, "peek": 1}.get(line["operation"], 0)
        assert sorted(runs.values()) == runs_expected


LEAVING = """
import sys
from pathlib import Path
from tests.unit.metering.test_client_books import message
from twinbus.metering.client_meter import ClientMeter

def work():
    books = ClientMeter(Path(sys.argv[1]), name="contoso", other_name="o", audit=True)
    books.sent("orders", [message(str(n)) for n in range(50)], is_own=True)

work()
"""


def test_who_leaves_without_closing_leaves_closed_books(tmp_path: Path) -> None:
    """C1: rule 5; only a kill costs lines."""
    subprocess.run([sys.executable, "-c", LEAVING, str(tmp_path)], check=True, timeout=60)
    amounts = {line["operation"]: line["messages"] for line in records_in(tmp_path, "operations")}
    assert amounts == {"opened": 0, "send": 50, "closed": 0}
    assert len(records_in(tmp_path, "audit")) == 50
