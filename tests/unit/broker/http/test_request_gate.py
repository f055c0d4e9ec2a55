"""The gate before the HTTP parser: it lets through what can be read one way only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.answers import assert_well_put
from twinbus.broker.http.request_gate import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    BadRequest,
    HttpRequestGate,
)

GET = b"GET /orders?api-version=2024-05 HTTP/1.1\r\nHost: localhost:5672\r\n\r\n"
PUT = (
    b"PUT /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nX-Note: \xc3\xa4 b\t\r\n\r\nGET /"
)


@given(st.lists(st.sampled_from([GET, PUT]), max_size=4), st.data())
def test_good_requests_pass_byte_for_byte_however_they_are_cut(
    requests: list[bytes], data: st.DataObject
) -> None:
    """M10: a body that looks like a request is a body."""
    stream, gate, passed = b"".join(requests), HttpRequestGate(), b""
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        passed += gate.receive(stream[:size])
        stream = stream[size:]
    assert passed == b"".join(requests)
    assert not gate.is_in_request


def test_nothing_passes_before_its_head_is_whole() -> None:
    gate = HttpRequestGate()
    assert gate.receive(GET[:-1]) == b""
    assert gate.is_in_request
    assert gate.receive(GET[-1:]) == GET


def with_header(*lines: bytes) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


BAD: dict[str, tuple[bytes, int]] = {
    "length and chunks": (with_header(b"Content-Length: 4", b"Transfer-Encoding: chunked"), 411),
    "chunked, identity": (with_header(b"Transfer-Encoding: chunked, identity"), 411),
    "a vertical tab": (with_header(b"Transfer-Encoding: \x0bchunked"), 400),
    "chunks": (with_header(b"Transfer-Encoding: chunked"), 411),
    "two lengths": (with_header(b"Content-Length: 4", b"Content-Length: 5"), 400),
    "the same length twice": (with_header(b"Content-Length: 4", b"Content-Length: 4"), 400),
    "a list of lengths": (with_header(b"Content-Length: 4, 4"), 400),
    "a signed length": (with_header(b"Content-Length: +4"), 400),
    "a length in hex": (with_header(b"Content-Length: 0x4"), 400),
    "a length of many digits": (with_header(b"Content-Length: " + b"9" * 5000), 400),
    "a long body": (with_header(b"Content-Length: 65537"), 413),
    "a folded line": (with_header(b"X-A: b", b" c"), 400),
    "a blank before the colon": (with_header(b"Content-Length : 4"), 400),
    "a bare CR": (with_header(b"X-A: b\rContent-Length: 4"), 400),
    "a bare LF": (with_header(b"X-A: b\nContent-Length: 4"), 400),
    "a null": (with_header(b"X-A: b\x00"), 400),
    "no colon": (with_header(b"X-A"), 400),
    "lines that end with LF": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "only the last line ends with LF": (b"GET / HTTP/1.1\r\nHost: x\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (with_header(b"Host: y"), 400),
    "two tokens": (with_header(b"Authorization: a", b"Authorization: b"), 400),
    "a URL": (b"GET http://other/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "an authority": (b"CONNECT other:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "an asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a blank in the path": (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a letter beyond ASCII": (b"GET /\xe4 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a small method": (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "an empty line first": (b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "many headers": (with_header(*[b"A: b"] * (HEADERS_MAX + 1)), 431),
    "a long path": (b"GET /" + b"%2e" * 1_100 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "a long head": (with_header(b"A: " + b"b" * HEAD_BYTES_MAX), 431),
    "a long head without an end": (b"GET /" + b"a" * HEAD_BYTES_MAX, 431),
}


@pytest.mark.parametrize(("request_bytes", "status"), BAD.values(), ids=BAD)
def test_what_could_be_read_in_two_ways_is_refused(request_bytes: bytes, status: int) -> None:
    """Case 103: with a sentence, before any parser sees it."""
    gate = HttpRequestGate()
    with pytest.raises(BadRequest) as refused:
        gate.receive(request_bytes)
    assert refused.value.status == status
    assert_well_put(str(refused.value))


def test_a_bad_request_behind_a_good_one_is_seen_too() -> None:
    with pytest.raises(BadRequest):
        HttpRequestGate().receive(PUT + BAD["two lengths"][0])
