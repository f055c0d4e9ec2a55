"""A namespace inside this process: our broker on local disk, or in memory.

    async with EmbeddedNamespace("spool", data_directory=Path("/var/lib/app")) as spool:
        driver = spool.driver()

As a secondary it takes messages when the network itself is what failed. It also listens on
loopback, because a syphon's workers are other processes.

Rule 1: the broker has a thread and an event loop of its own; nothing that the application does
        on its loop delays an acknowledgement, and the other way round.
Rule 2: an acknowledged message is on disk (M8): a kill -9 of the application loses none.
Rule 3: keys, messages and the connection string stay in the data directory, which is for its
        owner only. Without one there is nothing left when the process ends.
Rule 4: one process at a time has a data directory; another one is told whose it is.
Rule 5: a forked child can connect to it as before; it stops nothing.
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
        """``name`` is what the namespace calls itself; port 0 takes a free one at each start.

        The thresholds are those at which it answers ServerBusy, a disk that fills up among them.
        """
        self.name = name
        self.data_directory = None if data_directory is None else Path(data_directory)
        self._port = port
        self._thresholds = thresholds or ThrottleThresholds()
        self._clock = clock
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None
        self._running: RunningNamespace | None = None

    # -- what it is reached by ------------------------------------------------------------

    @property
    def connection_string(self) -> str:
        """For a client in this process or another one; handle it like a password."""
        return self._started().connection_string

    @property
    def connection_string_path(self) -> Path | None:
        """A file with the connection string that only its owner can read; None in memory.

        The port may be another one after each start, so others should read it there.
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
                f"the embedded namespace {self.name!r} was started already", hint="Start it once"
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
        """Finish what was accepted and let go of the data directory; may be called twice."""
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

    def _started(self) -> RunningNamespace:
        if self._running is None:
            raise ConfigurationError(
                f"the embedded namespace {self.name!r} is not open",
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
            # A thread cannot be cancelled: what it has opened is closed again.
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
