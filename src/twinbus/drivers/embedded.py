"""A namespace inside this process: our broker on local disk, or in memory.

    async with EmbeddedNamespace("spool", data_directory=Path("/var/lib/app")) as spool:
        driver = spool.driver()

As a secondary it accepts messages when the network itself has failed. It also listens on
loopback, because a syphon's workers are other processes.

Rule 1: the broker has a thread and an event loop of its own; nothing that the application does
        on its loop delays an acknowledgement, and vice versa.
Rule 2: an acknowledged message is on disk (M8): a kill -9 of the application loses none.
Rule 3: keys, messages and the connection string stay in the data directory, which only its owner
        can read. Without a data directory they end with the process.
Rule 4: one process at a time uses a data directory; the error in another one names that process.
Rule 5: a forked child can connect to it; its stop() has no effect.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Final

from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions, ThrottleThresholds
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.broker.storage.data_directory import write_private
from twinbus.common.clock import Clock
from twinbus.common.connection_string import parse_connection_string
from twinbus.common.event_loop import LoopThread
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.interface import Driver, NamespaceAddress
from twinbus.errors import ConfigurationError

__all__ = ["EmbeddedNamespace"]

CONNECTION_STRING_FILE: Final = "connection-string"


class EmbeddedNamespace:
    """Use it with ``async with`` or ``with``; or call start() and stop(), which block."""

    def __init__(
        self,
        name: str = "local",
        *,
        data_directory: str | Path | None = None,
        port: int = 0,
        thresholds: ThrottleThresholds | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``name`` is the name of the namespace; port 0 selects a free one at each start.

        At the thresholds it responds with ServerBusy, for example when the disk fills up.
        """
        self.name = name
        self.data_directory = None if data_directory is None else Path(data_directory)
        self._port = port
        self._thresholds = thresholds or ThrottleThresholds()
        self._clock = clock
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None
        self._running: RunningNamespace | None = None

    # -- access ---------------------------------------------------------------------------

    @property
    def connection_string(self) -> str:
        """For a client in this process or another one; handle it like a password."""
        return self._running_namespace().connection_string

    @property
    def connection_string_path(self) -> Path | None:
        """A file with the connection string that only its owner can read; None in memory.

        The port may change with each start, so other processes should read it there.
        """
        if self.data_directory is None:
            return None
        return self.data_directory / CONNECTION_STRING_FILE

    @property
    def address(self) -> NamespaceAddress:
        parsed = parse_connection_string(self.connection_string)
        return NamespaceAddress(parsed.host, parsed.effective_port)

    def driver(self) -> Driver:
        """A new driver for it, over loopback; closing that leaves the namespace open."""
        return AmqpDriver.from_connection_string(self.connection_string)

    # -- lifetime -------------------------------------------------------------------------

    def start(self) -> EmbeddedNamespace:
        """Recover what is on disk and serve it; raises StoreLocked, StoreCorrupt, …"""
        if self._thread is not None:
            raise ConfigurationError(
                f"Embedded namespace {self.name!r} is already started",
                hint="Call start() only once",
            )
        self._thread = LoopThread(f"twinbus-embedded-{self.name}")
        try:
            self._thread.run(self._open())
        except BaseException:
            self.stop()
            raise
        return self

    async def _open(self) -> None:
        self._broker = Broker(
            BrokerOptions(
                data_directory=self.data_directory, admin_port=None, thresholds=self._thresholds
            ),
            clock=self._clock,
        )
        self._running = await self._broker.add_namespace(NamespaceSpec(self.name, self._port))
        if self.connection_string_path is not None:
            write_private(self.connection_string_path, self.connection_string.encode())

    def stop(self) -> None:
        """Finish accepted work and release the data directory; may be called twice."""
        thread, self._thread = self._thread, None
        broker, self._broker = self._broker, None
        self._running = None
        if thread is None or thread.is_inherited:
            return
        try:
            if broker is not None:
                thread.run(broker.close())
        finally:
            thread.close()

    def _running_namespace(self) -> RunningNamespace:
        if self._running is None:
            raise ConfigurationError(
                f"Embedded namespace {self.name!r} is not started",
                hint="Use it inside `async with`, or call start() first",
            )
        return self._running

    def __enter__(self) -> EmbeddedNamespace:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> EmbeddedNamespace:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled, so everything it has opened is closed again.
            await asyncio.gather(starting, return_exceptions=True)
            await asyncio.to_thread(self.stop)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)
