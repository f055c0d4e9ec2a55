"""The publish loops, blind to the protocol: a window of outstanding deliveries, or a fixed pace.

Rule 1: nothing blocks but one ``poll``: a broker that stops reading must still get its answers
        read.
Rule 2: a paced delivery is as old as its place in the schedule, not as its last byte on the
        socket: a broker that stalls the sender pays for the wait of everything behind it.

    encode --> unsent bytes --> socket --> broker --> feed --> acknowledged ranges
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from array import array
from dataclasses import dataclass
from typing import Protocol

RECEIVE_BYTES_MAX = 1 << 18

# One encode call stays near this size: it fills the socket and still lets answers be read soon.
ENCODE_BYTES_MAX = 1 << 18

# A broker that acknowledges nothing for this long has lost something.
SILENCE_S_MAX = 30.0


class Publisher(Protocol):
    """One connection that can send deliveries of equal content, numbered from 0."""

    sock: socket.socket
    messages_per_delivery: int
    delivery_bytes: int

    def room(self) -> int:
        """How many more deliveries the broker's flow control allows right now."""

    def encode(self, first: int, count: int) -> bytes:
        """The bytes of deliveries first .. first + count - 1."""

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Ranges (first, last) of deliveries that these bytes acknowledge; a refusal raises."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """What one publisher did. Times are of the monotonic clock, which all processes share."""

    acknowledged_messages: int
    started_s: float
    ended_s: float
    latencies_s: array[float]
    """Of every delivery of a paced run, unsorted; empty after a windowed run."""


class _Pump:
    """The socket side of both loops: what is unsent, what is acknowledged."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.sent = 0
        self.acknowledged = 0
        self._encode_max = max(1, ENCODE_BYTES_MAX // publisher.delivery_bytes)
        self._unsent = memoryview(b"")
        self._poll = select.poll()
        self._interest = 0
        publisher.sock.setblocking(False)

    def offer(self, wanted: int) -> None:
        """Encode up to ``wanted`` deliveries, unless earlier bytes are still unsent."""
        if self._unsent or wanted <= 0:
            return
        count = min(wanted, self.publisher.room(), self._encode_max)
        if count > 0:
            self._unsent = memoryview(self.publisher.encode(self.sent, count))
            self.sent += count
            self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self.publisher.sock.send(self._unsent) :]

    def turn(self, timeout_s: float) -> list[tuple[int, int]]:
        """Wait for the socket, at most ``timeout_s``; return the ranges acknowledged meanwhile."""
        self._watch(select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ranges: list[tuple[int, int]] = []
        for _, event in self._poll.poll(timeout_s * 1000):
            if event & select.POLLOUT:
                self._flush()
            if event & ~select.POLLOUT:
                ranges = self.publisher.feed(self._receive())
        self.acknowledged += sum(last - first + 1 for first, last in ranges)
        return ranges

    def _watch(self, interest: int) -> None:
        if interest != self._interest:
            self._poll.register(self.publisher.sock, interest)
            self._interest = interest

    def _receive(self) -> bytes:
        data = self.publisher.sock.recv(RECEIVE_BYTES_MAX)
        if not data:
            raise ConnectionError("the broker closed the connection during a run")
        return data


def publish_windowed(publisher: Publisher, window: int, duration_s: float, limit: int) -> Sent:
    """Keep ``window`` deliveries outstanding for ``duration_s`` or ``limit`` deliveries, then let
    the rest be acknowledged. The clock stops at the last acknowledgement."""
    pump = _Pump(publisher)
    started_s = last_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        if now_s - started_s < duration_s and pump.sent < limit:
            pump.offer(min(window - (pump.sent - pump.acknowledged), limit - pump.sent))
        elif pump.acknowledged == pump.sent:
            break
        if pump.turn(1.0):
            last_s = time.monotonic()
        elif now_s - last_s > SILENCE_S_MAX:
            raise TimeoutError(f"{pump.sent - pump.acknowledged} deliveries stay unacknowledged")
    return Sent(pump.acknowledged * publisher.messages_per_delivery, started_s, last_s, array("d"))


def publish_paced(publisher: Publisher, rate_per_s: float, duration_s: float) -> Sent:
    """Send on a fixed schedule whatever the broker does; note each acknowledgement's latency."""
    pump = _Pump(publisher)
    latencies_s = array("d")
    total = int(rate_per_s * duration_s)
    started_s = last_s = time.monotonic()
    while pump.acknowledged < total:
        now_s = time.monotonic()
        pump.offer(min(total, int((now_s - started_s) * rate_per_s) + 1) - pump.sent)
        due_s = started_s + pump.sent / rate_per_s
        ranges = pump.turn(
            max(0.0, min(due_s - time.monotonic(), 1.0)) if pump.sent < total else 1.0
        )
        now_s = time.monotonic()
        for first, last in ranges:
            latencies_s.extend(now_s - started_s - n / rate_per_s for n in range(first, last + 1))
            last_s = now_s
        if now_s - last_s > SILENCE_S_MAX:
            raise TimeoutError(f"{pump.sent - pump.acknowledged} deliveries stay unacknowledged")
    return Sent(total * publisher.messages_per_delivery, started_s, last_s, latencies_s)
