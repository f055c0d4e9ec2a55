"""Changes to inputs that were worth keeping.

Rule 1: a mutation may make an input longer, up to the limit that its caller cuts it to.
Rule 2: numbers are changed where they stand: most bytes of a binary protocol are sizes and codes.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from verification.fuzz import grammar

_BYTES: Final = (0x00, 0x01, 0x40, 0x45, 0x53, 0x7F, 0x80, 0x98, 0xA1, 0xC0, 0xC1, 0xD0, 0xD1, 0xFF)


def mutate(random: Random, data: bytes, other: bytes) -> bytes:
    """A few changes, one after the other."""
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        data = random.choice(_CHANGES)(random, data, other)
    return data


def mutate_frames(random: Random, data: bytes, other: bytes) -> bytes:
    """Changes to a stream of frames whose first byte says who speaks."""
    if random.random() < 0.3 or len(data) < 2:
        return mutate(random, data, other)
    head, frames = data[:1], grammar.split_frames(data[1:])
    others = grammar.split_frames(other[1:])
    if random.random() < 0.1:
        head = bytes((random.randrange(5),))
    for _ in range(random.choice((1, 1, 2, 4))):
        _change_frames(random, frames, others)
    return head + b"".join(frames)


def _change_frames(random: Random, frames: list[bytes], others: list[bytes]) -> None:
    if not frames:
        frames.append(b"\x00\x00\x00\x08\x02\x00\x00\x00")
    at = random.randrange(len(frames))
    choice = random.randrange(7)
    if choice == 0:
        del frames[at]
    elif choice == 1:
        frames[at:at] = [frames[at]] * random.choice((1, 2, 30, 500))
    elif choice == 2 and others:
        frames.insert(at, random.choice(others))
    elif choice == 3:
        other = random.randrange(len(frames))
        frames[at], frames[other] = frames[other], frames[at]
    elif choice == 4:
        frames[at] = _with_size(mutate(random, frames[at], b""))
    elif choice == 5:
        inner = bytearray(frames[at])
        for _ in range(random.choice((1, 2, 4))):
            if len(inner) > 8:
                inner[random.randrange(8, len(inner))] = random.choice(_BYTES)
        frames[at] = bytes(inner)
    else:
        stop = min(len(frames), at + random.choice((1, 3, 10)))
        frames[at:at] = frames[at:stop] * random.choice((1, 5, 50))


def _with_size(data: bytes) -> bytes:
    """The frame with its right size, so that what is wrong in it is reached."""
    if len(data) < 8 or data.startswith(b"AMQP"):
        return data
    return grammar.u32(len(data)) + data[4:]


def _flip(random: Random, data: bytes, other: bytes) -> bytes:
    if not data:
        return b"\x00"
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 4, 16))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _set(random: Random, data: bytes, other: bytes) -> bytes:
    if not data:
        return b"\x40"
    at = random.randrange(len(data))
    return data[:at] + bytes((random.choice(_BYTES),)) + data[at + 1 :]


def _number(random: Random, data: bytes, other: bytes) -> bytes:
    width = random.choice((1, 2, 4, 4, 8))
    if len(data) < width:
        return data
    at = random.randrange(len(data) - width + 1)
    number = int.from_bytes(data[at : at + width], "big")
    number = random.choice((number + 1, number - 1, number * 2, *grammar.EDGES))
    return data[:at] + (number % (1 << 8 * width)).to_bytes(width, "big") + data[at + width :]


def _delete(random: Random, data: bytes, other: bytes) -> bytes:
    start, stop = _range(random, data)
    return data[:start] + data[stop:]


def _repeat(random: Random, data: bytes, other: bytes) -> bytes:
    start, stop = _range(random, data)
    return data[:start] + data[start:stop] * random.choice((2, 3, 20, 300)) + data[stop:]


def _insert_value(random: Random, data: bytes, other: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + grammar.value(random) + data[at:]


def _replace_value(random: Random, data: bytes, other: bytes) -> bytes:
    start, stop = _range(random, data)
    made = grammar.value(random) if random.random() < 0.7 else grammar.big_value(random, 2_000)
    return data[:start] + made + data[stop:]


def _splice(random: Random, data: bytes, other: bytes) -> bytes:
    if not other:
        return data
    start, stop = _range(random, other)
    at = random.randrange(len(data) + 1)
    return data[:at] + other[start:stop] + data[at:]


def _cut(random: Random, data: bytes, other: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _range(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 2, 4, 9, 17, 64, 1_000)))


_CHANGES: Final[tuple[Callable[[Random, bytes, bytes], bytes], ...]] = (
    _flip, _set, _set, _number, _number, _delete, _repeat, _insert_value, _replace_value, _splice,
    _cut,
)  # fmt: skip
