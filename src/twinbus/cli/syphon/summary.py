"""The namespaces and backlog queues of ``twinbus syphon``, its progress and its summary."""

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

from twinbus.cli.pair.backlog_cleanup import try_parse_backlog_path
from twinbus.cli.shared.namespace_options import parse_reference
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
    "open_role",
    "resolve_namespace",
    "show_progress_bar",
    "show_summary",
    "spool_file",
]

CONNECTION_STRING_FILE: Final = "connection-string"
"""The same as in drivers.embedded, which would load the broker."""


@dataclass(frozen=True, slots=True)
class Found:
    """The backlog of a primary."""

    primary_name: str
    queues: tuple[str, ...]
    waiting: int | None
    """Messages in all of them; None if unknown."""


def resolve_namespace(role: Role, options: SyphonOptions) -> NamespaceReference:
    """The namespace of the environment, or the spool."""
    if role == "secondary" and options.spool is not None:
        return parse_reference(f"file:{spool_file(options.spool)}")
    return require_namespace(os.environ, role)


def spool_file(spool: Path) -> Path:
    """The file with the connection string of a spool while it is served."""
    return spool.absolute() / CONNECTION_STRING_FILE


def open_role(
    role: Role, options: SyphonOptions
) -> AbstractAsyncContextManager[NamespaceConnection]:
    """Connect to a namespace over AMQP and HTTP."""
    return open_namespace(
        resolve_namespace(role, options),
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
    """The queues to empty: by their number, or all that are listed, or without the Manage claim
    those that a search finds. The running syphon finds more that have messages (Y9)."""
    name = await primary.primary_name(options.primary_name)
    if options.backlog_queue_count is not None:
        return Found(name, tuple(backlog_paths(name, options.backlog_queue_count)), None)
    prefix = backlog_prefix(name)
    try:
        listed = [queue async for queue in secondary.management.list_queues(prefix)]
    except AccessRefused:
        return Found(name, await _search(secondary, name), None)
    found = [queue for queue in listed if try_parse_backlog_path(queue.path) is not None]
    if not found:
        raise NoBacklogQueue(
            f"No backlog queue of {name!r} found on the secondary",
            hint=f"Check --primary-name; the paths are {prefix}0 and so on",
        )
    return Found(name, tuple(queue.path for queue in found), _waiting(found))


async def _search(secondary: NamespaceConnection, name: str) -> tuple[str, ...]:
    found = await BacklogSearch(secondary.driver.receiver, name).find_existing()
    if not found:
        raise NoBacklogQueue(
            f"No backlog queue of {name!r} found by search, without the Manage claim",
            hint="Check --primary-name, and the Listen claim on the backlog queues",
        )
    return found


def _waiting(queues: list[QueueProperties]) -> int | None:
    return sum(queue.counts.active for queue in queues if queue.counts is not None)


EXIT_FAILED: Final = 1
# Deferred messages may have been moved later in the same run: those still deferred count.
_LEFT: Final = (
    ReceiptOutcome.DEAD_LETTERED,
    ReceiptOutcome.AMBIGUOUS,
    ReceiptOutcome.LOCK_LOST,
    ReceiptOutcome.RELEASED,
)
# These were removed from the backlog, or would be.
_DONE: Final = (
    ReceiptOutcome.MOVED,
    ReceiptOutcome.DEAD_LETTERED,
    ReceiptOutcome.WOULD_MOVE,
    ReceiptOutcome.WOULD_DEAD_LETTER,
)
_MEANINGS: Final = {
    ReceiptOutcome.MOVED: "on the primary, and removed from the backlog",
    ReceiptOutcome.DEFERRED: "deferred: the destination is unavailable",
    ReceiptOutcome.DEAD_LETTERED: "in the dead-letter queue of the backlog queue, with a reason",
    ReceiptOutcome.AMBIGUOUS: "deferred without an acknowledgement: a duplicate is possible",
    ReceiptOutcome.LOCK_LOST: "on the primary, and still in the backlog: a duplicate will follow",
    ReceiptOutcome.RELEASED: "released unchanged: they will be received again",
    ReceiptOutcome.FOREIGN: "left: they belong to another primary with the same name",
    ReceiptOutcome.WOULD_MOVE: "would be moved",
    ReceiptOutcome.WOULD_DEAD_LETTER: "would be dead-lettered",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The result of a run."""

    counts: Mapping[ReceiptOutcome, int]
    moved_bytes: int
    deferred_now_count: int
    """Messages that are deferred at its end."""
    faults: Mapping[str, str]
    """Backlog queues that could not be read, each with a sentence."""
    elapsed_s: float
    was_cut_short: bool = False
    """With --once, it was stopped before the backlog was empty."""

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
            "deferred_now": self.deferred_now_count,
            "moved_bytes": self.moved_bytes,
            "seconds": round(self.elapsed_s, 3),
            "moved_per_s": round(self.moved_per_s, 1),
            "faults": dict(self.faults),
            "cut_short": self.was_cut_short,
        }


def exit_code(summary: Summary) -> int:
    """0 all messages were moved, 1 a queue could not be read, 3 messages are left."""
    if summary.faults:
        return EXIT_FAILED
    is_left = summary.deferred_now_count or any(summary.counts[each] for each in _LEFT)
    return EXIT_LEFT if is_left or summary.was_cut_short else 0


def done_count(counts: Mapping[ReceiptOutcome, int]) -> int:
    """Messages that were removed from the backlog; deferred ones are received again."""
    return sum(counts.get(each, 0) for each in _DONE)


def foreign_warning(owner: str) -> str:
    """Printed once for each other pair whose messages were found (P21)."""
    return (
        f"twinbus: Messages of another primary with this name are left in the backlog: {owner}. "
        f"If it is an earlier address of this primary, add --accept-owner {address_in(owner)}."
    )


def show_summary(summary: Summary, output: str) -> None:
    if output != "table":
        # One line in both formats, because it follows the log lines of the syphon.
        typer.echo(json.dumps(summary.to_json()))
        return
    counts = summary.counts
    shown = [each for each in ReceiptOutcome if counts[each] or each is ReceiptOutcome.MOVED]
    show_table(
        ("outcome", "messages", "meaning"),
        [(each.value, f"{counts[each]:,}", _MEANINGS[each]) for each in shown],
    )
    typer.echo(f"{summary.elapsed_s:.1f} s, {summary.moved_per_s:,.0f} messages/s")
    if summary.was_cut_short:
        typer.echo("twinbus: The syphon was stopped before the backlog was empty.", err=True)
    for queue, error in summary.faults.items():
        typer.echo(f"twinbus: Backlog queue {queue} could not be read: {error}", err=True)


@contextmanager
def show_progress_bar(output: str, waiting: int | None) -> Iterator[Callable[[int], object]]:
    """A function to call with the number of messages removed from the backlog so far: a progress
    bar with the remaining time if the number of ``waiting`` messages is known, else a count."""
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
        columns += [TextColumn("remaining:"), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("moving", total=waiting)

        def show(done: int) -> None:
            # Messages may have arrived since the count.
            total = None if waiting is None else max(waiting, done)
            progress.update(task, completed=done, total=total)

        yield show
