"""Splits encoded messages into batches that a queue accepts (P13).

    batch = envelope | data section head, message | data section head, message | ...

Rule 1: order is kept, and every message is in exactly one batch.
Rule 2: a single message is sent without an envelope, so that only its own size counts. One that
        is too large even so is alone in its batch: only its sender gets an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

# What a driver writes at most before the messages of a batch: the id, the session and the partition
# key of the first one. Each has at most 128 characters of at most 4 bytes; the rest is heads.
BATCH_ENVELOPE_BYTES_MAX: Final = 3 * 512 + 128

_SMALL_BINARY_BYTES_MAX: Final = 255
_SMALL_HEAD_BYTES: Final = 5
_LARGE_HEAD_BYTES: Final = 8


def size_in_batch(size_bytes: int) -> int:
    """The bytes of a message of this size in a batch, with the head of its data section."""
    small = size_bytes <= _SMALL_BINARY_BYTES_MAX
    return size_bytes + (_SMALL_HEAD_BYTES if small else _LARGE_HEAD_BYTES)


def ranges_that_fit(sizes_bytes: Iterable[int], limit_bytes: int) -> list[range]:
    """The batches as ranges of indices into the messages with these sizes."""
    ranges = []
    start = index = 0
    taken = BATCH_ENVELOPE_BYTES_MAX
    for index, size in enumerate(sizes_bytes, 1):
        step = size_in_batch(size)
        if taken + step > limit_bytes and index - 1 > start:
            ranges.append(range(start, index - 1))
            start, taken = index - 1, BATCH_ENVELOPE_BYTES_MAX
        taken += step
    if index > start:
        ranges.append(range(start, index))
    return ranges


def split_to_fit(messages: Sequence[bytes], limit_bytes: int) -> list[list[bytes]]:
    """The messages in batches of which none is larger than ``limit_bytes``."""
    return [
        list(messages[part.start : part.stop])
        for part in ranges_that_fit(map(len, messages), limit_bytes)
    ]
