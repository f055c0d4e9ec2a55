"""Sending and receiving links of the benchmark's AMQP 1.0 client.

Rule 1: a delivery is a template; only its id and tag (both the delivery id) are filled in.
Rule 2: only ``accepted`` counts; any other outcome ends the run with the broker's own words.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from verification.benchmarks.processes import BenchError
from verification.benchmarks.wire import (
    ACCEPTED,
    BATCH_FORMAT,
    DISPOSITION,
    FLOW,
    RELEASED,
    TRANSFER,
    Address,
    Connection,
    encode_batch,
    encode_message,
    frame,
)
from verification.benchmarks.wire_values import FALSE, TRUE, binary, decode, described, listed, uint

# Room in a frame for the header and the transfer's own fields.
TRANSFER_OVERHEAD_BYTES = 64
# Extra messages would show up within this time after the last expected one.
EXTRA_WAIT_S = 0.3
RECEIVE_TIMEOUT_S = 60.0
ACCEPTED_STATE: Final = described(ACCEPTED, listed())
RELEASED_STATE: Final = described(RELEASED, listed())
UINT: Final = struct.Struct(">I")
TAG: Final = binary(bytes(4))
TAG_HEAD: Final = TAG[:2]
# Frame header 8, descriptor 3, head of a list32 9, handle 5, constructor of the delivery id 1.
ID_OFFSET: Final = 26


def link_address(address: Address, queue: str) -> str:
    return f"amqps://{address.host}:{address.port}/{queue}"


def template(
    handle: int, message_format: int, payload: bytes, frame_bytes_max: int
) -> list[tuple[bytes, bytes]]:
    """Per frame of a delivery: the bytes before the delivery id, and those behind the tag."""
    chunk = frame_bytes_max - TRANSFER_OVERHEAD_BYTES
    pieces = [payload[at : at + chunk] for at in range(0, len(payload), chunk)]
    frames = []
    for number, piece in enumerate(pieces, start=1):
        more = TRUE if number < len(pieces) else FALSE
        fields = listed(uint(handle), uint(0), TAG, uint(message_format), FALSE, more)
        whole = frame(described(TRANSFER, fields), piece)
        frames.append((whole[:ID_OFFSET], whole[ID_OFFSET + 4 + len(TAG) :]))
    return frames


def fill_in(frames: list[tuple[bytes, bytes]], first_id: int, count: int) -> bytes:
    """The bytes of ``count`` deliveries made from a template."""
    pieces: list[bytes] = []
    for number in range(first_id, first_id + count):
        packed = UINT.pack(number)
        for before, behind in frames:
            pieces += (before, packed, TAG_HEAD, packed, behind)
    return b"".join(pieces)


class TwinbusPublisher:
    """The ``Publisher`` of the publish loops: single messages, or batches when ``batch`` > 1."""

    def __init__(
        self, address: Address, queue: str, body: bytes, batch: int, section: bytes = b""
    ) -> None:
        self._connection = connection = Connection(address)
        self.sock = connection.sock
        connection.authorize(queue)
        self._credit_limit = 0
        self._sent = 0
        self._handle = connection.attach(
            sends=True, source="bench", target=link_address(address, queue)
        )
        self._first_delivery_id = connection.delivery_id
        self._first_transfer_id = connection.transfer_id
        self.messages_per_delivery = batch
        payload = encode_batch(body, batch, section) if batch > 1 else encode_message(body, section)
        message_format = BATCH_FORMAT if batch > 1 else 0
        self._frames = template(self._handle, message_format, payload, connection.frame_bytes_max)
        self.delivery_bytes = len(fill_in(self._frames, 0, 1))
        while not self._credit_limit or connection.has_decoded_frames:
            self._note(*connection.next_frame()[0])

    def room(self) -> int:
        by_link = self._credit_limit - self._sent
        sent_transfers = self._first_transfer_id + self._sent * len(self._frames)
        by_session = self._connection.transfer_id_limit - sent_transfers
        return min(by_link, by_session // len(self._frames))

    def encode(self, first: int, count: int) -> bytes:
        self._sent = first + count
        return fill_in(self._frames, self._first_delivery_id + first, count)

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        ranges = []
        for buffer, start, _ in self._connection.frames(data):
            performative, _ = decode(buffer, start)
            accepted = self._note(*performative)
            if accepted:
                ranges.append(accepted)
        return ranges

    def _note(self, descriptor: object, fields: list[Any]) -> tuple[int, int] | None:
        """Take in one frame from the broker; a disposition becomes a range of deliveries."""
        if descriptor == FLOW:
            self._connection.note_flow(fields)
            if len(fields) > 6 and fields[4] == self._handle:
                self._credit_limit = (fields[5] or 0) + fields[6]
            return None
        if descriptor != DISPOSITION:
            raise BenchError(f"the broker interrupted a run with {descriptor!r}: {fields}")
        first, last = accepted_range(fields)
        return first - self._first_delivery_id, last - self._first_delivery_id

    def close(self) -> None:
        self._connection.close()


class TwinbusDrainer:
    """Takes a queue empty: credit, then ranges of completions that the broker confirms."""

    def __init__(self, address: Address, queue: str, *, delete_on_receive: bool = False) -> None:
        self._connection = connection = Connection(address)
        connection.authorize(queue)
        self._deletes = delete_on_receive
        self._handle = connection.attach(
            sends=False, source=link_address(address, queue), target="bench",
            settled=delete_on_receive,
        )  # fmt: skip
        self._received = 0
        self._settled = 0
        self._credit_limit = 0
        self._unsettled_from: int | None = None
        self._last_id = -1

    def drain(self, expected: int, window: int) -> None:
        """Return when ``expected`` messages are received and their completion is confirmed."""
        self._connection.sock.settimeout(RECEIVE_TIMEOUT_S)
        try:
            while (self._received if self._deletes else self._settled) < expected:
                self._turn(expected, window)
        except TimeoutError:
            raise BenchError(
                f"a drain stood still for {RECEIVE_TIMEOUT_S:.0f} s: {self._received} of "
                f"{expected} received, {self._settled} settled, credit up to {self._credit_limit}"
            ) from None

    def _turn(self, expected: int, window: int) -> None:
        if self._credit_limit - self._received <= window // 2:
            self._connection.sock.sendall(self._grant(min(window, expected - self._received)))
        for buffer, start, _ in self._connection.frames(self._connection.receive()):
            self._take(buffer, start)
        self._complete(window // 4, at_end=self._received >= expected)

    def receive_one(self) -> None:
        """Return when one message has arrived; it is released, so that it can be counted later."""
        self._connection.sock.settimeout(RECEIVE_TIMEOUT_S)
        self._connection.sock.sendall(self._grant(1))
        delivery_id = self._connection.expect(TRANSFER)[1]
        fields = listed(TRUE, uint(delivery_id), uint(delivery_id), TRUE, RELEASED_STATE)
        self._connection.sock.sendall(frame(described(DISPOSITION, fields)))

    def count_extra(self) -> int:
        """Messages that are still there although the queue should be empty."""
        sock = self._connection.sock
        before = self._received
        sock.settimeout(EXTRA_WAIT_S)
        sock.sendall(self._grant(1000))
        try:
            while True:
                for buffer, start, _ in self._connection.frames(self._connection.receive()):
                    self._take(buffer, start)
        except TimeoutError:
            return self._received - before

    def _grant(self, credit: int) -> bytes:
        if credit <= 0:
            return b""
        self._credit_limit = self._received + credit
        seen = self._connection.initial_delivery_count + self._received
        return self._connection.flow(self._handle, seen, credit)

    def _take(self, buffer: bytes, start: int) -> None:
        code = buffer[start + 2]
        if code == TRANSFER:
            self._connection.incoming_id += 1
            self._note_delivery(_delivery_id(buffer, start))
        elif code == DISPOSITION:
            first, last = accepted_range(decode(buffer, start)[0].value)
            self._settled += last - first + 1
        elif code != FLOW:
            raise BenchError(f"the broker interrupted a drain: {decode(buffer, start)[0]}")

    def _note_delivery(self, delivery_id: int | None) -> None:
        if delivery_id is None or delivery_id == self._last_id:
            return  # a further frame of the same delivery
        if self._unsettled_from is None:
            self._unsettled_from = delivery_id
        self._last_id = delivery_id
        self._received += 1

    def _complete(self, step: int, *, at_end: bool) -> None:
        first = self._unsettled_from
        if self._deletes or first is None or (self._last_id - first + 1 < step and not at_end):
            return
        fields = listed(TRUE, uint(first), uint(self._last_id), FALSE, ACCEPTED_STATE)
        self._connection.sock.sendall(frame(described(DISPOSITION, fields)))
        self._unsettled_from = None

    def close(self) -> None:
        self._connection.close()


def accepted_range(fields: list[Any]) -> tuple[int, int]:
    """The delivery ids of a disposition, which must say settled and accepted."""
    first = fields[1]
    last = first if fields[2] is None else fields[2]
    if len(fields) < 5 or not fields[3] or getattr(fields[4], "descriptor", None) != ACCEPTED:
        raise BenchError(f"the broker did not accept deliveries {first} to {last}: {fields}")
    return first, last


def _delivery_id(buffer: bytes, start: int) -> int | None:
    """The second field of a transfer, without building the others."""
    at = start + (6 if buffer[start + 3] == 0xC0 else 12)
    _, at = decode(buffer, at)
    number: int | None = decode(buffer, at)[0]
    return number
