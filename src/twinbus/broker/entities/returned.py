"""Messages that came back and are to be handed out again, oldest first.

They are kept by chunk, because a chunk knows by one mask which of its messages came back.
"""

from __future__ import annotations

from heapq import heappop, heappush

from twinbus.broker.entities.chunk import Chunk


class ReturnedMessages:
    """The chunks with messages to be handed out again."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._order: list[int] = []

    def add(self, chunk: Chunk, mask: int) -> None:
        chunk.returned |= mask
        if chunk.first_seq not in self._chunks:
            heappush(self._order, chunk.first_seq)
        # An entry without returned messages may still name a chunk that was read anew since.
        self._chunks[chunk.first_seq] = chunk

    def first(self) -> Chunk | None:
        """The chunk with the oldest of them."""
        while self._order:
            chunk = self._chunks[self._order[0]]
            if chunk.returned:
                return chunk
            del self._chunks[heappop(self._order)]
        return None

    def take(self) -> list[Chunk]:
        """All of them; none is left."""
        chunks = list(self._chunks.values())
        self._chunks, self._order = {}, []
        return chunks

    def drop_blobs(self) -> None:
        """Nobody receives: the bytes are read again when somebody does."""
        for chunk in self._chunks.values():
            chunk.drop_blob()
