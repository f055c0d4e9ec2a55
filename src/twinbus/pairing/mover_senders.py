"""One sender for each destination, shared by all chunks, and how much it takes in one send.

Rule 1: destinations are data from messages, so there is an upper bound; the sender that was not
        used for longest is closed when it is reached.
"""

from __future__ import annotations

from typing import Final

from twinbus.drivers.port import Driver, Sender

__all__ = ["SenderPool"]

# A connection may have 1,024 links; a backlog names a few dozen destinations.
SENDERS_MAX: Final = 256


class SenderPool:
    """The primary's senders, by destination."""

    def __init__(self, primary: Driver, *, senders_max: int = SENDERS_MAX) -> None:
        self._primary = primary
        self._senders_max = senders_max
        # Oldest use first.
        self._senders: dict[str, Sender] = {}
        self._limits_bytes: dict[str, int] = {}

    async def sender(self, path: str) -> Sender:
        found = self._senders.pop(path, None) or self._primary.sender(path)
        self._senders[path] = found
        if len(self._senders) > self._senders_max:
            oldest = next(iter(self._senders))
            self._limits_bytes.pop(oldest, None)
            await self._senders.pop(oldest).close()
        return found

    async def limit_bytes(self, path: str, *, timeout_s: float) -> int:
        """How large a batch to ``path`` may be; asks the destination once."""
        known = self._limits_bytes.get(path)
        if known is None:
            sender = await self.sender(path)
            facts = await sender.attach(timeout_s=timeout_s)
            known = self._limits_bytes[path] = facts.batch_limit_bytes
        return known

    async def close(self) -> None:
        senders, self._senders = list(self._senders.values()), {}
        for sender in senders:
            await sender.close()
