"""What ``twinbus syphon`` does: find both namespaces and the backlog queues, move, sum up."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, suppress
from typing import Any, Final

from twinbus.cli.syphon import SyphonOptions
from twinbus.cli.syphon_shown import Summary, exit_code, progress_shown, show_summary
from twinbus.core.chunk import HomeRules
from twinbus.core.chunk_board import Backoff
from twinbus.core.envelope import TtlPolicy
from twinbus.core.receipts import Receipt
from twinbus.entity_path import BACKLOG_MARKER, parse_backlog_path
from twinbus.errors import InvalidEntityPath, TwinbusError
from twinbus.pairing.backlog_queues import backlog_paths
from twinbus.pairing.environment import Role
from twinbus.pairing.mover import Mover
from twinbus.pairing.mover_options import MoverOptions
from twinbus.pairing.mover_receipts import ReceiptFile
from twinbus.pairing.open_namespace import (
    OpenNamespace,
    namespace_named_in,
    opened_namespace,
)
from twinbus.service_errors import AccessRefused, NoBacklogQueue

__all__ = ["run_syphon"]

GC_THRESHOLD: Final = 50_000
_ROLES: Final[tuple[Role, Role]] = ("primary", "secondary")


def run_syphon(options: SyphonOptions) -> int:
    """Move what there is, or until Ctrl-C; the exit code."""
    return _run(_syphon(options))


def _run(main: Coroutine[Any, Any, int]) -> int:
    # Messages live for milliseconds and hold no cycles: looking for some every 700 objects cost
    # a tenth of the rate.
    gc.set_threshold(GC_THRESHOLD)
    try:
        import uvloop
    except ImportError:  # Windows has no uvloop
        return asyncio.run(main)
    return uvloop.run(main)


async def _syphon(options: SyphonOptions) -> int:
    async with AsyncExitStack() as stack:
        primary, secondary = [
            await stack.enter_async_context(_opened(role, options)) for role in _ROLES
        ]
        name = await primary.primary_name(options.primary_name)
        queues = await _backlog_queues(secondary, name, options)
        summary = await _moved(primary, secondary, name, queues, options)
    show_summary(summary, options.output)
    return exit_code(summary)


def _opened(role: Role, options: SyphonOptions) -> AbstractAsyncContextManager[OpenNamespace]:
    return opened_namespace(
        namespace_named_in(os.environ, role),
        ca_file=options.ca_file,
        management_port=options.management_port,
    )


async def _backlog_queues(
    secondary: OpenNamespace, primary_name: str, options: SyphonOptions
) -> list[str]:
    """The queues to empty: as many as we were told, or all that a listing shows."""
    if options.backlog_queue_count is not None:
        return list(backlog_paths(primary_name, options.backlog_queue_count))
    prefix = f"{primary_name}/{BACKLOG_MARKER}/"
    try:
        listed = [queue.path async for queue in secondary.management.list_queues(prefix)]
    except AccessRefused as error:
        raise AccessRefused(
            "the backlog queues cannot be listed: Manage is missing on the secondary",
            hint="Say how many there are with --backlog-queue-count",
        ) from error
    found = [path for path in listed if _is_backlog_queue(path)]
    if not found:
        raise NoBacklogQueue(
            f"the secondary has no backlog queue of {primary_name!r}",
            hint=f"They are called {prefix}0 and so on; check --primary-name",
        )
    return found


def _is_backlog_queue(path: str) -> bool:
    try:
        parse_backlog_path(path)
    except InvalidEntityPath:
        return False
    return True


async def _moved(
    primary: OpenNamespace,
    secondary: OpenNamespace,
    primary_name: str,
    queues: Sequence[str],
    options: SyphonOptions,
) -> Summary:
    with ExitStack() as stack:
        witness = _Witness(stack, options)
        mover = Mover(
            secondary.driver,
            primary.driver,
            queues,
            _mover_options(primary_name, options),
            on_receipts=witness.take,
        )
        witness.on_trouble = mover.stop
        _stop_on_signals(mover)
        began_s = time.monotonic()
        report = await (mover.preview() if options.dry_run else mover.run(once=options.once))
        if witness.trouble is not None:
            raise witness.trouble
    return Summary(report, time.monotonic() - began_s)


def _mover_options(primary_name: str, options: SyphonOptions) -> MoverOptions:
    return MoverOptions(
        rules=HomeRules(
            primary_name=primary_name,
            allowed=options.allow,
            ttl_policy=TtlPolicy(options.ttl_policy),
        ),
        chunk_count=options.chunk_count,
        rate_per_s=options.rate_per_s,
        backoff=Backoff(gone_grace_s=options.gone_grace_s),
    )


def _stop_on_signals(mover: Mover) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: Ctrl-C ends the process.
            loop.add_signal_handler(number, mover.stop)


class _Witness:
    """Writes the receipts and shows the progress, chunk by chunk."""

    def __init__(self, stack: ExitStack, options: SyphonOptions) -> None:
        self.trouble: TwinbusError | None = None
        """Why receipts could not be written: moving without them is not what was asked for."""
        self.on_trouble: Callable[[], object] = lambda: None
        self._file = None
        if options.receipts is not None:
            self._file = stack.enter_context(ReceiptFile(options.receipts))
        self._advance = stack.enter_context(progress_shown(options.output))

    def take(self, receipts: Sequence[Receipt]) -> None:
        self._advance(receipts)
        if self._file is not None and self.trouble is None:
            try:
                self._file.write(receipts)
            except TwinbusError as error:
                self.trouble = error
                self.on_trouble()
