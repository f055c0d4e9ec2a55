"""A lean blocking AMQP 0-9-1 client: just enough to publish with confirms, consume and count.

Rule 1: what is sent again and again is encoded once. A publish carries no number (the broker
        counts), so a window of messages is one ``bytes * n``.
Rule 2: confirms are counted exactly: single, cumulative, and out of order.

    frame = type(1) channel(2) size(4) payload 0xCE
    payload of a method frame = class(2) method(2) arguments
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from verification.benchmarks.processes import BenchError

METHOD, HEADER, BODY = 1, 2, 3
FRAME_END: Final = b"\xce"
FRAME_HEAD: Final = struct.Struct(">BHI")
ACK: Final = struct.Struct(">QB")
TAG: Final = struct.Struct(">Q")
RECEIVE_BYTES_MAX = 1 << 18
CONNECT_TIMEOUT_S = 5.0

START, START_OK, TUNE, TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK = (10, 40), (10, 41)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
DECLARE, DECLARE_OK, DELETE, DELETE_OK = (50, 10), (50, 11), (50, 40), (50, 41)
QOS, QOS_OK, CONSUME, CONSUME_OK = (60, 10), (60, 11), (60, 20), (60, 21)
PUBLISH, DELIVER, GET, GET_OK = (60, 40), (60, 60), (60, 70), (60, 71)
BASIC_ACK, CONFIRM_SELECT, CONFIRM_SELECT_OK = (60, 80), (85, 10), (85, 11)

DURABLE, PASSIVE = 0b10, 0b01
QUORUM: Final = {"x-queue-type": "quorum"}
# Content type, delivery mode 2 (persistent) and a message id: what a careful publisher sets.
PROPERTY_FLAGS = 1 << 15 | 1 << 12 | 1 << 7


def short_string(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def table(entries: dict[str, str]) -> bytes:
    rows = b"".join(
        short_string(key) + b"S" + struct.pack(">I", len(value)) + value.encode()
        for key, value in entries.items()
    )
    return struct.pack(">I", len(rows)) + rows


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, name: tuple[int, int], arguments: bytes) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *name) + arguments)


def encode_publish(queue: str, body: bytes) -> bytes:
    """The three frames of one persistent message to ``queue`` through the default exchange."""
    properties = short_string("application/octet-stream") + b"\x02" + short_string("0" * 32)
    header = struct.pack(">HHQH", 60, 0, len(body), PROPERTY_FLAGS) + properties
    arguments = b"\0\0" + short_string("") + short_string(queue) + b"\0"
    return method(1, PUBLISH, arguments) + frame(HEADER, 1, header) + frame(BODY, 1, body)


class Channel:
    """One connection with one channel, and the few synchronous calls that we need."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        try:
            self._handshake()
        except BaseException:
            self.sock.close()
            raise
        self.sock.settimeout(None)

    def _handshake(self) -> None:
        self.sock.sendall(b"AMQP\x00\x00\x09\x01")
        self.expect(START)
        response = b"\0guest\0guest"
        login = table({}) + short_string("PLAIN") + struct.pack(">I", len(response)) + response
        self.sock.sendall(method(0, START_OK, login + short_string("en_US")))
        limits = self.expect(TUNE)[:6]
        # Heartbeat 0: no frame of ours or theirs disturbs a measurement.
        self.sock.sendall(method(0, TUNE_OK, limits + b"\0\0"))
        self.sock.sendall(method(0, CONNECTION_OPEN, short_string("/") + b"\0\0"))
        self.expect(CONNECTION_OPEN_OK)
        self.call(CHANNEL_OPEN, b"\0", CHANNEL_OPEN_OK)

    def close(self) -> None:
        self.sock.close()

    def call(self, name: tuple[int, int], arguments: bytes, answer: tuple[int, int]) -> bytes:
        self.sock.sendall(method(1, name, arguments))
        return self.expect(answer)

    def expect(self, name: tuple[int, int]) -> bytes:
        """The arguments of the next method, which must be ``name``."""
        kind, payload = self.read_frame()
        got = struct.unpack_from(">HH", payload)
        if kind != METHOD or got != name:
            raise BenchError(f"RabbitMQ answered {got} instead of {name}: {payload[4:200]!r}")
        return payload[4:]

    def read_frame(self) -> tuple[int, bytes]:
        kind, _, size = FRAME_HEAD.unpack(self._read(7))
        return kind, self._read(size + 1)[:-1]

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._unread += receive(self.sock)
        wanted, self._unread = self._unread[:size], self._unread[size:]
        return wanted

    def take_unread(self) -> bytes:
        """Bytes behind the last answer; the caller reads the socket itself from now on."""
        unread, self._unread = self._unread, b""
        return unread

    def declare_quorum_queue(self, queue: str) -> None:
        arguments = b"\0\0" + short_string(queue) + bytes([DURABLE]) + table(QUORUM)
        self.call(DECLARE, arguments, DECLARE_OK)

    def message_count(self, queue: str) -> int:
        """Messages ready in the queue, by a passive declare."""
        arguments = b"\0\0" + short_string(queue) + bytes([PASSIVE]) + table({})
        answer = self.call(DECLARE, arguments, DECLARE_OK)
        return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])

    def delete_queue(self, queue: str) -> None:
        self.call(DELETE, b"\0\0" + short_string(queue) + b"\0", DELETE_OK)

    def get_one(self, queue: str) -> bool:
        """Whether a message can be had from the queue (it goes back when the channel closes)."""
        self.sock.sendall(method(1, GET, b"\0\0" + short_string(queue) + b"\0"))
        _, payload = self.read_frame()
        return struct.unpack_from(">HH", payload) == GET_OK

    def select_confirms(self) -> None:
        self.call(CONFIRM_SELECT, b"\0", CONFIRM_SELECT_OK)

    def consume(self, queue: str, prefetch: int) -> None:
        self.call(QOS, struct.pack(">IHB", 0, prefetch, 0), QOS_OK)
        arguments = b"\0\0" + short_string(queue) + short_string("c") + b"\0" + table({})
        self.call(CONSUME, arguments, CONSUME_OK)


def receive(sock: socket.socket) -> bytes:
    data = sock.recv(RECEIVE_BYTES_MAX)
    if not data:
        raise ConnectionError("RabbitMQ closed the connection")
    return data


class ConfirmLedger:
    """Which publishes are confirmed. Deliveries are counted from 0, the broker's tags from 1."""

    def __init__(self) -> None:
        self.confirmed_below = 0
        self._confirmed_above: set[int] = set()

    def confirm(self, tag: int, multiple: bool) -> list[tuple[int, int]]:
        """Ranges (first, last) of deliveries that this confirm settles for the first time."""
        delivery = tag - 1
        if delivery < self.confirmed_below or delivery in self._confirmed_above:
            return []
        if not multiple and delivery != self.confirmed_below:
            self._confirmed_above.add(delivery)
            return [(delivery, delivery)]
        return self._advance(delivery)

    def _advance(self, delivery: int) -> list[tuple[int, int]]:
        fresh = range(self.confirmed_below, delivery + 1)
        self.confirmed_below = delivery + 1
        early = self._confirmed_above
        ranges = [(fresh[0], delivery)]
        if early:
            ranges = [(n, n) for n in fresh if n not in early]
            early.difference_update(fresh)
            while self.confirmed_below in early:
                early.discard(self.confirmed_below)
                self.confirmed_below += 1
        return ranges


class RabbitPublisher:
    """The ``Publisher`` of the publish loops: one message per delivery, confirms as ranges."""

    def __init__(self, port: int, queue: str, body: bytes) -> None:
        self._channel = Channel(port)
        self._channel.select_confirms()
        self.sock = self._channel.sock
        self.messages_per_delivery = 1
        self._message = encode_publish(queue, body)
        self.delivery_bytes = len(self._message)
        self._ledger = ConfirmLedger()
        self._unread = b""

    def room(self) -> int:
        """RabbitMQ slows publishers through the socket, not through credit."""
        return 1 << 30

    def encode(self, first: int, count: int) -> bytes:
        return self._message * count

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Deliveries that these bytes confirm."""
        data = self._unread + data
        position, ranges = 0, []
        while position + 7 <= len(data):
            end = position + 8 + FRAME_HEAD.unpack_from(data, position)[2]
            if end > len(data):
                break
            if struct.unpack_from(">HH", data, position + 7) != BASIC_ACK:
                raise BenchError(f"RabbitMQ did not confirm: {data[position:end][:200]!r}")
            tag, multiple = ACK.unpack_from(data, position + 11)
            ranges += self._ledger.confirm(tag, bool(multiple))
            position = end
        self._unread = data[position:]
        return ranges

    def close(self) -> None:
        self._channel.close()


def count_deliveries(data: bytes) -> tuple[int, int, bytes]:
    """How many whole messages ``data`` holds, the last one's tag (0: none), and the rest.

    Walks the frames by their sizes and copies nothing but the rest, like the AMQP 1.0 client.
    """
    count, tag, last_tag, at, whole_until = 0, 0, 0, 0, 0
    while at + 7 <= len(data):
        kind, _, size = FRAME_HEAD.unpack_from(data, at)
        end = at + size + 8
        if end > len(data):
            break
        if kind == METHOD:
            tag = TAG.unpack_from(data, at + 12 + data[at + 11])[0]
        elif kind == BODY:
            count, last_tag, whole_until = count + 1, tag, end
        at = end
    return count, last_tag, data[whole_until:]


class RabbitDrainer:
    """Takes a queue empty: prefetch, then cumulative acknowledgements."""

    def __init__(self, port: int, queue: str) -> None:
        self._channel = Channel(port)
        self._queue = queue

    def drain(self, expected: int, window: int) -> None:
        """Return when ``expected`` messages have been received and acknowledged."""
        self._channel.consume(self._queue, window)
        received, acknowledged, last_tag = 0, 0, 0
        data = self._channel.take_unread()
        while received < expected:
            count, tag, data = count_deliveries(data)
            received += count
            last_tag = tag or last_tag
            if received - acknowledged >= window // 4 or received >= expected:
                self._channel.sock.sendall(method(1, BASIC_ACK, ACK.pack(last_tag, 1)))
                acknowledged = received
            if received < expected:
                data += receive(self._channel.sock)

    def close(self) -> None:
        self._channel.close()
