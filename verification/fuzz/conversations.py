"""Whole connections: what a stranger or a tenant says, frame after frame.

An input is one byte for who speaks, and the stream of frames that follows a handshake which the
target makes. Mutators cut the stream at its frames.

Rule 1: most frames are right, because a conversation ends at the first wrong one.
Rule 2: floods are repetitions: of a frame, of a pair of frames, or of one with a number that grows.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from random import Random
from typing import Final

from verification.fuzz import grammar
from verification.fuzz.grammar import (
    described,
    frame,
    plain_list,
    plain_map,
    string,
    symbol,
    text,
    u32,
)

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"
BATCH_FORMAT: Final = 0x80013700

QUEUE, SESSION_QUEUE, ONCE_QUEUE = b"orders", b"sessions", b"once"
TOPIC, SUBSCRIPTION = b"events", b"events/subscriptions/all"
CHOOSY = b"choosy"
ADDRESSES: Final = (
    QUEUE, SESSION_QUEUE, ONCE_QUEUE, TOPIC, SUBSCRIPTION, b"orders/$deadletterqueue",
    b"orders/$management", b"sessions/$management", b"$cbs", b"nowhere", b"", b"orders/$x",
)  # fmt: skip
SENT_TO: Final = (QUEUE, SESSION_QUEUE, ONCE_QUEUE, TOPIC, TOPIC, CHOOSY)
OPERATIONS: Final = (
    "peek-message", "renew-lock", "update-disposition", "receive-by-sequence-number",
    "schedule-message", "cancel-scheduled-message", "set-session-state", "get-session-state",
    "renew-session-lock", "get-message-sessions", "add-rule", "remove-rule", "enumerate-rules",
)  # fmt: skip


class Who(IntEnum):
    """Who speaks, and what was said before."""

    STRANGER = 0
    """Nothing was said."""
    OPENED = 1
    """A connection and a session, and no token."""
    SENDER = 2
    LISTENER = 3
    MANAGER = 4


STRANGERS: Final = (Who.STRANGER, Who.OPENED)


def who_speaks(data: bytes) -> Who:
    return Who(data[0] % len(Who)) if data else Who.STRANGER


def uint(number: int) -> bytes:
    return b"\x70" + u32(number)


# --- performatives -------------------------------------------------------------------------------


def open_(random: Random, extra: int = 0) -> bytes:
    fields = [string(b"fuzz"), string(b"localhost"), uint(1 << 20), b"\x60\x00\xff",
              uint(random.choice((0, 60_000, 500, 1))), NULL, NULL, NULL, NULL,
              _map_or_null(random, extra)]  # fmt: skip
    return described(0x10, plain_list(*fields))


def begin(random: Random, extra: int = 0) -> bytes:
    fields = [NULL, b"\x43", uint(random.choice((2_048, 0, 1, 2**32 - 1))), uint(2_048), uint(255),
              NULL, NULL, _map_or_null(random, extra)]  # fmt: skip
    return described(0x11, plain_list(*fields))


def _map_or_null(random: Random, extra: int) -> bytes:
    if extra:
        return grammar.wide_map(random, extra)
    return random.choice((NULL, NULL, plain_map(), plain_map(symbol(b"a"), string(b"b"))))


def attach(
    random: Random,
    name: bytes,
    handle: int,
    address: bytes,
    *,
    is_sender: bool,
    extra: int = 0,
    session: bool = False,
) -> bytes:
    """An attach of a client that sends to, or receives from, ``address``."""
    filters = NULL
    where = random.choice(("filter", "properties", "capabilities", "unsettled")) if extra else ""
    if session:
        chosen = random.choice((NULL, string(b"berlin"), string(text(random))))
        filters = plain_map(symbol(b"com.microsoft:session-filter"), chosen)
    if where == "filter":
        filters = grammar.wide_map(random, extra)
    capabilities = NULL
    if where == "capabilities":
        capabilities = grammar.wide_array(random, extra)
    source = [string(address) if not is_sender else string(b"client"), NULL, NULL, NULL, NULL, NULL,
              NULL, filters, NULL, NULL, capabilities]  # fmt: skip
    target = [string(address) if is_sender else string(b"client")]
    fields = [string(name), uint(handle), FALSE if is_sender else TRUE,
              random.choice((NULL, b"\x50\x00", b"\x50\x01", b"\x50\x02")),
              random.choice((NULL, b"\x50\x00", b"\x50\x01")),
              described(0x28, plain_list(*source)), described(0x29, plain_list(*target)),
              grammar.wide_map(random, extra) if where == "unsettled" else NULL, NULL,
              b"\x43" if is_sender else NULL, NULL, NULL, NULL,
              grammar.wide_map(random, extra) if where == "properties" else NULL]  # fmt: skip
    return described(0x12, plain_list(*fields))


def plain_attach(name: bytes, handle: int, address: bytes, *, is_sender: bool) -> bytes:
    """An attach as an honest client makes it."""
    source = [string(b"client" if is_sender else address)]
    target = [string(address if is_sender else b"client")]
    fields = [string(name), uint(handle), FALSE if is_sender else TRUE, NULL, NULL,
              described(0x28, plain_list(*source)), described(0x29, plain_list(*target)),
              NULL, NULL, b"\x43" if is_sender else NULL]  # fmt: skip
    return described(0x12, plain_list(*fields))


def plain_transfer(handle: int, delivery: int) -> bytes:
    fields = [uint(handle), uint(delivery), string(delivery.to_bytes(4, "big"), 0xA0), uint(0)]
    return described(0x14, plain_list(*fields))


def flow(random: Random, handle: int | None, credit: int = 100, extra: int = 0) -> bytes:
    fields = [uint(0), uint(random.choice((2_048, 0, 2**32 - 1))), uint(0), uint(2_048),
              NULL if handle is None else uint(handle), NULL if handle is None else uint(0),
              NULL if handle is None else uint(credit), NULL,
              random.choice((FALSE, FALSE, TRUE)), random.choice((FALSE, TRUE)),
              _map_or_null(random, extra) if extra else NULL]  # fmt: skip
    return described(0x13, plain_list(*fields))


def transfer(
    random: Random, handle: int, delivery: int, *, batch: bool = False, more: bool = False
) -> bytes:
    tag = random.choice((b"", delivery.to_bytes(4, "big"), bytes(32)))
    fields = [uint(handle), uint(delivery), string(tag, 0xA0),
              uint(BATCH_FORMAT if batch else 0), random.choice((FALSE, FALSE, TRUE)),
              TRUE if more else FALSE]  # fmt: skip
    return described(0x14, plain_list(*fields))


def disposition(random: Random, first: int, last: int, extra: int = 0) -> bytes:
    accepted, released = described(0x24, b"\x45"), described(0x26, b"\x45")
    others = (_rejected(random, extra), _modified(random, extra), NULL)
    state = random.choice((accepted, released, *others))
    fields = [TRUE, uint(first), uint(last), random.choice((TRUE, FALSE)), state]
    return described(0x15, plain_list(*fields))


def _rejected(random: Random, extra: int) -> bytes:
    info = (
        grammar.wide_map(random, extra)
        if extra
        else plain_map(
            symbol(b"DeadLetterReason"),
            string(b"r"),
            symbol(b"DeadLetterErrorDescription"),
            string(b"d"),
        )
    )
    sentence = string(text(random, random.choice((0, 10, 4_000))))
    error = described(0x1D, plain_list(symbol(b"com.microsoft:dead-letter"), sentence, info))
    return described(0x25, plain_list(error))


def _modified(random: Random, extra: int) -> bytes:
    annotations = _map_or_null(random, extra)
    return described(0x27, plain_list(TRUE, random.choice((TRUE, FALSE)), annotations))


def detach(random: Random, handle: int) -> bytes:
    error = random.choice((NULL, described(0x1D, plain_list(symbol(b"a"), string(text(random))))))
    return described(0x16, plain_list(uint(handle), random.choice((TRUE, FALSE)), error))


def end() -> bytes:
    return described(0x17, b"\x45")


def close() -> bytes:
    return described(0x18, b"\x45")


def request(random: Random, address: bytes, size: int) -> bytes:
    """A request to ``$cbs`` or ``$management``, with a body of about that size."""
    if address == b"$cbs":
        own = plain_map(string(b"operation"), string(b"put-token"), string(b"type"),
                        string(b"servicebus.windows.net:sastoken"), string(b"name"),
                        string(b"sb://localhost/orders"))  # fmt: skip
        body = string(text(random, size)) if size < 200 else grammar.big_value(random, size)
    else:
        name = random.choice(OPERATIONS)
        own = plain_map(string(b"operation"), string(b"com.microsoft:" + name.encode()))
        body = management_body(random, size)
    parts = (described(0x73, plain_list(b"\x53\x01", NULL, NULL, NULL, string(b"client"))),
             described(0x74, own), described(0x77, body))  # fmt: skip
    return b"".join(parts)


def management_body(random: Random, size: int) -> bytes:
    """What the SDKs send, with arrays of any length in it."""
    count = max(1, min(1_200, size // 17))
    sequence_numbers = grammar.array(random, 0x81, max(1, min(1_200, size // 9)))
    tokens = grammar.array(random, 0x98, count)
    state = string(random.randbytes(32) * (size // 32), 0xA0)
    one = string(grammar.message(random, 60), 0xA0)
    pairs = plain_map(string(b"message-id"), string(b"m"), string(b"message"), one)
    messages = plain_list(*[pairs] * max(1, min(1_200, size // len(pairs))))
    status = random.choice((b"completed", b"abandoned", b"suspended", b"defered"))
    top = b"\x71" + u32(random.choice((1, 100, 2**31 - 1)))
    if random.random() < 0.2:
        return grammar.big_value(random, size)
    return plain_map(
        string(b"from-sequence-number"), b"\x81" + bytes(7) + b"\x01",
        string(b"message-count"), b"\x71" + u32(random.choice((1, 100, 1_000, 2**31 - 1))),
        string(b"sequence-numbers"), sequence_numbers,
        string(b"lock-tokens"), tokens,
        string(b"disposition-status"), string(status),
        string(b"receiver-settle-mode"), b"\x52" + bytes((random.randrange(2),)),
        string(b"session-id"), random.choice((NULL, string(b"berlin"))),
        string(b"session-state"), random.choice((NULL, state)),
        string(b"messages"), messages,
        string(b"last-updated-time"), b"\x83" + bytes(8),
        string(b"skip"), b"\x54\x00", string(b"top"), top,
    )  # fmt: skip


# --- conversations -------------------------------------------------------------------------------


def conversation(random: Random, who: Who, size: int) -> bytes:
    """A stream of about that size."""
    if who is Who.STRANGER:
        return _greeting(random, size)
    makers: tuple[Callable[[Random, int], bytes], ...]
    if who is Who.OPENED:
        makers = (_cbs, _attach_flood, _big_performative, _begin_flood, _flow_flood, _mixed)
    elif who is Who.SENDER:
        makers = (_sends, _sends, _batches, _attach_flood, _management, _mixed, _big_performative,
                  _partial)  # fmt: skip
    elif who is Who.LISTENER:
        makers = (_receives, _receives, _attach_flood, _management, _mixed, _flow_flood,
                  _big_performative)  # fmt: skip
    else:
        makers = (_management, _receives, _sends, _batches, _mixed, _cbs, _begin_flood)
    return random.choice(makers)(random, size)


def _greeting(random: Random, size: int) -> bytes:
    sasl = described(
        0x41, plain_list(symbol(b"ANONYMOUS"), string(b"", 0xA0), string(b"localhost"))
    )
    if random.random() < 0.3:
        mechanism = random.choice(
            (b"PLAIN", b"EXTERNAL", b"MSSBCBS", text(random, min(size, 60_000)))
        )
        response = text(random, min(size, 60_000))
        sasl = described(0x41, plain_list(symbol(mechanism), string(response, 0xA0)))
    parts = [b"AMQP\x03\x01\x00\x00", frame(sasl, kind=1), b"AMQP\x00\x01\x00\x00",
             frame(open_(random, size if size > 500 and random.random() < 0.5 else 0)),
             frame(begin(random))]  # fmt: skip
    if random.random() < 0.1:
        del parts[random.randrange(len(parts))]
    return b"".join(parts) + _mixed(random, max(100, size // 2))


def _filled(size: int, make: Callable[[int], bytes]) -> bytes:
    """Frames with a number that grows, until there is enough of them."""
    parts: list[bytes] = []
    made = 0
    while made < size:
        parts.append(make(len(parts)))
        made += len(parts[-1])
    return b"".join(parts)


def _repeated(random: Random, size: int, make: Callable[[int], bytes]) -> bytes:
    """The same, but quickly: a few dozen different frames, over and over."""
    unit = b"".join(make(number) for number in range(random.choice((1, 2, 40))))
    return unit * max(1, size // len(unit))


def _attach_flood(random: Random, size: int) -> bytes:
    address = random.choice(ADDRESSES)
    is_sender = random.random() < 0.5
    extra = random.choice((0, 0, 300, 3_000))
    first = random.randrange(3)
    return _filled(
        size,
        lambda number: frame(
            attach(random, b"l%d" % number, first + number, address, is_sender=is_sender,
                   extra=extra, session=address == SESSION_QUEUE)
        ),
    )  # fmt: skip


def _begin_flood(random: Random, size: int) -> bytes:
    extra = random.choice((0, 0, 400))
    if random.random() < 0.5:
        return _filled(size, lambda n: frame(begin(random, extra), channel=1 + n % 300))
    return _filled(
        size,
        lambda n: (
            frame(begin(random, extra), channel=1 + n) + frame(end(), channel=1 + n)
            if n < 60_000
            else frame(end())
        ),
    )


def _flow_flood(random: Random, size: int) -> bytes:
    opening = frame(attach(random, b"r", 0, random.choice(ADDRESSES), is_sender=False))
    handle = random.choice((0, None, 5))
    extra = random.choice((0, 0, 2_000))
    return opening + _repeated(
        random, size, lambda n: frame(flow(random, handle, random.choice((0, 1, n, 10_000)), extra))
    )


def _big_performative(random: Random, size: int) -> bytes:
    make = random.choice((
        lambda: attach(random, b"x", 0, QUEUE, is_sender=random.random() < 0.5, extra=size),
        lambda: flow(random, None, extra=size),
        lambda: begin(random, size),
        lambda: disposition(random, 0, 10, extra=size),
        lambda: described(random.randrange(0x10, 0x1A), grammar.big_value(random, size)),
    ))  # fmt: skip
    return frame(make(), channel=random.choice((0, 0, 1)))


def _cbs(random: Random, size: int) -> bytes:
    opening = (frame(attach(random, b"replies", 0, b"$cbs", is_sender=False))
               + frame(attach(random, b"requests", 1, b"$cbs", is_sender=True))
               + frame(flow(random, 0)))  # fmt: skip
    each = random.choice((40, 40, 2_000, size))
    return opening + _filled(
        size,
        lambda n: frame(transfer(random, 1, n), request(random, b"$cbs", each)),
    )


def _sends(random: Random, size: int) -> bytes:
    address = random.choice(SENT_TO)
    each = random.choice((10, 10, 100, 2_000, 60_000, size))
    opening = frame(attach(random, b"s", 0, address, is_sender=True))
    make = _named_message if address in (TOPIC, CHOOSY) else grammar.message
    payloads = [make(random, min(each, size)) for _ in range(min(30, 1 + size // 50))]
    return opening + _filled(size, lambda n: frame(transfer(random, 0, n), random.choice(payloads)))


def _named_message(random: Random, size: int) -> bytes:
    """A message with the properties that the rules of the topics look at."""
    if random.random() < 0.3:
        return grammar.message(random, size)
    long = random.choice((3, 40, min(size, 30_000)))
    own = plain_map(string(b"name"), string(b"a" * long), string(b"a"), grammar.simple(random))
    return described(0x74, own) + described(0x75, string(b"", 0xA0))


def _batches(random: Random, size: int) -> bytes:
    address = random.choice(SENT_TO)
    opening = frame(attach(random, b"s", 0, address, is_sender=True))
    each = random.choice((size, size, 4_000))
    payload = grammar.batch(random, max(20, each - 200))
    return opening + _filled(
        size // 2, lambda n: frame(transfer(random, 0, n, batch=True), payload)
    )


def _partial(random: Random, size: int) -> bytes:
    """Deliveries in many pieces, on many links, that do not end."""
    links = random.choice((1, 20))
    opening = b"".join(
        frame(attach(random, b"s%d" % n, n, QUEUE, is_sender=True)) for n in range(links)
    )
    piece = random.choice((b"", b"x", text(random, 1_000)))
    return opening + _filled(
        size, lambda n: frame(transfer(random, n % links, n % links, more=True), piece)
    )


def _receives(random: Random, size: int) -> bytes:
    address = random.choice((QUEUE, SUBSCRIPTION, SESSION_QUEUE, b"orders/$deadletterqueue"))
    opening = frame(
        attach(random, b"r", 0, address, is_sender=False, session=address == SESSION_QUEUE)
    ) + frame(flow(random, 0, random.choice((1, 10, 1_000, 2**32 - 1))))
    extra = random.choice((0, 0, 0, 1_000))

    def settle(number: int) -> bytes:
        first = random.choice((number, 0, 2**32 - 1))
        last = random.choice((first, first + 1, number + 50, 2**32 - 1))
        if random.random() < 0.2:
            return frame(flow(random, 0, random.choice((1, 100))))
        return frame(disposition(random, first, last, extra))

    return opening + _repeated(random, size, settle)


def _management(random: Random, size: int) -> bytes:
    node = random.choice((b"orders/$management", b"sessions/$management", b"events/$management",
                          SUBSCRIPTION + b"/$management"))  # fmt: skip
    opening = (frame(attach(random, b"replies", 0, node, is_sender=False))
               + frame(attach(random, b"requests", 1, node, is_sender=True))
               + frame(flow(random, 0, 1_000)))  # fmt: skip
    each = random.choice((60, 60, 2_000, size))
    return opening + _filled(
        size, lambda n: frame(transfer(random, 1, n), request(random, node, each))
    )


def _mixed(random: Random, size: int) -> bytes:
    """A bit of everything, in any order."""

    def one(number: int) -> bytes:
        handle = random.randrange(4)
        made = random.choice((
            lambda: attach(random, text(random), handle, random.choice(ADDRESSES),
                           is_sender=random.random() < 0.5),
            lambda: flow(random, random.choice((None, handle))),
            lambda: transfer(random, handle, number),
            lambda: disposition(random, 0, number),
            lambda: detach(random, handle),
            lambda: begin(random),
            lambda: end(),
            lambda: described(random.randrange(0x10, 0x19), grammar.value(random)),
        ))()  # fmt: skip
        payload = grammar.message(random, 50) if made[2] == 0x14 else b""
        return frame(made, payload, channel=random.choice((0, 0, 0, 1)))

    return _filled(size, one)
