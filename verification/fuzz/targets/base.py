"""What most targets have in common, and inputs of several parts."""

from __future__ import annotations

from random import Random
from typing import Final

from verification.fuzz import conversations, mutation
from verification.fuzz.conversations import STRANGERS, Who, who_speaks
from verification.fuzz.oracle import INPUT_BYTES_MAX_STRANGER

STRANGERS_SIZE_MAX: Final = INPUT_BYTES_MAX_STRANGER - 1_024
"""What generators aim at: a little more comes out, and is cut."""


class BaseTarget:
    """A target whose inputs are any bytes, of peers that have shown a token."""

    name = ""
    documented: tuple[type[BaseException], ...] = ()

    def mutate(self, random: Random, data: bytes, other: bytes) -> bytes:
        return mutation.mutate(random, data, other)

    def is_stranger(self, data: bytes) -> bool:
        return False


class ConversationTarget(BaseTarget):
    """A target whose inputs are what a client says behind one byte: who it is."""

    def generate(self, random: Random, size: int) -> bytes:
        who = random.choice(tuple(Who))
        if who in STRANGERS:
            size = min(size, STRANGERS_SIZE_MAX)
        return bytes((who,)) + conversations.conversation(random, who, size)

    def mutate(self, random: Random, data: bytes, other: bytes) -> bytes:
        return mutation.mutate_frames(random, data, other)

    def is_stranger(self, data: bytes) -> bool:
        return who_speaks(data) in STRANGERS


def pack(*parts: bytes) -> bytes:
    """Several parts as one input."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def unpack(data: bytes, count: int) -> list[bytes]:
    """The parts again; what is missing is empty, and the last part has whatever is left."""
    parts = []
    pos = 0
    for _ in range(count - 1):
        size = int.from_bytes(data[pos : pos + 4], "big")
        parts.append(data[pos + 4 : pos + 4 + size])
        pos = min(len(data), pos + 4 + size)
    parts.append(data[pos + 4 :])
    return parts


def mutate_parts(random: Random, data: bytes, other: bytes, count: int) -> bytes:
    """Change one part, or take it from the other input."""
    parts, others = unpack(data, count), unpack(other, count)
    at = random.randrange(count)
    if random.random() < 0.2:
        parts[at] = others[at]
    else:
        parts[at] = mutation.mutate(random, parts[at], others[at])
    return pack(*parts)
