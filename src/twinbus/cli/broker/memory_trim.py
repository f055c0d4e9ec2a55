"""Memory that a burst has left behind goes back to the machine.

Two hundred connections that send messages of 256 KB leave a heap full of holes: all of it is free,
and glibc keeps it, 110 MB of 165. malloc_trim() gives whole pages in the middle of the heap back,
for 8 ms of processor time on a thread of its own. So do the small blocks of OpenSSL: 500 handshakes
that broke off left 40 MB.

Rule 1: only when the process has grown since the last time, or when connections have gone; a steady
        load pays nothing.
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
    """Look now and then, for as long as the broker runs."""
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
    """What the process uses, as far as is needed to know when something may be given back."""

    def __init__(self, used_bytes: int) -> None:
        self._least_bytes = self._trimmed_bytes = used_bytes
        self._connection_count = 0
        self._looks_left = 0

    def wants_trim(self, used_bytes: int, connection_count: int) -> bool:
        """Whether something may be free by now."""
        if connection_count < self._connection_count:
            # What they had on its way to disk is free a little later.
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
    """What this process has allocated, without the pages of files."""
    _size, resident, shared = map(int, _STATM.read_text().split()[:3])
    return (resident - shared) * mmap.PAGESIZE


def descriptor_count() -> int:
    """Whatever is connected has one: clients, half a TLS handshake, a request."""
    return len(os.listdir("/proc/self/fd"))


def _trimmer() -> Callable[[int], object] | None:
    if sys.platform != "linux" or not _STATM.exists():
        return None
    trim: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim  # musl has none
