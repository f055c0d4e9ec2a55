"""A lean blocking AMQP 1.0 client for the benchmarks, written from the wire contract alone.

It does what the stock SDK does on the wire: SASL ANONYMOUS, open, begin, put-token on ``$cbs``,
attach. The links that carry messages are in wire_links.

    size(4) doff(1) type(1) channel(2) | performative | payload
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import socket
import struct
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from verification.benchmarks.processes import BenchError
from verification.benchmarks.wire_values import (
    FALSE,
    NULL,
    TRUE,
    Described,
    binary,
    decode,
    described,
    listed,
    mapped,
    string,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)

HEADER_SASL: Final = b"AMQP\x03\x01\x00\x00"
HEADER_AMQP: Final = b"AMQP\x00\x01\x00\x00"
FRAME_HEAD: Final = struct.Struct(">IBBH")

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
SOURCE, TARGET, ACCEPTED, RELEASED = 0x28, 0x29, 0x24, 0x26
PROPERTIES, APPLICATION_PROPERTIES, DATA, AMQP_VALUE = 0x73, 0x74, 0x75, 0x77
BATCH_FORMAT: Final = 0x80013700

FRAME_BYTES_MAX = 1 << 20
RECEIVE_BYTES_MAX = 1 << 18
TOKEN_LIFETIME_S = 3600
CONNECT_TIMEOUT_S = 5.0
# Wide enough that a run of a million transfers never waits for a session flow of ours.
SESSION_WINDOW = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens and who we are there."""

    host: str
    port: int
    key_name: str | None
    """None: the broker has no ``$cbs`` node (only brokers other than ours)."""
    key: str = ""

    @classmethod
    def from_connection_string(cls, text: str) -> Address:
        fields = dict(part.split("=", 1) for part in text.strip().rstrip(";").split(";"))
        found = re.fullmatch(r"sb://([^:/]+):(\d+)/?", fields["Endpoint"])
        if not found:
            raise BenchError("the broker's connection string names no host and port")
        return cls(
            found[1], int(found[2]), fields["SharedAccessKeyName"], fields["SharedAccessKey"]
        )

    def audience(self, entity: str) -> str:
        return f"sb://{self.host}:{self.port}/{entity}"


def sas_token(audience: str, key_name: str, key: str, expires_s: int) -> str:
    resource = urllib.parse.quote_plus(audience)
    digest = hmac.new(key.encode(), f"{resource}\n{expires_s}".encode(), hashlib.sha256).digest()
    signature = urllib.parse.quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_s}&skn={key_name}"


def frame(performative: bytes, payload: bytes = b"", kind: int = 0) -> bytes:
    size = 8 + len(performative) + len(payload)
    return FRAME_HEAD.pack(size, 2, kind, 0) + performative + payload


def split_frames(data: bytes) -> tuple[list[tuple[int, int]], bytes]:
    """Spans (body start, end) of the complete frames in ``data``, and the incomplete rest."""
    spans, at, length = [], 0, len(data)
    while at + 8 <= length:
        size, doff = struct.unpack_from(">IB", data, at)
        if size < 8:
            raise BenchError("the broker sent a frame shorter than its own header")
        if at + size > length:
            break
        spans.append((at + doff * 4, at + size))
        at += size
    return spans, data[at:]


def encode_message(body: bytes, section: bytes = b"") -> bytes:
    """A message as a careful publisher makes it: message id, content type, one data section.

    ``section`` may hold application properties.
    """
    properties = listed(
        string("0" * 32), NULL, NULL, NULL, NULL, NULL, symbol("application/octet-stream")
    )
    return described(PROPERTIES, properties) + section + described(DATA, binary(body))


def encode_batch(body: bytes, count: int, section: bytes = b"") -> bytes:
    """The payload of a batch delivery: every message is one data section of the envelope."""
    return described(DATA, binary(encode_message(body, section))) * count


class Connection:
    """One connection with one session, and the blocking calls up to an attached link."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.sock = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._ready: list[tuple[Described, bytes]] = []
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.transfer_id = 0
        """The next transfer frame of ours; the broker lets us go up to the limit below."""
        self.transfer_id_limit = 0
        self.delivery_id = 0
        self.incoming_id = 0
        self.initial_delivery_count = 0
        """Where the broker starts to count on the receiving link attached last."""
        self.handle = -1
        try:
            self._handshake()
        except BaseException:
            self.sock.close()
            raise

    def _handshake(self) -> None:
        self.sock.sendall(HEADER_SASL)
        self._expect_header(HEADER_SASL)
        self.expect(SASL_MECHANISMS)
        init = listed(symbol("ANONYMOUS"), binary(b""), string(self.address.host))
        self.sock.sendall(frame(described(SASL_INIT, init), kind=1))
        outcome = self.expect(SASL_OUTCOME)
        if outcome[0] != 0:
            raise BenchError(f"the broker refused SASL ANONYMOUS with code {outcome[0]}")
        opening = listed(
            string(f"bench-{uuid.uuid4()}"), string(self.address.host), uint(FRAME_BYTES_MAX),
            ushort(0xFFFF),
        )  # fmt: skip
        self.sock.sendall(HEADER_AMQP + frame(described(OPEN, opening)))
        self._expect_header(HEADER_AMQP)
        answer = self.expect(OPEN)
        if len(answer) > 2 and answer[2]:
            self.frame_bytes_max = min(FRAME_BYTES_MAX, answer[2])
        window = uint(SESSION_WINDOW)
        self.sock.sendall(frame(described(BEGIN, listed(NULL, uint(0), window, window))))
        answer = self.expect(BEGIN)
        self.incoming_id, self.transfer_id_limit = answer[1], answer[2]

    def _expect_header(self, wanted: bytes) -> None:
        while len(self._unread) < 8:
            self._unread += self.receive()
        got, self._unread = self._unread[:8], self._unread[8:]
        if got != wanted:
            raise BenchError(f"the broker answered {got!r} instead of the protocol header")

    def receive(self) -> bytes:
        data = self.sock.recv(RECEIVE_BYTES_MAX)
        if not data:
            raise ConnectionError("the broker closed the connection")
        return data

    def frames(self, data: bytes) -> Iterator[tuple[bytes, int, int]]:
        """Bodies (buffer, start, end) of the frames that ``data`` completes, without heartbeats."""
        buffer = self._unread + data
        spans, self._unread = split_frames(buffer)
        for start, end in spans:
            if start < end:
                yield buffer, start, end

    @property
    def has_decoded_frames(self) -> bool:
        """Whether ``next_frame`` would return without waiting; ``frames`` does not see those."""
        return bool(self._ready)

    def next_frame(self) -> tuple[Described, bytes]:
        """Wait for one frame: its performative and its payload."""
        data = b""
        while not self._ready:
            for buffer, start, end in self.frames(data):
                performative, after = decode(buffer, start)
                self._ready.append((performative, buffer[after:end]))
            data = b"" if self._ready else self.receive()
        return self._ready.pop(0)

    def expect(self, code: int) -> list[Any]:
        return self.expect_with_payload(code)[0]

    def expect_with_payload(self, code: int) -> tuple[list[Any], bytes]:
        """The fields of the next frame of this kind; flows may come before it, errors end it."""
        while True:
            (descriptor, fields), payload = self.next_frame()
            if descriptor == FLOW:
                self.note_flow(fields)
            if descriptor == TRANSFER:
                self.incoming_id += 1
            if descriptor == code:
                return fields, payload
            if descriptor in (DETACH, END, CLOSE):
                raise BenchError(f"the broker refused: {fields[-1]}")

    def note_flow(self, fields: list[Any]) -> None:
        """Session part of a flow: how far the transfer ids may go."""
        self.transfer_id_limit = (fields[0] or 0) + fields[1]

    def attach(self, *, sends: bool, source: str, target: str, settled: bool = False) -> int:
        """Attach a link and return its handle."""
        self.handle += 1
        fields = listed(
            string(f"bench-link-{uuid.uuid4()}"), uint(self.handle), FALSE if sends else TRUE,
            ubyte(1 if settled else 0), ubyte(0 if settled else 1),
            described(SOURCE, listed(string(source))), described(TARGET, listed(string(target))),
            NULL, NULL, uint(0) if sends else NULL, ulong(0),
        )  # fmt: skip
        self.sock.sendall(frame(described(ATTACH, fields)))
        answer = self.expect(ATTACH)
        if answer[6 if sends else 5] is None:
            self.expect(DETACH)  # carries the reason, and raises it
        if not sends:
            self.initial_delivery_count = answer[9] or 0
        return self.handle

    def flow(self, handle: int, delivery_count: int, credit: int) -> bytes:
        """A flow that grants ``credit`` on a receiving link that has seen ``delivery_count``."""
        window = uint(SESSION_WINDOW)
        fields = listed(
            uint(self.incoming_id), window, uint(self.transfer_id), window,
            uint(handle), uint(delivery_count), uint(credit),
        )  # fmt: skip
        return frame(described(FLOW, fields))

    def authorize(self, entity: str) -> None:
        """put-token on ``$cbs`` for one entity; return when the broker has accepted it."""
        if self.address.key_name is None:
            return
        replies = self.attach(sends=False, source="$cbs", target="$cbs")
        requests = self.attach(sends=True, source="$cbs", target="$cbs")
        self.sock.sendall(self.flow(replies, 0, 10) + self._token_transfer(requests, entity))
        _, reply = self.expect_with_payload(TRANSFER)
        status = _application_properties(reply).get("status-code")
        if status not in range(200, 300):
            raise BenchError(f"the broker refused our token with status {status}")

    def _token_transfer(self, handle: int, entity: str) -> bytes:
        audience = self.address.audience(entity)
        expires_s = int(time.time()) + TOKEN_LIFETIME_S
        token = sas_token(audience, self.address.key_name or "", self.address.key, expires_s)
        arguments = mapped(
            string("operation"), string("put-token"), string("type"), string("jwt"),
            string("name"), string(audience), string("expiration"), timestamp(expires_s * 1000),
        )  # fmt: skip
        request = (
            described(PROPERTIES, listed(b"\x98" + uuid.uuid4().bytes))
            + described(APPLICATION_PROPERTIES, arguments)
            + described(AMQP_VALUE, string(token))
        )
        fields = listed(uint(handle), uint(self.delivery_id), binary(bytes(4)), uint(0), TRUE)
        self.transfer_id += 1
        self.delivery_id += 1
        return frame(described(TRANSFER, fields), request)

    def close(self) -> None:
        self.sock.close()


def _application_properties(message: bytes) -> dict[Any, Any]:
    at = 0
    while at < len(message):
        section, at = decode(message, at)
        if section.descriptor == APPLICATION_PROPERTIES:
            return dict(section.value)
    return {}
