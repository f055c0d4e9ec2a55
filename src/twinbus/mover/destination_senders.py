"""One sender for each destination, shared by all chunks, and how large a batch to it may be.

Rule 1: destinations are data from messages, so the number of senders is limited; at the limit the
        sender that was not used for longest is closed. One that is in use stays: closing it would
        end a send of another chunk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from twinbus.drivers.interface import Driver, Sender

__all__ = ["DestinationSenders"]

# A connection may have 1,024 links; a backlog names a few dozen destinations.
SENDERS_MAX: Final = 256


class DestinationSenders:
    """The primary's senders, by destination."""

    def __init__(self, primary: Driver, *, senders_max: int = SENDERS_MAX) -> None:
        self._primary = primary
        self._senders_max = senders_max
        # Oldest use first.
        self._senders: dict[str, Sender] = {}
        self._uses: Counter[str] = Counter()
        self._limits_bytes: dict[str, int] = {}

    @asynccontextmanager
    async def borrow(self, path: str) -> AsyncIterator[Sender]:
        """The sender to ``path``, open at least until the block is left."""
        found = self._senders.pop(path, None) or self._primary.sender(path)
        self._senders[path] = found
        self._uses[path] += 1
        try:
            yield found
        finally:
            self._uses[path] -= 1
            if not self._uses[path]:
                del self._uses[path]
            await self._make_room()

    async def _make_room(self) -> None:
        surplus = len(self._senders) - self._senders_max
        if surplus > 0:
            idle = [path for path in self._senders if path not in self._uses][:surplus]
            for path, sender in [(path, self._senders.pop(path)) for path in idle]:
                self._limits_bytes.pop(path, None)
                await sender.close()

    def latest(self, count: int) -> list[str]:
        """The destinations that were used last."""
        return list(self._senders)[-count:]

    def has_limit(self, path: str) -> bool:
        """Whether ``path`` has answered already, so that limit_bytes() sends no request."""
        return path in self._limits_bytes

    async def limit_bytes(self, path: str, *, timeout_s: float) -> int:
        """How large a batch to ``path`` may be; opens the link when called first."""
        known = self._limits_bytes.get(path)
        if known is None:
            async with self.borrow(path) as sender:
                attached = await sender.attach(timeout_s=timeout_s)
            known = self._limits_bytes[path] = attached.batch_limit_bytes
        return known

    async def close(self) -> None:
        senders, self._senders = list(self._senders.values()), {}
        await asyncio.gather(*(sender.close() for sender in senders))
