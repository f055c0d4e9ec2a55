"""Messages that an earlier run of an order has received, looked up again by their numbers.

They are locked, so nobody else gets them, and nothing about them changes but the body's place:
a peek shows them as they are.

Rule 1: what is found comes in the order in which it was received.
Rule 2: what is not found (its lock ended, and somebody took it) is told as missing, so that it
        will not be settled for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from twinbus.core.parcel import ReceivedMessage
from twinbus.drivers.port import Receiver

__all__ = ["LockedMessageReader"]

PEEK_COUNT: Final = 250
PEEK_TIMEOUT_S: Final = 30.0
CHUNK_COUNT_MAX: Final = 500


class LockedMessageReader:
    """The known messages of one order."""

    def __init__(
        self, receiver: Receiver, tokens: Mapping[int, bytes], handed: ReceivedMessage | None
    ) -> None:
        """``tokens`` by sequence number; ``handed`` is one of them that is here already."""
        self._receiver = receiver
        self._tokens = dict(tokens)
        self._numbers = list(tokens)
        self._here: dict[int, ReceivedMessage] = {}
        if handed is not None:
            self._here[handed.sequence_number] = handed
        self.missing: list[int] = []

    def include_deleted(self) -> None:
        """The message that is here has no lock and belongs to us all the same."""
        self._numbers = list(self._here)
        self._tokens = dict.fromkeys(self._here, b"")

    async def chunk(self) -> list[ReceivedMessage]:
        """The next of them; none when there are no more."""
        while self._numbers:
            numbers, self._numbers = (
                self._numbers[:CHUNK_COUNT_MAX],
                self._numbers[CHUNK_COUNT_MAX:],
            )
            await self._look_up(sorted(set(numbers) - self._here.keys()))
            self.missing += [each for each in numbers if each not in self._here]
            found = [self._here.pop(each) for each in numbers if each in self._here]
            if found:
                return [m._replace(lock_token=self._tokens[m.sequence_number]) for m in found]
        return []

    async def _look_up(self, numbers: list[int]) -> None:
        """Page through the queue from one wanted number to the next."""
        wanted = set(numbers)
        first = 0
        while first < len(numbers):
            page = await self._receiver.peek(
                min(PEEK_COUNT, len(numbers) - first),
                from_sequence=numbers[first],
                timeout_s=PEEK_TIMEOUT_S,
            )
            for message in page:
                if message.sequence_number in wanted:
                    self._here[message.sequence_number] = message
            if not page:
                return
            seen = max(each.sequence_number for each in page)
            while first < len(numbers) and numbers[first] <= seen:
                first += 1
