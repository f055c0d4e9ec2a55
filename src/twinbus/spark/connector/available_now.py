"""AvailableNow: which queues still have messages that were enqueued before the query began.

Rule 1: a queue is finished once it has nothing, or its first message is younger. Nobody waits for
        it again, so it ends also while somebody keeps sending.
Rule 2: a service that does not answer is waited for, for a minute; then the query fails: to end as
        if nothing was there would be wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from random import Random
from typing import Final

from twinbus.core.chunk_board import Backoff
from twinbus.core.parcel import ReceivedMessage
from twinbus.drivers.port import Receiver
from twinbus.service_errors import ServiceError
from twinbus.spark.connector.receiving import WarmReceiver, explained

__all__ = ["AvailableNow"]

KNOCK_S: Final = 0.3
"""How long to wait for the first message of a queue."""
PATIENCE_S: Final = 60.0
ABANDON_TIMEOUT_S: Final = 10.0


class AvailableNow:
    """For one run of one query, in the running event loop."""

    def __init__(
        self,
        receivers: Mapping[str, Receiver],
        until_ms: int,
        on_fault: Callable[[str, ServiceError | None], object],
    ) -> None:
        """``on_fault`` is told of a queue that cannot be received from, and None once it can."""
        self.until_ms = until_ms
        self._receivers = receivers
        self._unfinished = list(receivers)
        self._on_fault = on_fault
        self._backoff, self._random = Backoff(), Random()

    def finish(self, paths: Container[str]) -> None:
        """Ask these no more."""
        self._unfinished = [path for path in self._unfinished if path not in paths]

    async def probe(self, keep: Callable[[str, ReceivedMessage], object]) -> None:
        """Give ``keep`` a first message of every queue that has one, locked."""
        paths, self._unfinished = self._unfinished, []
        found = await asyncio.gather(*map(self._first_of, paths), return_exceptions=True)
        for path, message in zip(paths, found, strict=True):
            if not isinstance(message, ReceivedMessage):
                continue
            if (message.enqueued_at_ms or 0) <= self.until_ms:
                self._unfinished.append(path)
                keep(path, message)
            else:
                with suppress(ServiceError):  # Its lock ends by itself.
                    receiver = self._receivers[path]
                    await receiver.abandon([message], timeout_s=ABANDON_TIMEOUT_S)
        for error in found:
            if isinstance(error, BaseException):
                raise error

    async def _first_of(self, path: str) -> ReceivedMessage | None:
        loop = asyncio.get_running_loop()
        ends_s, failure_count = loop.time() + PATIENCE_S, 0
        while True:
            try:
                messages = await WarmReceiver(KNOCK_S).receive(self._receivers[path], 1)
                break
            except ServiceError as error:
                failure_count += 1
                pause_s = self._backoff.pause_s(failure_count, self._random)
                if not error.is_transient or loop.time() + pause_s > ends_s:
                    raise explained(path, error) from error
                if failure_count == 1:
                    self._on_fault(path, error)
            await asyncio.sleep(pause_s)
        if failure_count:
            self._on_fault(path, None)
        return messages[0] if messages else None
