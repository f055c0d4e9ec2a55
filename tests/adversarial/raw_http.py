"""An HTTP client that writes whatever a case wants, byte by byte."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from xml.etree import ElementTree

from tests.support.answers import assert_well_put

XML = "application/xml"
JSON = "application/json"


@dataclass(frozen=True)
class HttpAnswer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_closed: bool
    """Whether the broker ended the connection after it."""

    @property
    def sentence(self) -> str:
        """What a refusal says."""
        if self.headers.get("content-type", "").startswith(XML):
            return ElementTree.fromstring(self.body).findtext("Detail", "")
        if self.headers.get("content-type", "").startswith(JSON):
            return str(json.loads(self.body)["error"])
        return self.body.decode()

    def assert_refused(self, status: int, *secrets: str) -> None:
        """It is that status, with a sentence that says why and no secret."""
        assert self.status == status, self
        assert_well_put(self.sentence, *secrets)


def say(port: int, data: bytes, *, timeout_s: float) -> HttpAnswer:
    """Write the bytes, whole, and read the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        with contextlib.suppress(ConnectionError):  # It may have heard enough.
            connection.sendall(data)
        return read_answer(connection)


def request(
    method: str, path: str, body: bytes = b"", *, token: str | None = None, **headers: str
) -> bytes:
    """The bytes of a good request; underscores in names stand for hyphens."""
    lines = {"Host": "localhost", "Content-Length": str(len(body)), "Connection": "close"}
    lines |= {} if token is None else {"Authorization": token}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def read_answer(connection: socket.socket) -> HttpAnswer:
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    length = int(headers["content-length"]) if "content-length" in headers else None
    while length is None or len(body) < length:
        part = connection.recv(65_536)
        if not part:
            break
        body += part
    assert length is None or len(body) >= length, "the answer was cut off"
    return HttpAnswer(int(status_line.split()[1]), headers, body[:length], _is_closed(connection))


def _more(connection: socket.socket) -> bytes:
    part = connection.recv(65_536)
    assert part, "the connection was closed without an answer"
    return part


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(65_536):
            pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False
