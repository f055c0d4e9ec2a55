"""Returns free memory to the operating system after a burst of load.

After 200 connections have sent messages of 256 KB, the heap is fragmented: glibc keeps 110 of
165 MB although all of it is free. malloc_trim() returns whole pages from the middle of the heap,
for 8 ms of CPU time on a thread of its own. The small blocks of OpenSSL have the same effect: 500
aborted handshakes left 40 MB.

Rule 1: only when the process has grown since the last trim, or when connections have closed; a
        steady load has no cost.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

LOOK_S = 2.0
GROWTH_BYTES_MIN = 8 << 20
LOOKS_AFTER_LOSS = 2

_STATM = Path("/proc/self/statm")


async def give_memory_back() -> None:
    """Check every LOOK_S seconds, for as long as the broker runs."""
    trim = _trimmer()
    if trim is None:
        return
    heap = Heap(anonymous_bytes())
    while True:
        await asyncio.sleep(LOOK_S)
        if heap.wants_trim(anonymous_bytes(), descriptor_count()):
            await asyncio.to_thread(trim, 0)
            heap.was_trimmed(anonymous_bytes())


class Heap:
    """The memory use of the process, and when a trim is worth its cost."""

    def __init__(self, used_bytes: int) -> None:
        self._least_bytes = self._trimmed_bytes = used_bytes
        self._connection_count = 0
        self._looks_left = 0

    def wants_trim(self, used_bytes: int, connection_count: int) -> bool:
        """Whether memory may be free."""
        if connection_count < self._connection_count:
            # Their data on the way to disk is freed a little later.
            self._looks_left = LOOKS_AFTER_LOSS
        self._connection_count = connection_count
        self._least_bytes = min(self._least_bytes, used_bytes)
        if used_bytes <= self._least_bytes + GROWTH_BYTES_MIN:
            return False
        if self._looks_left:
            self._looks_left -= 1
            return True
        return used_bytes > self._trimmed_bytes + GROWTH_BYTES_MIN

    def was_trimmed(self, used_bytes: int) -> None:
        self._trimmed_bytes = used_bytes


def anonymous_bytes() -> int:
    """The memory that this process has allocated, without the pages of files."""
    _size, resident, shared = map(int, _STATM.read_text().split()[:3])
    return (resident - shared) * mmap.PAGESIZE


def descriptor_count() -> int:
    """Every connection has one: clients, unfinished TLS handshakes, HTTP requests."""
    return len(os.listdir("/proc/self/fd"))


def _trimmer() -> Callable[[int], object] | None:
    if sys.platform != "linux" or not _STATM.exists():
        return None
    trim: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim  # musl has none
