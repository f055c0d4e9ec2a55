"""A mover in the background of an application: what ``enable_syphon`` hosts without Spark.

Rule 1: stop() returns within about 5 s, whatever the namespaces do.
Rule 2: a mover that ends by itself is a fault, and whoever hosts it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from twinbus.core.receipts import ReceiptCounts
from twinbus.drivers.port import Driver
from twinbus.pairing.backlog_search import BacklogSearch
from twinbus.pairing.mover import Mover, OnFault
from twinbus.pairing.mover_options import MoverOptions
from twinbus.pairing.mover_queue import OnReceipts

__all__ = ["LocalSyphon"]


class LocalSyphon:
    """Brings the backlog home from start() to stop()."""

    def __init__(
        self,
        primary: Driver,
        secondary: Driver,
        queues: Sequence[str],
        options: MoverOptions,
        *,
        on_receipts: OnReceipts | None = None,
        on_fault: OnFault | None = None,
        on_stall: Callable[[str], object] | None = None,
        on_refused: Callable[[str, str], object] | None = None,
        on_end: Callable[[BaseException], object] | None = None,
        search: BacklogSearch | None = None,
    ) -> None:
        """``on_fault`` is told of a queue that could not be read, and that is tried again;
        ``on_stall`` why nothing moves although messages wait; ``on_refused`` of a path and the
        claim that is missing for it; ``on_end`` of an error that ended the whole."""
        self._mover = Mover(
            secondary,
            primary,
            queues,
            options,
            on_receipts=on_receipts,
            on_fault=on_fault,
            on_stall=on_stall,
            on_refused=on_refused,
            search=search,
        )
        self._on_end = on_end
        self._task: asyncio.Task[object] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def receipt_counts(self) -> ReceiptCounts:
        """What became of the messages so far."""
        return self._mover.report.receipt_counts

    def start(self) -> None:
        """Begin, in the running event loop; once."""
        if self._task is None:
            self._task = asyncio.create_task(self._mover.run(), name="twinbus-syphon")
            self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End after the chunks under way; may be called twice."""
        if self._task is None:
            await self._mover.close()
            return
        self._mover.stop()
        with suppress(Exception):  # Told to on_end, by whose reason it ended.
            await asyncio.shield(self._task)

    def _ended(self, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (error := task.exception()) and self._on_end is not None:
            self._on_end(error)
