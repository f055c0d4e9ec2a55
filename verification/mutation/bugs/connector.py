"""Bugs of the connector's source, which runs beside Spark's driver."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twinbus.encoding.transit import ReceivedMessage
from twinbus.spark.connector import coordinator
from twinbus.spark.connector.coordinator import StreamCoordinator
from twinbus.spark.connector.lock_ledger import LockLedger
from twinbus.spark.connector.partition_reader import LockedMessageReader

_SETTLING: set[asyncio.Task[Any]] = set()


def settle_before_the_batch_is_written(patch: pytest.MonkeyPatch) -> None:
    """Messages are completed when their task has read them to the end."""
    sealed = StreamCoordinator._sealed

    def hasty(
        self: StreamCoordinator, order_id: str, reader: str, facts: dict[str, Any]
    ) -> dict[str, Any]:
        answer = sealed(self, order_id, reader, facts)
        epoch = int(order_id.partition("/")[0])
        _SETTLING.add(asyncio.ensure_future(self._keeper.settle(epoch)))
        return answer

    # The table of answers has the method itself.
    patch.setitem(coordinator._ANSWERS, "sealed", hasty)


def drop_the_message_that_rang(patch: pytest.MonkeyPatch) -> None:
    """The message that woke the query is in the ledger, and its task yields no row for it."""
    begin = LockedMessageReader.__init__

    def without(
        self: LockedMessageReader,
        receiver: Any,
        known: dict[int, bytes],
        handed: ReceivedMessage | None,
    ) -> None:
        if handed is not None:
            known = {n: token for n, token in known.items() if n != handed.sequence_number}
        begin(self, receiver, known, None)

    patch.setattr(LockedMessageReader, "__init__", without)


def renew_no_locks(patch: pytest.MonkeyPatch) -> None:
    """What a slow batch holds goes back to its queue meanwhile."""
    patch.setattr(LockLedger, "due", lambda _self, _now_s: [])
