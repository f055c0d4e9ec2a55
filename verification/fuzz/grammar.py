"""AMQP 1.0 bytes from its grammar: values, messages, performatives and frames.

Rule 1: everything comes from a Random and a size; nothing of the product makes the bytes, so that
        its encoders cannot hide what its decoders would do with other bytes.
Rule 2: large inputs have many small parts as often as few large ones. What is slow is seldom
        long: it is numerous, nested, or equal in the wrong place.
Rule 3: about one value in twelve lies about its size or count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

HASH_PRIME: Final = (1 << 61) - 1
"""Python's hash of an integer is its rest by this number: multiples collide in dictionaries."""

FIXED_CODES: Final = {
    0x40: 0, 0x41: 0, 0x42: 0, 0x43: 0, 0x44: 0, 0x45: 0,
    0x50: 1, 0x51: 1, 0x52: 1, 0x53: 1, 0x54: 1, 0x55: 1, 0x56: 1,
    0x60: 2, 0x61: 2, 0x70: 4, 0x71: 4, 0x72: 4, 0x73: 4, 0x74: 4,
    0x80: 8, 0x81: 8, 0x82: 8, 0x83: 8, 0x84: 8, 0x94: 16, 0x98: 16,
}  # fmt: skip
VARIABLE_CODES: Final = (0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3)
COMPOUND_CODES: Final = (0x45, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0)
EDGES: Final = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1)
TEXTS: Final = (
    b"", b"a", b"x-opt-locked-until", b"x-opt-lock-token", b"x-opt-scheduled-enqueue-time",
    b"x-opt-partition-key", b"x-ms-path", b"x-ms-session-id", b"x-ms-time-to-live",
    b"com.microsoft:session-filter", b"apache.org:selector-filter:string", b"operation", b"type",
    b"name", b"put-token", b"servicebus.windows.net:sastoken", b"orders", b"orders/$management",
    b"application/vnd.ms-servicebus-ping", "é".encode(), "\U0001f680".encode(), b"%2e%2e",
)  # fmt: skip


# --- pieces --------------------------------------------------------------------------------------


def u32(number: int) -> bytes:
    return (number & 0xFFFFFFFF).to_bytes(4, "big")


def lie(random: Random, number: int) -> int:
    """The number, or now and then another one."""
    if random.random() < 0.92:
        return number
    return max(0, random.choice((number + 1, number - 1, number * 2, *EDGES)))


def text(random: Random, size: int | None = None) -> bytes:
    """Bytes that are a text, mostly."""
    if size is None:
        if random.random() < 0.5:
            return random.choice(TEXTS)
        size = random.choice((0, 1, 3, 8, 20, 60))
    unit = random.choice((b"a", b"ab", "é".encode(), "€".encode(), "\U0001f680".encode(), b"\x00"))
    return (unit * (size // len(unit) + 1))[: size - size % len(unit)]


def string(data: bytes, code: int = 0xA1) -> bytes:
    """A binary, string or symbol, short or long as needed."""
    if len(data) < 256:
        return bytes((code, len(data))) + data
    return bytes((code + 0x10,)) + u32(len(data)) + data


def symbol(data: bytes) -> bytes:
    return string(data, 0xA3)


def fixed(random: Random, code: int) -> bytes:
    """A value of a fixed width, after its constructor."""
    width = FIXED_CODES[code]
    if code == 0x56:
        return bytes((random.choice((0, 1, 1, 2)) if random.random() < 0.1 else 1,))
    if code == 0x73:
        wrong = (0xD800, 0x110000) if random.random() < 0.1 else ()
        return u32(random.choice((65, 0x20AC, 0x1F680, *wrong)))
    if random.random() < 0.4:
        return random.choice(EDGES).to_bytes(16, "big")[16 - width :]
    return random.randbytes(width)


def compound(
    random: Random, kind: int, items: Sequence[bytes] | bytes, count: int | None = None
) -> bytes:
    """A list (0xC0) or map (0xC1), in the short form when it fits."""
    body = items if isinstance(items, bytes) else b"".join(items)
    count = len(items) if count is None else count
    count, size = lie(random, count), lie(random, len(body))
    if size < 255 and count < 256 and random.random() < 0.8:
        return bytes((kind, (size + 1) & 0xFF, count)) + body
    return bytes((kind + 0x10,)) + u32(size + 4) + u32(count) + body


def plain_list(*items: bytes) -> bytes:
    """A list that does not lie."""
    body = b"".join(items)
    if len(body) < 255 and len(items) < 256:
        return bytes((0xC0, len(body) + 1, len(items))) + body
    return b"\xd0" + u32(len(body) + 4) + u32(len(items)) + body


def plain_map(*items: bytes) -> bytes:
    body = b"".join(items)
    if len(body) < 255 and len(items) < 256:
        return bytes((0xC1, len(body) + 1, len(items))) + body
    return b"\xd1" + u32(len(body) + 4) + u32(len(items)) + body


def counted_map(body: bytes, count: int) -> bytes:
    return b"\xd1" + u32(len(body) + 4) + u32(count) + body


def array(random: Random, code: int, count: int) -> bytes:
    """An array of values with one constructor."""
    if code in FIXED_CODES:
        width = FIXED_CODES[code]
        body = (
            random.randbytes(width * count)
            if width and code not in (0x56, 0x73)
            else (fixed(random, code) * count)
        )
    elif code in VARIABLE_CODES:
        data = text(random, random.choice((0, 1, 8)))
        one = bytes((len(data),)) if code < 0xB0 else u32(len(data))
        body = (one + data) * count
    else:
        body = random.choice((b"\x01\x00", u32(4) + u32(0))) * count
    head = bytes((code,))
    if random.random() < 0.1:
        head = b"\x00" + random.choice((b"\x53\x70", symbol(b"a:b:c"))) + head
    count, size = lie(random, count), lie(random, len(head) + len(body))
    if size < 255 and count < 256:
        return bytes((0xE0, size + 1, count)) + head + body
    return b"\xf0" + u32(size + 4) + u32(count) + head + body


def described(descriptor: int | bytes, value: bytes) -> bytes:
    head = b"\x53" + bytes((descriptor,)) if isinstance(descriptor, int) else symbol(descriptor)
    return b"\x00" + head + value


# --- values --------------------------------------------------------------------------------------


def scalar(random: Random) -> bytes:
    if random.random() < 0.5:
        code = random.choice(tuple(FIXED_CODES))
        return bytes((code,)) + fixed(random, code)
    made = text(random)
    if random.random() < 0.02:
        made += b"\xff"
    codes = (0xA0, 0xA1, 0xA3) if made.isascii() or random.random() < 0.05 else (0xA0, 0xA1)
    return string(made, random.choice(codes))


def simple(random: Random) -> bytes:
    """A scalar that may be an application property, mostly."""
    made = scalar(random)
    return made if made != b"\x45" or random.random() < 0.05 else b"\x40"


def value(random: Random, depth: int = 4) -> bytes:
    """Any small value."""
    choice = random.random()
    if depth <= 0 or choice < 0.6:
        return scalar(random)
    if choice < 0.72:
        items = [value(random, depth - 1) for _ in range(random.randrange(6))]
        return compound(random, 0xC0, items)
    if choice < 0.86:
        pairs = [value(random, depth - 1) for _ in range(2 * random.randrange(4))]
        return compound(random, 0xC1, pairs)
    if choice < 0.93:
        codes = (*FIXED_CODES, *VARIABLE_CODES, 0xC0, 0xD0)
        return array(random, random.choice(codes), random.randrange(12))
    descriptor = random.choice((random.randrange(256), random.choice(TEXTS)))
    return described(descriptor, value(random, depth - 1))


def _uuid_keys(random: Random, count: int) -> list[bytes]:
    """Keys that all have one hash, or as many different ones."""
    first = random.randrange(HASH_PRIME)
    step = random.choice((HASH_PRIME, HASH_PRIME, 1))
    return [b"\x98" + (first + i * step).to_bytes(16, "big") for i in range(count)]


def _long_keys(random: Random, count: int) -> list[bytes]:
    code = random.choice((0x80, 0x81, 0x83))
    step = random.choice((1, HASH_PRIME, 1 << 20, (1 << 61) + 1))
    mask = (1 << 63) - 1
    return [bytes((code,)) + ((i * step) & mask).to_bytes(8, "big") for i in range(count)]


def _float_keys(random: Random, count: int) -> list[bytes]:
    """Numbers that are large powers of two have few hashes among them."""
    return [b"\x82" + ((i << 46) & ((1 << 63) - 1)).to_bytes(8, "big") for i in range(count)]


def _text_keys(random: Random, count: int) -> list[bytes]:
    code = random.choice((0xA1, 0xA3, 0xA0))
    prefix = random.choice((b"", b"a", b"a" * 30))
    return [string(prefix + b"%x" % i, code) for i in range(count)]


def symbol_keys(random: Random, count: int) -> list[bytes]:
    prefix = random.choice((b"", b"x-", b"a" * 30))
    return [symbol(prefix + b"%x" % i) for i in range(count)]


def string_keys(random: Random, count: int) -> list[bytes]:
    prefix = random.choice((b"", "é".encode(), b"a" * 30))
    return [string(prefix + b"%x" % i) for i in range(count)]


def ulong_keys(random: Random, count: int) -> list[bytes]:
    """Eight of each hash are all that 64 bits have room for."""
    step = random.choice((1, 1 << 20))
    return [
        b"\x80" + ((i // 8 * step + i % 8 * HASH_PRIME) & ((1 << 64) - 1)).to_bytes(8, "big")
        for i in range(count)
    ]


def _small_keys(random: Random, count: int) -> list[bytes]:
    code = random.choice((0x52, 0x53, 0x54, 0x50, 0x60, 0x70, 0x73, 0x74, 0x94))
    width = FIXED_CODES[code]
    return [bytes((code,)) + (i & ((1 << 8 * width) - 1)).to_bytes(width, "big")
            for i in range(count)]  # fmt: skip


KEYS: Final[tuple[Callable[[Random, int], list[bytes]], ...]] = (
    _uuid_keys, _long_keys, _float_keys, _text_keys, _small_keys, symbol_keys, symbol_keys,
)  # fmt: skip


def wide_map(random: Random, size: int, keys: Callable[..., list[bytes]] | None = None) -> bytes:
    """A map with as many different keys as fit."""
    make = keys or random.choice(KEYS)
    item = random.choice((b"\x40", b"\x43", b"\xa1\x01a", b"\x45", b"\xc1\x01\x00"))
    width = len(make(Random(0), 1)[0]) + len(item)
    count = max(1, size // max(1, width))
    made = make(random, count)
    body = item.join(made) + item
    if len(body) > size:
        made = made[: max(1, count * size // len(body))]
        body = item.join(made) + item
    return counted_map(body, lie(random, 2 * len(made)))


def wide_list(random: Random, size: int) -> bytes:
    """A list of as many small values as fit, all alike or all different."""
    one = random.choice((b"\x40", b"\x45", b"\x43", b"\xa1\x00", b"\xc1\x01\x00", b"\xc0\x01\x00",
                         b"\x00\x53\x24\x45", b"\xe0\x02\x00\x40", b"\xa3\x01a",
                         b"\x00\xa3\x01a\x45", b"\xe0\x01\x00"))  # fmt: skip
    if random.random() < 0.4:
        one = scalar(random)
    elif random.random() < 0.3:
        count = max(1, size // 17)
        raw = random.randbytes(16 * count)
        body = b"".join(b"\x98" + raw[i : i + 16] for i in range(0, 16 * count, 16))
        return b"\xd0" + u32(len(body) + 4) + u32(count) + body
    count = max(1, size // len(one))
    return b"\xd0" + u32(4 + count * len(one)) + u32(lie(random, count)) + one * count


def wide_array(random: Random, size: int) -> bytes:
    code = random.choice((*FIXED_CODES, *VARIABLE_CODES, 0xC0, 0xD0, 0xC1))
    width = FIXED_CODES.get(code, 2)
    return array(random, code, size // max(1, width))


def deep(random: Random, size: int) -> bytes:
    """Values inside one another, many of them side by side."""
    depth = random.choice((2, 10, 30, 60, 64, 70, 200, 2_000))
    inner = b"\x45"
    for _ in range(depth):
        if len(inner) < 250 and random.random() < 0.7:
            inner = bytes((0xC0, len(inner) + 1, 1)) + inner
        elif random.random() < 0.5:
            inner = b"\xd0" + u32(len(inner) + 4) + u32(1) + inner
        elif random.random() < 0.5:
            inner = b"\xd1" + u32(len(inner) + 6) + u32(2) + b"\x52\x01" + inner
        else:
            inner = b"\x00\x53\x24" + inner
    count = max(1, size // len(inner))
    return b"\xd0" + u32(4 + count * len(inner)) + u32(count) + inner * count


def long_text(random: Random, size: int) -> bytes:
    data = text(random, size)
    if random.random() < 0.2:
        data += b"\xff"
    return string(data, random.choice((0xA0, 0xA1, 0xA3)))


def many_maps(random: Random, size: int) -> bytes:
    """A list of small maps with keys that collide."""
    each = random.choice((4, 30, 120, 1_000))
    inner = wide_map(random, min(size, each * 18), _uuid_keys)
    count = max(1, size // len(inner))
    return b"\xd0" + u32(4 + count * len(inner)) + u32(count) + inner * count


BIG: Final[tuple[Callable[[Random, int], bytes], ...]] = (
    wide_map, wide_map, wide_list, wide_list, wide_array, deep, long_text, many_maps,
)  # fmt: skip


def big_value(random: Random, size: int) -> bytes:
    """One value of about that size."""
    if size < 200:
        return value(random)
    return random.choice(BIG)(random, size)


# --- messages ------------------------------------------------------------------------------------


def header(random: Random) -> bytes:
    fields = [random.choice((b"\x40", b"\x41")), random.choice((b"\x40", b"\x50\x04", b"\x50\xff")),
              random.choice((b"\x40", b"\x43", b"\x70" + u32(random.choice(EDGES)))),
              b"\x40", random.choice((b"\x40", b"\x43"))]  # fmt: skip
    return described(0x70, plain_list(*fields[: random.randrange(6)]))


def properties(random: Random, size: int = 0) -> bytes:
    texts = string(text(random)), string(text(random, min(size, 300)))
    identity = random.choice((b"\x40", b"\x98" + random.randbytes(16), b"\x53\x07", *texts))
    long = string(text(random, size)) if size else b"\x40"
    kind = random.choice((b"\x40", b"\x40", b"\x40", symbol(b"text/plain"), symbol(b"a" * 60)))
    if random.random() < 0.04:
        kind = symbol(b"application/vnd.ms-servicebus-ping")
    stamp = b"\x83" + random.choice(EDGES).to_bytes(8, "big")
    fields = [identity, b"\x40", random.choice((b"\x40", long)), random.choice((b"\x40", long)),
              b"\x40", identity, kind, b"\x40",
              random.choice((b"\x40", stamp)), random.choice((b"\x40", stamp)),
              random.choice((b"\x40", string(b"berlin"))), random.choice((b"\x40", b"\x43")),
              b"\x40"]  # fmt: skip
    if random.random() < 0.05:
        fields[random.randrange(13)] = value(random)
    return described(0x73, plain_list(*fields[: random.randrange(14)]))


def annotations(random: Random, code: int, size: int) -> bytes:
    if size > 200:
        keys = random.choice((symbol_keys, symbol_keys, symbol_keys, ulong_keys, ulong_keys,
                              random.choice(KEYS)))  # fmt: skip
        return described(code, wide_map(random, size, keys))
    pairs = []
    for _ in range(random.randrange(4)):
        name = text(random)
        if name.isascii() or random.random() < 0.05:
            pairs += [symbol(name), random.choice((value(random, 1), b"\x83" + bytes(8)))]
    return described(code, plain_map(*pairs))


def application_properties(random: Random, size: int) -> bytes:
    if size > 200:
        made = wide_map(random, size, random.choice((string_keys,) * 5 + (_uuid_keys,)))
        return described(0x74, made)
    pairs = []
    for _ in range(random.randrange(5)):
        pairs += [string(text(random)), simple(random)]
    return described(0x74, plain_map(*pairs))


def body(random: Random, size: int) -> bytes:
    choice = random.random()
    if choice < 0.3:
        return described(0x75, string(random.randbytes(min(size, 64)) * (size // 64 + 1), 0xA0))
    if choice < 0.5:
        one = described(0x75, random.choice((b"\xa0\x00", b"\xa0\x01x", b"\xb0" + u32(0))))
        return one * max(1, size // len(one))
    if choice < 0.6:
        one = described(0x76, random.choice((b"\x45", plain_list(b"\x40", b"\x43"))))
        return one * max(1, size // len(one))
    if choice < 0.65:
        return described(0x76, wide_list(random, size) if size > 200 else b"\x45")
    if choice < 0.75:
        return sections_of_a_step(random, size)
    return described(0x77, big_value(random, size))


# Bytes of a body that the scan checks at once, and of what is taken as one step afterwards.
STEP_BYTES: Final = 4_096
SMALL_COMPOUNDS: Final = (
    b"\x45", b"\xc0\x01\x00", b"\xc1\x01\x00", b"\xe0\x01\x00", b"\xc0\x02\x01\x40",
    b"\xc1\x03\x02\x41\x41", b"\xe0\x03\x01\x50\x00", b"\x00\x53\x01\x40", b"\x00\xa3\x01a\x40",
    b"\xd0" + u32(4) + u32(0), b"\xd1" + u32(4) + u32(0), b"\xf0" + u32(6) + u32(1) + b"\x50\x01",
    b"\xa1\x01a", b"\x40",
)  # fmt: skip


def sections_of_a_step(random: Random, size: int) -> bytes:
    """Many sections that are each as large as a step, or as a short list; some kinds are mixed."""
    made: list[bytes] = []
    for _ in range(random.choice((1, 1, 3))):
        each = random.choice((STEP_BYTES, STEP_BYTES, STEP_BYTES // 2, 255, 60))
        one = random.choice(SMALL_COMPOUNDS)
        count = max(1, (each - random.choice((2, 9, 12, 13, 20))) // len(one))
        inner = plain_list(*[one] * count)
        if random.random() < 0.3:
            inner = plain_list(inner)
        made.append(described(0x76, inner))
    if random.random() < 0.3:
        made.append(described(0x76, b"\x45") * 20)
    if random.random() < 0.1:
        made = [described(0x75, string(each, 0xA0)) for each in made] + [
            b"\x00\x80" + bytes(7) + b"\x75\xa0\x00"
        ]
    each_round = b"".join(made)
    return each_round * max(1, size // len(each_round))


def message(random: Random, size: int) -> bytes:
    """A message of about that size, with most of it in one of its sections."""
    place = random.choice(
        ("body", "body", "own", "annotations", "delivery", "properties", "footer")
    )

    def share(name: str) -> int:
        return size if name == place else random.choice((0, 0, 20, 100))

    parts = []
    if random.random() < 0.5:
        parts.append(header(random))
    if place == "delivery" or random.random() < 0.1:
        parts.append(annotations(random, 0x71, share("delivery")))
    if place == "annotations" or random.random() < 0.3:
        parts.append(annotations(random, 0x72, share("annotations")))
    if place == "properties" or random.random() < 0.7:
        parts.append(properties(random, share("properties")))
    if place == "own" or random.random() < 0.5:
        parts.append(application_properties(random, share("own")))
    if random.random() < 0.97:
        parts.append(body(random, share("body")))
    if place == "footer" or random.random() < 0.05:
        parts.append(annotations(random, 0x78, share("footer")))
    if random.random() < 0.03:
        random.shuffle(parts)
    return b"".join(parts)


def batch(random: Random, size: int) -> bytes:
    """A batch envelope: a data section for each message."""
    each = random.choice((10, 10, 60, 300, 4_000))
    if random.random() < 0.5:
        one = described(0x75, string(message(random, min(each, size)), 0xA0))
        return one * max(1, size // len(one))
    parts: list[bytes] = []
    made = 0
    distinct = [described(0x75, string(message(random, min(each, size)), 0xA0)) for _ in range(20)]
    while made < size:
        parts.append(random.choice(distinct))
        made += len(parts[-1])
    return b"".join(parts)


# --- frames --------------------------------------------------------------------------------------


def frame(performative: bytes, payload: bytes = b"", channel: int = 0, kind: int = 0) -> bytes:
    size = 8 + len(performative) + len(payload)
    return u32(size) + bytes((2, kind)) + channel.to_bytes(2, "big") + performative + payload


def split_frames(data: bytes) -> list[bytes]:
    """The frames in a stream, as far as they can be told; protocol headers are parts too."""
    parts = []
    pos = 0
    while pos < len(data):
        if data.startswith(b"AMQP", pos):
            size = 8
        else:
            size = int.from_bytes(data[pos : pos + 4], "big")
        if size < 8:
            break
        parts.append(data[pos : pos + size])
        pos += size
    if pos < len(data):
        parts.append(data[pos:])
    return parts
