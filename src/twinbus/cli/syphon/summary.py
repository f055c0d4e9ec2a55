"""The backlog that a syphon finds, its progress, and its summary.

Which backlog ``twinbus syphon`` brings home: both namespaces, and the queues.

What ``twinbus syphon`` shows: progress while it runs, and a summary at the end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from twinbus.cli.pair.backlog_cleanup import backlog_path_of
from twinbus.cli.shared.namespace_options import reference_of
from twinbus.cli.shared.output import show_table
from twinbus.cli.syphon.commands import EXIT_LEFT, SyphonOptions
from twinbus.common.entity_path import backlog_prefix
from twinbus.drivers.administration import QueueProperties
from twinbus.encoding.pair_mark import address_in
from twinbus.errors import AccessRefused, NoBacklogQueue
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.planning.receipts import ReceiptOutcome
from twinbus.pairing.backlog_queues import backlog_paths
from twinbus.pairing.client.environment import NamespaceReference, Role, require_namespace
from twinbus.pairing.client.namespace_connection import (
    NamespaceConnection,
    open_namespace,
)

__all__ = [
    "CONNECTION_STRING_FILE",
    "EXIT_FAILED",
    "Found",
    "Summary",
    "done_count",
    "exit_code",
    "find_backlog",
    "foreign_warning",
    "named",
    "opened",
    "progress_shown",
    "show_summary",
    "spool_file",
]

CONNECTION_STRING_FILE: Final = "connection-string"
"""As drivers.embedded has it, which loads the broker."""


@dataclass(frozen=True, slots=True)
class Found:
    """A primary's backlog."""

    primary_name: str
    queues: tuple[str, ...]
    waiting: int | None
    """Messages in all of them; None when nobody said."""


def named(role: Role, options: SyphonOptions) -> NamespaceReference:
    """The namespace that the environment names, or the spool."""
    if role == "secondary" and options.spool is not None:
        return reference_of(f"file:{spool_file(options.spool)}")
    return require_namespace(os.environ, role)


def spool_file(spool: Path) -> Path:
    """Where a spool has its connection string while it is served."""
    return spool.absolute() / CONNECTION_STRING_FILE


def opened(role: Role, options: SyphonOptions) -> AbstractAsyncContextManager[NamespaceConnection]:
    """The namespace, with both its doors."""
    return open_namespace(
        named(role, options),
        ca_file=options.ca_file,
        administration_port=options.administration_port,
        metering=options.metering,
        keep_days=options.keep_days,
        name=options.primary_name if role == "primary" else None,
        driver=options.driver,
    )


async def find_backlog(
    primary: NamespaceConnection, secondary: NamespaceConnection, options: SyphonOptions
) -> Found:
    """The queues to empty: as many as we were told, or all that a listing shows, or without
    Manage a look. The syphon itself finds more that hold messages (Y9)."""
    name = await primary.primary_name(options.primary_name)
    if options.backlog_queue_count is not None:
        return Found(name, tuple(backlog_paths(name, options.backlog_queue_count)), None)
    prefix = backlog_prefix(name)
    try:
        listed = [queue async for queue in secondary.management.list_queues(prefix)]
    except AccessRefused:
        return Found(name, await _looked_for(secondary, name), None)
    found = [queue for queue in listed if backlog_path_of(queue.path) is not None]
    if not found:
        raise NoBacklogQueue(
            f"the secondary has no backlog queue of {name!r}",
            hint=f"They are called {prefix}0 and so on; check --primary-name",
        )
    return Found(name, tuple(queue.path for queue in found), _waiting(found))


async def _looked_for(secondary: NamespaceConnection, name: str) -> tuple[str, ...]:
    found = await BacklogSearch(secondary.driver.receiver, name).find_existing()
    if not found:
        raise NoBacklogQueue(
            f"no backlog queue of {name!r} was found, and they cannot be listed without Manage",
            hint="Check --primary-name, and the claim Listen on the backlog queues",
        )
    return found


def _waiting(queues: list[QueueProperties]) -> int | None:
    return sum(queue.counts.active for queue in queues if queue.counts is not None)


EXIT_FAILED: Final = 1
# What was parked may have been moved later in the same run: what is still set aside counts.
_LEFT: Final = (
    ReceiptOutcome.DEAD_LETTERED,
    ReceiptOutcome.AMBIGUOUS,
    ReceiptOutcome.LOCK_LOST,
    ReceiptOutcome.RELEASED,
)
# These have left the backlog, or would.
_DONE: Final = (
    ReceiptOutcome.MOVED,
    ReceiptOutcome.DEAD_LETTERED,
    ReceiptOutcome.WOULD_MOVE,
    ReceiptOutcome.WOULD_DEAD_LETTER,
)
_MEANINGS: Final = {
    ReceiptOutcome.MOVED: "home, and gone from the backlog",
    ReceiptOutcome.DEFERRED: "set aside: the destination takes nothing now",
    ReceiptOutcome.DEAD_LETTERED: "in the dead-letter queue of the backlog queue, with a reason",
    ReceiptOutcome.AMBIGUOUS: "set aside, in doubt: a second copy may follow",
    ReceiptOutcome.LOCK_LOST: "home, and still in the backlog: a second copy will follow",
    ReceiptOutcome.RELEASED: "untouched: they come again",
    ReceiptOutcome.FOREIGN: "left alone: they belong to another primary of the same name",
    ReceiptOutcome.WOULD_MOVE: "would be moved",
    ReceiptOutcome.WOULD_DEAD_LETTER: "would be dead-lettered",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run did."""

    counts: Mapping[ReceiptOutcome, int]
    moved_bytes: int
    set_aside_count: int
    """Messages that wait for their destinations at the end of it."""
    faults: Mapping[str, str]
    """Backlog queues that could not be read, each with a sentence."""
    elapsed_s: float
    was_cut_short: bool = False
    """It was to run until the backlog is empty, and was stopped before."""

    @property
    def moved_per_s(self) -> float:
        return self.counts[ReceiptOutcome.MOVED] / max(self.elapsed_s, 0.001)

    @property
    def may_repeat_count(self) -> int:
        return sum(count for outcome, count in self.counts.items() if outcome.may_repeat)

    def to_json(self) -> dict[str, Any]:
        return {
            **{outcome.value: self.counts[outcome] for outcome in ReceiptOutcome},
            "may_repeat": self.may_repeat_count,
            "set_aside": self.set_aside_count,
            "moved_bytes": self.moved_bytes,
            "seconds": round(self.elapsed_s, 3),
            "moved_per_s": round(self.moved_per_s, 1),
            "faults": dict(self.faults),
            "cut_short": self.was_cut_short,
        }


def exit_code(summary: Summary) -> int:
    """0 everything is home, 1 a queue could not be read, 3 something is not home."""
    if summary.faults:
        return EXIT_FAILED
    is_left = summary.set_aside_count or any(summary.counts[each] for each in _LEFT)
    return EXIT_LEFT if is_left or summary.was_cut_short else 0


def done_count(counts: Mapping[ReceiptOutcome, int]) -> int:
    """Messages that have left the backlog: what waits for its destination comes again."""
    return sum(counts.get(each, 0) for each in _DONE)


def foreign_warning(owner: str) -> str:
    """Said once for each other pair whose messages were met (P21)."""
    return (
        f"twinbus: messages of another primary of this name stay in the backlog: {owner}. "
        f"If that is an earlier address of this one, use --accept-owner {address_in(owner)}"
    )


def show_summary(summary: Summary, output: str) -> None:
    if output != "table":
        # One line in both forms: it follows what was logged while the syphon ran.
        typer.echo(json.dumps(summary.to_json()))
        return
    counts = summary.counts
    shown = [each for each in ReceiptOutcome if counts[each] or each is ReceiptOutcome.MOVED]
    show_table(
        ("outcome", "messages", "meaning"),
        [(each.value, f"{counts[each]:,}", _MEANINGS[each]) for each in shown],
    )
    typer.echo(f"{summary.elapsed_s:.1f} s, {summary.moved_per_s:,.0f} messages a second")
    if summary.was_cut_short:
        typer.echo("twinbus: it was stopped before the backlog was empty", err=True)
    for queue, error in summary.faults.items():
        typer.echo(f"twinbus: {queue} could not be read: {error}", err=True)


@contextmanager
def progress_shown(output: str, waiting: int | None) -> Iterator[Callable[[int], object]]:
    """What to call with the number of messages that have left the backlog so far: a bar with the
    time that is left, when it is known how many were ``waiting``, and a count otherwise."""
    if output != "table" or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.completed:,.0f}")]
    if waiting is not None:
        columns += [TextColumn("of {task.total:,.0f}"), BarColumn()]
    columns += [TextColumn("messages"), TimeElapsedColumn()]
    if waiting is not None:
        columns += [TextColumn("left:"), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("moving", total=waiting)

        def show(done: int) -> None:
            # More may have come in since it was counted.
            total = None if waiting is None else max(waiting, done)
            progress.update(task, completed=done, total=total)

        yield show
