"""A server that answers anything: nothing hangs, nothing grows, every answer has a name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.answers import assert_well_put
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.administration import AdministrationClient, AdministrationEndpoint
from twinbus.drivers.administration.http_client import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    parse_error_detail,
)
from twinbus.drivers.credentials import AccessToken
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityExists,
    EntityNotFound,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
    TwinbusError,
)

KEY = "bm90IGEgc2VjcmV0"
ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><title>orders</title><content>'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "{inside}</QueueDescription></content></entry>"
)


@asynccontextmanager
async def answering(answer: bytes, *, stays: bool = False) -> AsyncIterator[AdministrationClient]:
    """A client of a server that says just this to whoever comes."""

    visits: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if not stays:
                writer.write_eof()
            await reader.read()  # until the client has gone
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    parsed = parse_connection_string(
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey={KEY};"
        "UseDevelopmentEmulator=true"
    )
    try:
        yield AdministrationClient.from_connection_string(parsed, timeout_s=1.0 if stays else 20.0)
    finally:
        server.close()
        await asyncio.gather(*visits)
        await asyncio.sleep(0)  # what was aborted is closed on the next turn


def http(status: int, body: str = "", *headers: str) -> bytes:
    told = "".join(f"{line}\r\n" for line in headers or [f"Content-Length: {len(body.encode())}"])
    return f"HTTP/1.1 {status} Whatever\r\n{told}\r\n{body}".encode()


def chunked(*chunks: str) -> bytes:
    parts = "".join(f"{len(each.encode()):x};ext=1\r\n{each}\r\n" for each in chunks)
    return http(200, parts + "0\r\nTrailer: x\r\n\r\n", "Transfer-Encoding: chunked")


QUEUE = ENTRY.format(inside="<MaxDeliveryCount>7</MaxDeliveryCount>")


@pytest.mark.parametrize(
    "answer",
    [
        http(200, QUEUE),
        http(200, QUEUE, "X: y"),  # until the connection ends
        chunked(QUEUE[:100], QUEUE[100:]),
        b"HTTP/1.1 100 Continue\r\n\r\n" + http(200, QUEUE),
    ],
    ids=["length", "close", "chunks", "continue"],
)
async def test_an_answer_may_come_in_each_form_of_http(answer: bytes) -> None:
    async with answering(answer) as client:
        queue = await client.get_queue("orders")
    assert queue is not None and queue.max_delivery_count == 7


GARBAGE = {
    "not http": b"AMQP\x03\x01\x00\x00\r\n\r\n",
    "no colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * HEAD_BYTES_MAX,
    "huge length": http(200, "", f"Content-Length: {BODY_BYTES_MAX + 1}"),
    "odd length": http(200, "", "Content-Length: -5"),
    "odd encoding": http(200, "", "Transfer-Encoding: gzip, chunked"),
    "odd chunk": http(200, "zz\r\n", "Transfer-Encoding: chunked"),
    "huge chunk": http(200, "ffffffff\r\n", "Transfer-Encoding: chunked"),
    "cut chunk": http(200, "2\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
    "long chunk line": http(200, "1;" + "x" * 1_000 + "\r\n", "Transfer-Encoding: chunked"),
    "redirect": http(302, "", "Location: http://127.0.0.1:1/", "Content-Length: 0"),
    "no xml": http(200, "{}"),
    "another xml": http(200, "<html/>"),
    "document type": http(200, f"<!DOCTYPE entry>{QUEUE}"),
    "entities": http(200, f'<!DOCTYPE entry [<!ENTITY a "7">]>{QUEUE.replace("7", "&a;")}'),
    "odd encoding of xml": http(200, '<?xml version="1.0" encoding="wtf-9"?><x/>'),
    "odd number": http(200, ENTRY.format(inside="<MaxDeliveryCount>ten</MaxDeliveryCount>")),
    "odd flag": http(200, ENTRY.format(inside="<RequiresSession>perhaps</RequiresSession>")),
    "odd duration": http(200, ENTRY.format(inside="<LockDuration>1 min</LockDuration>")),
    "cut in the body": http(200, QUEUE, "Content-Length: 99999"),
    "cut in the head": b"HTTP/1.1 200 OK\r\nX: y",
    "nothing": b"",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_an_error_of_the_service(name: str) -> None:
    async with answering(GARBAGE[name]) as client:
        with pytest.raises(ServiceError) as caught:
            await client.get_queue("orders")
    is_cut = name.startswith(("cut in", "nothing"))
    wanted = CommunicationError if is_cut else ServiceInternalError
    assert name == "redirect" or type(caught.value) is wanted
    assert_well_put(str(caught.value), KEY)


async def test_an_endless_body_is_given_up() -> None:
    async with answering(http(200, "x" * (BODY_BYTES_MAX + 1), "X: y")) as client:
        with pytest.raises(ServiceInternalError, match=f"{BODY_BYTES_MAX} bytes"):
            await client.get_queue("orders")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", http(200, "", "X: y")])
async def test_silence_ends_with_the_time(answer: bytes) -> None:
    async with answering(answer, stays=True) as client:
        with pytest.raises(OperationTimeout) as caught:
            await client.get_queue("orders")
    assert caught.value.is_ambiguous


async def test_pages_that_never_end_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.drivers.administration.client.PAGES_MAX", 3)
    feed = (
        '<feed xmlns="http://www.w3.org/2005/Atom"><link rel="next" href="http://evil.example/"/>'
        f"{QUEUE}</feed>"
    )
    async with answering(http(200, feed)) as client:
        with pytest.raises(ServiceInternalError, match="more than 3 pages"):
            _ = [queue async for queue in client.list_queues()]


def refused(status: int, detail: str) -> bytes:
    return http(status, f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refused(401, "Manage,EntityRead claims required for this operation."), AccessRefused),
        (refused(401, "The token has an invalid signature."), AuthenticationFailed),
        (refused(403, "Ip has been prevented to connect to the endpoint."), AccessRefused),
        (refused(403, "SubCode=40300. The maximum entity quota was reached."), QuotaExceeded),
        (refused(409, "SubCode=40900. Conflict."), EntityExists),
        (refused(409, "SubCode=40901. Another conflicting operation is in progress."), ServerBusy),
        (refused(410, "Gone."), EntityNotFound),
        (refused(500, "The server was unable to process the request."), ServiceInternalError),
        (http(503, "<html>busy</html>"), ServerBusy),
        (http(418, ""), ServiceError),
    ],
)  # fmt: skip
async def test_what_the_service_says_becomes_our_words(
    answer: bytes, error: type[TwinbusError]
) -> None:
    async with answering(answer) as client:
        with pytest.raises(TwinbusError) as caught:
            await client.delete_queue("orders")
    assert type(caught.value) is error
    assert_well_put(str(caught.value), KEY)


def test_a_sentence_is_passed_on_short_and_without_secrets() -> None:
    def detail(text: str) -> str:
        return parse_error_detail(f"<Error><Detail>{text}</Detail></Error>".encode())

    assert detail("Two\n lines. TrackingId:123, SystemTracker:x") == "Two lines"
    assert detail("sr=x&amp;sig=abc is wrong") == ""
    assert detail("Authorization: Bearer ey.abc") == ""
    assert len(detail("x" * 5_000)) == 240
    assert parse_error_detail(b"no xml at all") == ""


class SlowCredential:
    """An identity provider that does not answer."""

    async def token_for(self, resource: str) -> AccessToken:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")


async def test_a_credential_that_never_answers_is_part_of_the_time() -> None:
    """P1: pairing cannot hang on a token service."""
    endpoint = AdministrationEndpoint("127.0.0.1", 1, uses_tls=False)
    client = AdministrationClient(endpoint, SlowCredential(), timeout_s=0.1)
    with pytest.raises(OperationTimeout, match="token") as caught:
        await client.get_queue("orders")
    assert_well_put(str(caught.value))
