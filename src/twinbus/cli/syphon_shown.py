"""What ``twinbus syphon`` shows: progress while it runs, and a summary at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import typer

from twinbus.cli.syphon import EXIT_LEFT
from twinbus.cli.tables import show_table
from twinbus.core.receipts import Outcome, Receipt
from twinbus.pairing.mover import MoverReport

EXIT_FAILED: Final = 1
_LEFT: Final = (
    Outcome.PARKED,
    Outcome.DEAD_LETTERED,
    Outcome.UNSURE,
    Outcome.LOCK_LOST,
    Outcome.LEFT,
)
_MEANINGS: Final = {
    Outcome.MOVED: "home, and gone from the backlog",
    Outcome.PARKED: "set aside: the destination takes nothing now",
    Outcome.DEAD_LETTERED: "in the dead-letter queue of the backlog queue, with a reason",
    Outcome.UNSURE: "set aside, in doubt: a second copy may follow",
    Outcome.LOCK_LOST: "home, and still in the backlog: a second copy will follow",
    Outcome.LEFT: "untouched: they come again",
    Outcome.WOULD_MOVE: "would be moved",
    Outcome.WOULD_DEAD_LETTER: "would be dead-lettered",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did."""

    report: MoverReport
    elapsed_s: float

    @property
    def moved_per_s(self) -> float:
        return self.report.tally.counts[Outcome.MOVED] / max(self.elapsed_s, 0.001)

    def to_json(self) -> dict[str, Any]:
        tally = self.report.tally
        return {
            **{outcome.value: tally.counts[outcome] for outcome in Outcome},
            "may_repeat": tally.may_repeat_count,
            "moved_bytes": tally.moved_bytes,
            "seconds": round(self.elapsed_s, 3),
            "moved_per_s": round(self.moved_per_s, 1),
            "faults": {queue: str(error) for queue, error in self.report.faults.items()},
        }


def exit_code(summary: Summary) -> int:
    """0 everything is home, 1 a queue could not be read, 3 something is not home."""
    if summary.report.faults:
        return EXIT_FAILED
    counts = summary.report.tally.counts
    return EXIT_LEFT if any(counts[each] for each in _LEFT) else 0


def show_summary(summary: Summary, output: str) -> None:
    if output == "json":
        typer.echo(json.dumps(summary.to_json()))
        return
    counts = summary.report.tally.counts
    shown = [each for each in Outcome if counts[each] or each is Outcome.MOVED]
    show_table(
        ("outcome", "messages", "meaning"),
        [(each.value, f"{counts[each]:,}", _MEANINGS[each]) for each in shown],
    )
    typer.echo(f"{summary.elapsed_s:.1f} s, {summary.moved_per_s:,.0f} messages a second")
    for queue, error in summary.report.faults.items():
        typer.echo(f"twinbus: {queue} could not be read: {error}", err=True)


@contextmanager
def progress_shown(output: str) -> Iterator[Callable[[Sequence[Receipt]], object]]:
    """What to call with each chunk's receipts; a line that counts, for people who watch."""
    if output == "json" or not sys.stderr.isatty():
        yield lambda _receipts: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} messages"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("moving", total=None)
        yield lambda receipts: progress.advance(task, len(receipts))
