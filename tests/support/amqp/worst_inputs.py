"""Inputs that cost most for their size: colliding keys, and as many elements as fit.

    uuid_keys(count)      UUIDs with one hash: Python's is the integer modulo 2**61 - 1
    walking_keys(count)   whole numbers that visit the same places of a hash table, one by one
    CROWDS                for each kind of element, a value that is full of it

Rule 1: everything here is valid AMQP; what is refused is refused for what it costs.
"""

from __future__ import annotations

import gc
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from random import Random

from twinbus.amqp.codec.decode import decode_value
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.limits import AmqpLimits, Budget
from twinbus.amqp.message.sections import scan_message

HASH_MODULUS = 2**61 - 1
"""hash() of whole numbers, floats and UUIDs is their value modulo this."""


# --- building -----------------------------------------------------------------------------------


def counted(code: int, count: int, body: bytes) -> bytes:
    return bytes((code,)) + struct.pack(">II", len(body) + 4, count) + body


def a_list(items: list[bytes]) -> bytes:
    return counted(0xD0, len(items), b"".join(items))


def a_map(keys: list[bytes], value: bytes = b"\x40") -> bytes:
    return counted(0xD1, 2 * len(keys), b"".join(key + value for key in keys))


def an_array(code: int, items: list[bytes]) -> bytes:
    return counted(0xF0, len(items), bytes((code,)) + b"".join(items))


def described(code: int, value: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + value


# --- keys ---------------------------------------------------------------------------------------


def a_uuid(number: int) -> bytes:
    return b"\x98" + number.to_bytes(16, "big")


def a_ulong(number: int) -> bytes:
    return b"\x80" + struct.pack(">Q", number)


def uuid_keys(count: int) -> list[bytes]:
    """UUIDs that all have the hash 7."""
    return [a_uuid(7 + (number + 1) * HASH_MODULUS) for number in range(count)]


def double_keys(count: int) -> list[bytes]:
    """Doubles of which 32 each have one hash: a power of 2**61 changes nothing."""
    return [
        b"\x82" + struct.pack(">d", (1.0 + number // 32) * 2.0 ** (61 * (number % 32 - 16)))
        for number in range(count)
    ]


@cache
def walking_keys(count: int) -> list[bytes]:
    """Ulongs that cost a dictionary a time that grows with the square of their number.

    A dictionary goes on from place i to 5 i + 1 when i is taken, once the upper bits of the hash
    are used up. The first half of the keys takes the places of that walk; the keys of the second
    half come upon it near its beginning and walk to its end. ``count`` is best just below two
    thirds of a power of two: the fuller a table is, the easier such keys are found.
    """
    bits = (3 * count // 2 - 1).bit_length()  # The table that such a number fills.
    mask = (1 << bits) - 1
    walk, place = [], 1
    for _ in range(count // 2):
        walk.append(place)
        place = 5 * place + 1 & mask
    step_of = {place: step for step, place in enumerate(walk)}
    late, random = set[int](), Random(1)
    while len(late) < count - len(walk):
        number = random.getrandbits(bits + 9)
        if _joins(number, mask, step_of) and number not in step_of:
            late.add(number)
    return [a_ulong(number) for number in (*walk, *sorted(late))]


def _joins(number: int, mask: int, step_of: dict[int, int]) -> bool:
    rest, place = number, number & mask
    while place in step_of and rest:
        rest >>= 5
        place = 5 * place + rest + 1 & mask
    return step_of.get(place, mask) < len(step_of) // 4


# --- crowds -------------------------------------------------------------------------------------


def deep_lists() -> bytes:
    value = b"\x45"
    for _ in range(60):
        value = bytes((0xC0, len(value) + 1, 1)) + value
    return value


CROWDS: dict[str, Callable[[int], bytes]] = {
    "nulls": lambda count: a_list([b"\x40"] * count),
    "small and null": lambda count: a_list([b"\x52\x07", b"\x40"] * (count // 2)),
    "small numbers": lambda count: a_list([b"\x52\x07"] * count),
    "booleans": lambda count: a_list([b"\x56\x01"] * count),
    "chars": lambda count: a_list([b"\x73\x00\x00\x00a"] * count),
    "empty lists": lambda count: a_list([b"\x45"] * count),
    "empty short lists": lambda count: a_list([b"\xc0\x01\x00"] * count),
    "empty long lists": lambda count: a_list([b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00"] * count),
    "empty maps": lambda count: a_list([b"\xc1\x01\x00"] * count),
    "maps of one": lambda count: a_list([b"\xc1\x03\x02\x41\x41"] * (count // 3)),
    "empty arrays": lambda count: a_list([b"\xe0\x01\x00"] * count),
    "arrays of one": lambda count: a_list([b"\xe0\x03\x01\x50\x00"] * (count // 2)),
    "described by number": lambda count: a_list([b"\x00\x53\x01\x40"] * count),
    "described by symbol": lambda count: a_list([b"\x00\xa3\x02ab\x40"] * count),
    "empty strings": lambda count: a_list([b"\xa1\x00"] * count),
    "short strings": lambda count: a_list([b"\xa1\x01a"] * count),
    "umlauts": lambda count: a_list([b"\xa1\x02\xc3\xa4"] * count),
    "umlauts at length": lambda count: a_list([b"\xb1\x00\x00\x00\x02\xc3\xa4"] * count),
    "empty symbols": lambda count: a_list([b"\xa3\x00"] * count),
    "short symbols": lambda count: a_list([b"\xa3\x01a"] * count),
    "uuids": lambda count: a_list([a_uuid(number) for number in range(count)]),
    "decimals": lambda count: a_list([b"\x94" + bytes(16)] * count),
    "array of small numbers": lambda count: an_array(0x50, [b"\x01"] * count),
    "array of empty symbols": lambda count: an_array(0xA3, [b"\x00"] * count),
    "array of symbols": lambda count: an_array(0xA3, [b"\x01a"] * count),
    "array of booleans": lambda count: an_array(0x56, [b"\x01"] * count),
    "array of lists": lambda count: an_array(0xC0, [b"\x01\x00"] * count),
    "array of maps": lambda count: an_array(0xC1, [b"\x03\x02\x41\x41"] * (count // 3)),
    "array of arrays": lambda count: an_array(0xE0, [b"\x01\x00"] * count),
    "string keys": lambda count: a_map([b"\xa1\x05%05x" % each for each in range(count // 2)]),
    "deep lists": lambda count: a_list([deep_lists()] * (count // 62)),
}
"""By the kind of their elements: a value with that many, those inside of others included."""


def crowds(count: int, size_bytes_max: int) -> Iterator[tuple[str, bytes]]:
    """All of them that fit; a kind whose elements are long has fewer."""
    for name, build in CROWDS.items():
        wanted = count
        while len(value := build(wanted)) > size_bytes_max:
            wanted = int(wanted * size_bytes_max / len(value)) - 1
        yield name, value


# --- frames -------------------------------------------------------------------------------------


def symbol_map(value: bytes) -> bytes:
    """A map with one entry, whose key is a symbol."""
    return a_map([b"\xa3\x01a"], value)


def attach_with(**fields: bytes) -> bytes:
    """An attach whose properties, unsettled map or filter is given as bytes."""
    source: list[bytes] = [b"\xa1\x01q", *[b"\x40"] * 10]
    source[7] = fields.get("filter", b"\x40")
    values = [b"\x40"] * 14
    values[0], values[1], values[2] = b"\xa1\x01n", b"\x43", b"\x41"
    values[5] = described(0x28, a_list(source))
    values[6] = described(0x29, a_list([b"\xa1\x04here"]))
    values[7] = fields.get("unsettled", b"\x40")
    values[13] = fields.get("properties", b"\x40")
    return described(0x12, a_list(values))


SECTIONS = {
    "data": b"\x00\x53\x75\xa0\x00",
    "long data": b"\x00\x53\x75\xb0\x00\x00\x00\x00",
    "sequences": b"\x00\x53\x76\x45",
    "short sequences": b"\x00\x53\x76\xc0\x01\x00",
    "unusual descriptors": b"\x00\x80" + bytes(7) + b"\x75\xa0\x00",
    "descriptors as symbols": b"\x00\xa3\x10amqp:data:binary\xa0\x00",
}
"""Sections of a body that are as short as can be."""


# --- measuring ----------------------------------------------------------------------------------


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that was allocated at one moment of the work."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        kept = work()
        del kept
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def ratio(read: Callable[[bytes], object], buf: bytes) -> float:
    """How many bytes are allocated for each byte of an input, whether it is refused or not."""

    def work() -> object:
        try:
            return read(buf)
        except DecodeError:
            return None

    return peak_bytes(work) / len(buf)


def memory_ratios() -> dict[str, float]:
    """Of everything that decoding and checking may be asked for, by the kind of input."""
    generous = AmqpLimits(compound_count_max=1 << 26, value_count_max=1 << 26)
    found: dict[str, float] = {}
    inputs = {name: build(20_000) for name, build in CROWDS.items()}
    pairs = [bytes((first, second)) for first in range(128) for second in range(128)]
    inputs["short keys"] = a_map([b"\xa1\x02" + pair for pair in pairs])
    for name, buf in inputs.items():
        found[f"decode {name}"] = ratio(
            lambda buf: decode_value(buf, 0, len(buf), Budget(generous)), buf
        )
        found[f"scan {name}"] = ratio(_scan, described(0x77, buf))
    for name, section in SECTIONS.items():
        found[f"sections {name}"] = ratio(_scan, section * ((1 << 20) // len(section)))
    return found


def _scan(buf: bytes) -> object:
    return scan_message(buf, 0, len(buf))


if __name__ == "__main__":
    # In a process of its own: the threads of other tests allocate as well.
    print(json.dumps(memory_ratios()))
