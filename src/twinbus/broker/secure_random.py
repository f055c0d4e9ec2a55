"""Chance that nobody can guess, as cheap as chance that anybody can.

A lock token is a right: whoever presents it may settle the message (rule M2). The generator that
``random.Random`` uses gives its whole state away with 312 of the 64-bit numbers that tokens are
made of, so the broker draws from the operating system. A system call for each run of locks would
cost seven times as much as the usual generator; one call for 512 numbers costs what that one does.

Rule 1: production uses this one; a simulation passes a seeded ``Random`` in its place.
Rule 2: a number that was given out is kept nowhere.
"""

from __future__ import annotations

import os
from random import SystemRandom
from struct import Struct
from typing import Final

# One call gives as much as the kernel hands over without being interrupted.
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
