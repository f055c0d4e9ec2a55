"""Runs ``twinbus syphon --local`` in this process, and writes its receipts.

Receipts are JSON lines, written at the end of each chunk.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import typer

from twinbus.cli.syphon.commands import SyphonOptions
from twinbus.cli.syphon.summary import (
    Found,
    Summary,
    done_count,
    exit_code,
    find_backlog,
    foreign_warning,
    open_role,
    show_progress_bar,
    show_summary,
)
from twinbus.common.event_loop import run
from twinbus.encoding.envelope import TtlPolicy
from twinbus.errors import ConfigurationError, TwinbusError
from twinbus.failover.backoff import Backoff
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.mover import Mover
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome, foreign_in, to_json_line
from twinbus.pairing.backlog_queues import owner_mark
from twinbus.pairing.client.environment import ROLES
from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["ReceiptFile", "run_syphon"]


class ReceiptFile:
    """Appends receipts to a file, which may contain those of earlier runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._unusable(error) from error

    def write(self, receipts: Sequence[Receipt]) -> None:
        """Write and flush receipts; raises ConfigurationError if that fails."""
        try:
            self._file.writelines([to_json_line(each) + "\n" for each in receipts])
            self._file.flush()
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"Cannot write receipts to {str(self._path)!r}: {error.strerror or error}",
            hint="Use a writable file with free disk space for --receipts",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        except OSError:
            if error is None:
                raise


GC_THRESHOLD: Final = 50_000


def run_syphon(options: SyphonOptions) -> int:
    """Move messages until the backlog is empty or Ctrl-C; the exit code."""
    return _run(_syphon(options))


def _run(main: Coroutine[Any, Any, int]) -> int:
    # Messages live for milliseconds and have no cycles: a collection every 700 objects reduced the
    # rate by a tenth.
    gc.set_threshold(GC_THRESHOLD)
    return run(main)


async def _syphon(options: SyphonOptions) -> int:
    async with AsyncExitStack() as stack:
        primary, secondary = [
            await stack.enter_async_context(open_role(role, options)) for role in ROLES
        ]
        found = await find_backlog(primary, secondary, options)
        summary = await _move(primary, secondary, found, options)
    show_summary(summary, options.output)
    return exit_code(summary)


async def _move(
    primary: NamespaceConnection,
    secondary: NamespaceConnection,
    found: Found,
    options: SyphonOptions,
) -> Summary:
    with ExitStack() as stack:
        handler = _ReceiptHandler(stack, options, found.waiting)
        mover = Mover(
            secondary.driver,
            primary.driver,
            found.queues,
            _mover_options(found, primary, options),
            on_receipts=handler.take,
            on_stall=lambda why: typer.echo(f"twinbus: {why}", err=True),
            search=BacklogSearch(
                secondary.driver.receiver, found.primary_name, secondary.management.list_queues
            ),
        )
        handler.on_write_error = mover.stop
        stop_requested = _stop_on_signals(mover)
        began_s = time.monotonic()
        report = await (mover.dry_run() if options.dry_run else mover.run(once=options.once))
        if handler.write_error is not None:
            raise handler.write_error
    tally = report.receipt_counts
    return Summary(
        counts=tally.counts,
        moved_bytes=tally.moved_bytes,
        deferred_now_count=mover.deferred_count,
        faults={queue: str(error) for queue, error in report.faults.items()},
        elapsed_s=time.monotonic() - began_s,
        was_cut_short=options.once and stop_requested.is_set(),
    )


def _mover_options(
    found: Found, primary: NamespaceConnection, options: SyphonOptions
) -> MoverOptions:
    return MoverOptions(
        rules=DeliveryRules(
            primary_name=found.primary_name,
            allowed=options.allow,
            ttl_policy=TtlPolicy(options.ttl_policy),
            owner=owner_mark(primary.driver.address, found.primary_name),
            accepted_owners=options.accept_owners,
        ),
        chunk_count=options.chunk_count,
        rate_per_s=options.rate_per_s,
        backoff=Backoff(gone_grace_s=options.gone_grace_s),
    )


def _stop_on_signals(mover: Mover) -> asyncio.Event:
    """An event that is set by SIGINT or SIGTERM."""
    loop, stop_requested = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        stop_requested.set()
        mover.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: Ctrl-C ends the process.
            loop.add_signal_handler(number, stop)
    return stop_requested


class _ReceiptHandler:
    """Writes the receipts and shows the progress, chunk by chunk."""

    def __init__(self, stack: ExitStack, options: SyphonOptions, waiting: int | None) -> None:
        self.write_error: TwinbusError | None = None
        """Why receipts could not be written; without them the mover is stopped."""
        self.on_write_error: Callable[[], object] = lambda: None
        self._file = None
        if options.receipts is not None:
            self._file = stack.enter_context(ReceiptFile(Path(options.receipts)))
        self._counts: Counter[ReceiptOutcome] = Counter()
        self._foreign: set[str] = set()
        """The marks of other pairs that were found."""
        self._show = stack.enter_context(show_progress_bar(options.output, waiting))

    def take(self, receipts: Sequence[Receipt]) -> None:
        self._counts.update(each.outcome for each in receipts)
        for owner in foreign_in(receipts).keys() - self._foreign:
            self._foreign.add(owner)
            typer.echo(foreign_warning(owner), err=True)
        self._show(done_count(self._counts))
        if self._file is not None and self.write_error is None:
            try:
                self._file.write(receipts)
            except TwinbusError as error:
                self.write_error = error
                self.on_write_error()
