"""A namespace inside the application's own process."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import pytest

from tests.support.parcels import bodies, parcel
from twinbus.broker.options import ThrottleThresholds
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.embedded import EmbeddedNamespace
from twinbus.drivers.interface import Driver
from twinbus.errors import CommunicationError, ConfigurationError, StoreLocked
from twinbus.pairing.client.namespace_manager import NamespaceManager

SOON_S = 30.0
# A test's machine may have less than the usual reserve.
ROOMY = ThrottleThresholds(disk_free_bytes_min=16 << 20)


async def all_in(driver: Driver, path: str) -> list[bytes]:
    """The bodies of everything in a queue, completed."""
    receiver = driver.receiver(path)
    found: list[bytes] = []
    while messages := await receiver.receive(1_000, wait_s=SOON_S if not found else 0.5):
        assert await receiver.complete(messages, timeout_s=SOON_S) == []
        found += bodies(messages)
    await receiver.close()
    return found


async def test_messages_go_in_and_come_out_in_memory() -> None:
    async with EmbeddedNamespace() as spool:
        await NamespaceManager.from_connection_string(spool.connection_string).create_queue("q")
        driver = spool.driver()
        assert driver.address == spool.address
        sender = driver.sender("q")
        await asyncio.gather(
            *(sender.send([parcel(b"%d" % number)], timeout_s=SOON_S) for number in range(20))
        )
        assert sorted(map(int, await all_in(driver, "q"))) == list(range(20))
        await driver.close()
        assert spool.connection_string_path is None


async def test_what_was_sent_is_there_after_the_next_start(tmp_path: Path) -> None:
    for number in range(2):
        async with EmbeddedNamespace(data_directory=tmp_path / "d", thresholds=ROOMY) as spool:
            manager = NamespaceManager.from_connection_string(spool.connection_string)
            if number == 0:
                await manager.create_queue("q")
            driver = spool.driver()
            await driver.sender("q").send([parcel(b"%d" % number)], timeout_s=SOON_S)
            if number == 1:
                assert await all_in(driver, "q") == [b"0", b"1"]
            await driver.close()


async def test_another_process_finds_it_by_a_file_that_only_its_owner_reads(
    tmp_path: Path,
) -> None:
    data = tmp_path / "d"
    async with EmbeddedNamespace("spool", data_directory=data, thresholds=ROOMY) as spool:
        path = spool.connection_string_path
        assert path is not None and path.read_text() == spool.connection_string
        modes = {each: stat.S_IMODE(each.stat().st_mode) for each in [data, path]}
        assert modes == {data: 0o700, path: 0o600}
        key = parse_connection_string(spool.connection_string).shared_access_key or ""
        assert key and key not in repr(spool)
        for each in data.rglob("*"):
            if each.is_file() and key.encode() in each.read_bytes():
                assert stat.S_IMODE(each.stat().st_mode) == 0o600, each
        manager = NamespaceManager.from_connection_string(path.read_text())
        assert await manager.namespace_name() == "spool"
        assert spool.address.host in ("localhost", "127.0.0.1")


async def test_a_data_directory_has_one_process_at_a_time(tmp_path: Path) -> None:
    async with EmbeddedNamespace(data_directory=tmp_path / "d", thresholds=ROOMY):
        with pytest.raises(StoreLocked):
            async with EmbeddedNamespace(data_directory=tmp_path / "d"):
                pass
    async with EmbeddedNamespace(data_directory=tmp_path / "d", thresholds=ROOMY):
        assert threads_of_ours(), "free again, and on a thread of its own"
    assert threads_of_ours() == []


async def test_it_is_opened_once_and_may_be_opened_again() -> None:
    spool = EmbeddedNamespace()
    with pytest.raises(ConfigurationError, match="not started"):
        _ = spool.connection_string
    async with spool:
        driver = spool.driver()
        with pytest.raises(ConfigurationError, match="already started"):
            spool.start()
    sender = driver.sender("q")
    with pytest.raises(CommunicationError):
        await sender.attach(timeout_s=SOON_S)
    await driver.close()
    async with spool:
        assert spool.address.port
    spool.stop()


def test_a_program_without_an_event_loop_may_use_it() -> None:
    with EmbeddedNamespace("sync") as spool:
        assert parse_connection_string(spool.connection_string).is_loopback


def threads_of_ours() -> list[str]:
    return [each.name for each in threading.enumerate() if "embedded" in each.name]


async def test_a_start_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    """A timeout around the start must not keep the data directory locked for ever."""
    spool = EmbeddedNamespace(data_directory=tmp_path / "d", thresholds=ROOMY)
    starting = asyncio.create_task(spool.__aenter__())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with EmbeddedNamespace(data_directory=tmp_path / "d", thresholds=ROOMY):
        pass
    assert not [each for each in threading.enumerate() if "embedded" in each.name]
