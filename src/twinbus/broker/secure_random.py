"""Random numbers that cannot be predicted, at the cost of those that can.

A client with a lock token may settle the message (rule M2), so tokens must not be guessable. The
state of ``random.Random`` can be computed from 312 of the 64-bit numbers in tokens; therefore the
broker uses the operating system's generator. One system call for each run of locks would cost
seven times as much as ``random.Random``; one call for 512 numbers costs the same.

Rule 1: production uses this class; a simulation passes a seeded ``Random`` in its place.
Rule 2: a number that was returned is not kept.
"""

from __future__ import annotations

import os
from random import SystemRandom
from struct import Struct
from typing import Final

# 4 KB: as much as the kernel returns in one call without interruption.
_NUMBERS: Final = Struct("=512Q")
_NUMBER_BITS: Final = 64


class SecureRandom(SystemRandom):
    """The operating system's randomness, fetched for many numbers at once."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: list[int] = []

    def getrandbits(self, k: int, /) -> int:
        if k != _NUMBER_BITS:
            return super().getrandbits(k)
        if not self._numbers:
            self._numbers = list(_NUMBERS.unpack(os.urandom(_NUMBERS.size)))
        return self._numbers.pop()
