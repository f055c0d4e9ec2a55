"""The books of one namespace: its meter, and the logs that it is written to if it has a place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from twinbus.broker.metering.audit import AuditLine, AuditLog
from twinbus.clock import Clock
from twinbus.metering.operations import OperationsLog, Timers, operations_log
from twinbus.metering.tally import Meter


class NamespaceMetering:
    """Kept from the first touch of a namespace to its close."""

    def __init__(
        self,
        namespace_name: str,
        directory: Path | None,
        clock: Clock,
        chance: Random,
        *,
        audit: bool,
        keep_days: int | None = None,
    ) -> None:
        self.meter = Meter()
        self.audit: AuditLog | None = None
        self._operations: OperationsLog | None = None
        if directory is not None:
            run = f"{chance.getrandbits(64):016x}"
            self._operations = operations_log(
                directory,
                namespace_name,
                self.meter,
                run,
                clock,
                source="broker",
                keep_days=keep_days,
            )
            if audit:
                self.audit = AuditLog(namespace_name, directory, run, clock, keep_days=keep_days)

    @property
    def run(self) -> str | None:
        """What the lines of this run are called; None where none are written."""
        return None if self._operations is None else self._operations.run

    def start(self, timers: Timers, submit: Callable[[Callable[[], None]], None]) -> None:
        """Write from now on; ``submit`` runs a job that may wait for the disk."""
        if self.audit is not None:
            self.audit.start(submit)
        if self._operations is not None:
            self._operations.start(timers, submit)

    def stop(self) -> None:
        """Submit nothing more: who ran the jobs is about to end."""
        if self.audit is not None:
            self.audit.stop()
        if self._operations is not None:
            self._operations.stop()

    def take_lines(self) -> list[AuditLine]:
        """What the audit says of the batches that were closed."""
        return [] if self.audit is None else self.audit.take_closed()

    def written_with(
        self, commit: Callable[[], None], lines: list[AuditLine]
    ) -> Callable[[], None]:
        """The commit with the lines of the audit behind it."""
        return commit if self.audit is None else self.audit.behind(commit, lines)

    async def close(self) -> None:
        """Write what was counted since the last line, and that it was the end."""
        if self.audit is not None:
            await asyncio.to_thread(self.audit.close)
        if self._operations is not None:
            await asyncio.to_thread(self._operations.close())
