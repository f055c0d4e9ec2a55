"""HTTP/1.1 without its ambiguous forms: the check before the parser.

Request smuggling uses requests that two programs read in two ways. Parsers accept many of them; no
regular client needs them.

Rule 1: lines end with CR LF, begin with their name, and contain printable characters.
Rule 2: the length of a body is given once, in Content-Length. There are no chunks.
Rule 3: the request line has a path, not a URL: a request for another host is refused.
Rule 4: heads are bounded in bytes and in lines before anything is parsed.
Rule 5: pure. Bytes are received, and the same bytes are returned once their head was checked, one
        request at a time.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["BODY_BYTES_MAX", "HEAD_BYTES_MAX", "BadRequest", "HttpRequestGate"]

# A token has at most 2 KB, a path 260 characters, and clients add a dozen headers.
HEAD_BYTES_MAX: Final = 16 * 1024
HEADERS_MAX: Final = 64
# A path with every character percent-encoded, and a query. Each percent sign becomes objects of
# 200 bytes where the parser decodes the path.
REQUEST_LINE_BYTES_MAX: Final = 3 * 1024
# A rule with all its parameters is a few KB; a queue with twelve access rules is 10 KB.
BODY_BYTES_MAX: Final = 64 * 1024
# Enough digits for a length that is too large.
_LENGTH = re.compile(rb"[0-9]{1,9}")
_REQUEST_LINE = re.compile(rb"[A-Z]{1,16} /[!-~]* HTTP/1\.[01]")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_BARE_LF = re.compile(rb"(?<!\r)\n")
# Two of one of these would be ambiguous.
_SINGLE: Final = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"host",
        b"servicebussupplementaryauthorization",
        b"servicebusdlqsupplementaryauthorization",
    }
)
_END: Final = b"\r\n\r\n"


class BadRequest(Exception):
    """A status with its sentence; the connection ends after it."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class HttpRequestGate:
    """Checks the requests of one connection as they are received."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._body_bytes_left = 0

    @property
    def is_in_request(self) -> bool:
        """Whether a request has begun and is not complete."""
        return bool(self._head) or self._body_bytes_left > 0

    def receive(self, data: bytes) -> bytes:
        """The bytes so far that may be parsed, of all requests; raises BadRequest."""
        passed = b""
        while data:
            part, data = self.take(data)
            passed += part
        return passed

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """The bytes so far that may be parsed, of at most one request; and those behind it.

        Raises BadRequest.
        """
        passed = b""
        if not self._body_bytes_left:
            passed, data = self._take_head(data)
        if self._body_bytes_left and data:
            part, data = data[: self._body_bytes_left], data[self._body_bytes_left :]
            self._body_bytes_left -= len(part)
            passed += part
        return passed, data

    def _take_head(self, data: bytes) -> tuple[bytes, bytes]:
        """A complete head that was checked, or nothing yet; and the bytes behind it."""
        # The end may be split between two reads.
        searched_from = max(0, len(self._head) - len(_END) + 1)
        known = max(0, len(self._head) - 1)
        self._head += data
        end = self._head.find(_END, searched_from)
        if end < 0:
            self._check_unfinished(known)
            return b"", b""
        if end > HEAD_BYTES_MAX:
            raise BadRequest(
                431, f"The head of a request must have at most {HEAD_BYTES_MAX} bytes."
            )
        head = bytes(self._head[: end + len(_END)])
        rest = bytes(self._head[end + len(_END) :])
        self._head.clear()
        self._body_bytes_left = _checked_length(head)
        return head, rest

    def _check_unfinished(self, known: int) -> None:
        if len(self._head) > HEAD_BYTES_MAX:
            raise BadRequest(
                431, f"The head of a request must have at most {HEAD_BYTES_MAX} bytes."
            )
        if _BARE_LF.search(self._head, known):
            raise BadRequest(400, "The lines of a request must end with CR LF.")


def _checked_length(head: bytes) -> int:
    """The length of the body according to the head; raises BadRequest."""
    request_line, *lines = head[: -len(_END)].split(b"\r\n")
    if not _REQUEST_LINE.fullmatch(request_line):
        raise BadRequest(400, "The request must begin with a method, a path and HTTP/1.1.")
    if len(request_line) > REQUEST_LINE_BYTES_MAX:
        raise BadRequest(414, f"The request line must have at most {REQUEST_LINE_BYTES_MAX} bytes.")
    if len(lines) > HEADERS_MAX:
        raise BadRequest(431, f"A request must have at most {HEADERS_MAX} headers.")
    headers = _headers(lines)
    if b"host" not in headers:
        raise BadRequest(400, "The request must have a Host header.")
    if b"transfer-encoding" in headers:
        raise BadRequest(
            411, "The request must have a Content-Length header. Chunked bodies are not supported."
        )
    length = headers.get(b"content-length", b"0")
    if not _LENGTH.fullmatch(length):
        raise BadRequest(400, "The Content-Length header must have 1 to 9 digits.")
    if int(length) > BODY_BYTES_MAX:
        raise BadRequest(413, f"The body must have at most {BODY_BYTES_MAX} bytes.")
    return int(length)


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        match = _HEADER_LINE.fullmatch(line)
        if match is None:
            raise BadRequest(400, "A header must be a name, a colon and text on one line.")
        name = match[1].lower()
        if name in headers and name in _SINGLE:
            raise BadRequest(400, f"The header {name.decode()} must not occur more than once.")
        headers[name] = match[2].rstrip(b" \t")
    return headers
