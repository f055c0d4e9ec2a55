"""The roles with a bug planted: the mover completes a message before the primary has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from twinbus.mover.chunk_transfer import ChunkTransfer
from twinbus.mover.planning.chunk_ledger import RestoredDelivery
from verification.fault_campaign import roles

# A busy primary is this late to answer: long enough for something to happen meanwhile.
HASTE_S = 1.0

_try = ChunkTransfer._try


async def _complete_and_try(
    self: ChunkTransfer, path: str, items: Sequence[RestoredDelivery], *, is_probe: bool
) -> None:
    await self._receiver.complete([each.delivered for each in items], timeout_s=5.0)
    await asyncio.sleep(HASTE_S)
    await _try(self, path, items, is_probe=is_probe)


if __name__ == "__main__":
    ChunkTransfer._try = _complete_and_try  # type: ignore[method-assign]
    roles.main()
