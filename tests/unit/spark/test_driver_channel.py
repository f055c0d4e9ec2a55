"""Tasks report to the driver over real sockets; invalid connections and requests are refused."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from twinbus.common.event_loop import LoopThread
from twinbus.errors import CommunicationError, OperationTimeout
from twinbus.spark import driver_channel as channel_module
from twinbus.spark.driver_channel import (
    LINE_BYTES_MAX,
    DriverChannel,
    DriverChannelAddress,
    DriverChannelClient,
)


class Book:
    """What was reported; answers with the count so far."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.delay_s = 0.0

    async def handle(self, kind: str, facts: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(facts.get("delay_s", self.delay_s))
        if kind == "stumble":
            raise ZeroDivisionError("secret")
        if kind == "wait":
            raise OperationTimeout("secret")
        self.reports.append((kind, facts))
        return {"heard": len(self.reports), **facts}


@asynccontextmanager
async def open_channel(book: Book) -> AsyncIterator[DriverChannelAddress]:
    channel = DriverChannel(book.handle)
    address = await channel.start()
    try:
        yield address
    finally:
        await channel.close()


async def said_to(address: DriverChannelAddress, *said: bytes, ends: bool = False) -> bytes:
    """What the channel answers to these bytes before it ends the connection."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        async with asyncio.timeout(10):
            for each in said:
                writer.write(each)
                try:
                    await writer.drain()
                except OSError:
                    break
            if ends:
                writer.write_eof()
            try:
                return await reader.read()
            except ConnectionError:
                return b""
    finally:
        writer.close()


async def test_a_task_reports_and_hears_an_answer() -> None:
    book = Book()
    async with open_channel(book) as address, DriverChannelClient(address) as line:
        assert await line.ask("moved", count=3, queue="a") == {"heard": 1, "count": 3, "queue": "a"}
        assert await line.ask("done") == {"heard": 2}
    assert book.reports == [("moved", {"count": 3, "queue": "a"}), ("done", {})]


async def test_many_tasks_report_at_once_and_each_hears_its_own_answer() -> None:
    book = Book()

    async def task(number: int) -> None:
        async with DriverChannelClient(address) as line:
            answers = await asyncio.gather(
                *(line.ask("moved", task=number, step=step) for step in range(20))
            )
        assert [(each["task"], each["step"]) for each in answers] == [
            (number, step) for step in range(20)
        ]

    async with open_channel(book) as address:
        await asyncio.gather(*(task(number) for number in range(50)))
    assert len(book.reports) == 1_000


async def test_a_large_report_and_its_answer_arrive() -> None:
    numbers = list(range(200_000))
    async with open_channel(Book()) as address, DriverChannelClient(address) as line:
        assert (await line.ask("aside", numbers=numbers))["numbers"] == numbers


@pytest.mark.parametrize("nonce", [b"", b"0" * 31, b"0" * 32, b"0" * 33, b"\xff" * 32])
async def test_a_stranger_is_not_heard(nonce: bytes) -> None:
    book = Book()
    report = json.dumps({"kind": "moved"}).encode() + b"\n"
    async with open_channel(book) as address:
        assert await said_to(address, nonce + b"\n", report, ends=True) == b""
    assert book.reports == []


async def test_half_a_nonce_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does it fill the log: strangers may knock as often as they like."""
    async with open_channel(Book()) as address:
        assert await said_to(address, address.nonce[:20].encode(), ends=True) == b""
        # All of it but another one's first letters in front: no searching for it.
        assert await said_to(address, b"xx" + address.nonce.encode() + b"\n", ends=True) == b""
    assert caplog.records == []


async def test_who_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "HELLO_TIMEOUT_S", 0.05)
    async with open_channel(Book()) as address:
        assert await said_to(address) == b""


async def test_a_stranger_is_read_no_further_than_a_nonce() -> None:
    async with open_channel(Book()) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"x" * 33)  # And no end of line.
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        writer.close()


GARBAGE = {
    "empty": b"\n",
    "bytes": b"\x00\xff\xfe\n",
    "half": b"{\n",
    "list": b"[]\n",
    "filled list": b"[1]\n",
    "number": b"7\n",
    "null": b"null\n",
    "text": b'"kind"\n',
    "no kind": b"{}\n",
    "wrong type": b'{"kind": "moved", "delay_s": "x"}\n',
    "deep": b"[" * 100_000 + b"\n",
    "defect of ours": b'{"kind": "stumble"}\n',
    "no answer for us": b'{"kind": "wait"}\n',
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_ends_its_own_connection_only(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    book = Book()
    caplog.set_level(logging.WARNING)
    async with open_channel(book) as address, DriverChannelClient(address) as line:
        await line.ask("before")
        assert await said_to(address, address.nonce.encode() + b"\n", garbage) == b""
        await line.ask("after")
    assert [kind for kind, _ in book.reports] == ["before", "after"]
    assert [each.name for each in caplog.records] == ["twinbus.spark"]
    assert "secret" not in caplog.text and address.nonce not in caplog.text


async def test_a_line_without_an_end_is_cut_off() -> None:
    book = Book()
    async with open_channel(book) as address, DriverChannelClient(address) as line:
        chunk = b"x" * (1 << 20)
        chunks = [chunk] * ((LINE_BYTES_MAX >> 20) * 2 + 2)
        assert await said_to(address, address.nonce.encode() + b"\n", *chunks) == b""
        await line.ask("after")


async def test_half_a_line_is_not_handled() -> None:
    book = Book()
    async with open_channel(book) as address:
        half = b'{"kind": "moved", "count"'
        assert await said_to(address, address.nonce.encode() + b"\n" + half, ends=True) == b""
    assert book.reports == []


async def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next() -> None:
    async with open_channel(Book()) as address, DriverChannelClient(address) as line:
        slow = asyncio.create_task(line.ask("slow", delay_s=0.1))
        await asyncio.sleep(0.03)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert (await line.ask("next", mark=7))["mark"] == 7
        assert (await line.ask("last", mark=8))["mark"] == 8


async def test_a_driver_that_does_not_answer_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "ASK_TIMEOUT_S", 0.1)
    async with open_channel(Book()) as address, DriverChannelClient(address) as line:
        with pytest.raises(OperationTimeout):
            await line.ask("slow", delay_s=0.25)
        monkeypatch.setattr(channel_module, "ASK_TIMEOUT_S", 5.0)
        assert (await line.ask("next", mark=7))["mark"] == 7


async def test_closing_ends_what_is_being_asked() -> None:
    channel = DriverChannel(Book().handle)
    address = await channel.start()
    async with DriverChannelClient(address) as line:
        asking = asyncio.create_task(line.ask("slow", delay_s=30))
        await asyncio.sleep(0.05)
        await channel.close()
        await channel.close()
        with pytest.raises(CommunicationError):
            await asking
        with pytest.raises(CommunicationError):
            await line.ask("again")


async def test_a_closed_channel_is_reported_in_a_sentence() -> None:
    channel = DriverChannel(Book().handle)
    address = await channel.start()
    await channel.close()
    with pytest.raises(CommunicationError, match=f"127.0.0.1:{address.port}") as caught:
        async with DriverChannelClient(address):
            pass
    assert "driverHost" in caught.value.hint
    assert address.nonce not in str(caught.value)


@pytest.mark.parametrize("turns", range(8))
def test_who_comes_while_the_channel_closes_is_not_served_afterwards(turns: int) -> None:
    engine = LoopThread(
        "channel"
    )  # Its loop, because asyncio's own forgets sockets at this moment.
    engine.run(come_late(turns), timeout_s=10)
    engine.close()


async def come_late(turns: int) -> None:
    book = Book()
    channel = DriverChannel(book.handle)
    address = await channel.start()
    with socket.create_connection((address.host, address.port)) as late:
        late.sendall(address.nonce.encode() + b"\n" + b'{"kind": "late"}\n')
        for _ in range(turns):  # It has been accepted, or is being greeted, or talks already.
            await asyncio.sleep(0)
        await channel.close()
        heard_count = len(book.reports)
        await asyncio.sleep(0.02)
    assert len(book.reports) == heard_count


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-name.invalid"])
async def test_a_name_that_is_not_this_machines_has_one_port_for_all_addresses(host: str) -> None:
    """Behind an address translation, a task may come by IPv4 or by IPv6."""
    channel = DriverChannel(Book().handle)
    address = await channel.start(host)
    assert address.host == host
    try:
        for local in ("127.0.0.1", "::1") if has_ipv6() else ("127.0.0.1",):
            async with DriverChannelClient(
                DriverChannelAddress(local, address.port, address.nonce)
            ) as line:
                await line.ask("moved")
    finally:
        await channel.close()


async def test_a_name_with_several_addresses_is_reached_by_its_name() -> None:
    channel = DriverChannel(Book().handle)
    address = await channel.start("localhost")
    async with DriverChannelClient(address) as line:
        await line.ask("moved")
    await channel.close()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_the_address_crosses_processes_and_shows_no_nonce() -> None:
    address = DriverChannelAddress("127.0.0.1", 5, "canary")
    assert pickle.loads(pickle.dumps(address)) == address
    assert "canary" not in repr(address) and "canary" not in f"{address}"
