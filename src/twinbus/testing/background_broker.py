"""A broker on its own thread, for sync and async tests.

Rule 1: everything is in memory, on free ports of the loopback interface.
Rule 2: all calls to the broker run on its own event loop; callers wait for the result.
Rule 3: a namespace takes a few milliseconds, so every test can have a clean one, with its own
        clock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions
from twinbus.common.clock import AdjustableClock
from twinbus.common.event_loop import LoopThread
from twinbus.testing.namespaces import NamespaceFixture, NamespacePairFixture

T = TypeVar("T")

# A call that takes longer does not end; no call waits for a disk or a network.
CALL_TIMEOUT_S = 30.0


class BackgroundBroker:
    """Runs until closed; also a context manager."""

    def __init__(self) -> None:
        self._thread = LoopThread("twinbus-broker")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's loop and wait for it."""
        return self._thread.run(work, timeout_s=CALL_TIMEOUT_S)

    def run_function(self, work: Callable[[], T]) -> T:
        """Call a function on the broker's loop and wait for it."""
        return self._thread.run_function(work, timeout_s=CALL_TIMEOUT_S)

    def open_bus(self) -> NamespaceFixture:
        """A clean namespace."""
        return self._open("test")[0]

    def open_pair(self) -> NamespacePairFixture:
        """Two clean namespaces with one clock."""
        return NamespacePairFixture(*self._open("primary", "secondary"))

    def _open(self, *names: str) -> list[NamespaceFixture]:
        return self.run(self._add_namespaces(names))

    async def _add_namespaces(self, names: tuple[str, ...]) -> list[NamespaceFixture]:
        broker = Broker(BrokerOptions(admin_port=None), clock=AdjustableClock())
        namespaces = [await broker.add_namespace(NamespaceSpec(name)) for name in names]
        return [NamespaceFixture(self, broker, namespace) for namespace in namespaces]

    def close(self) -> None:
        self._thread.close()

    def __enter__(self) -> BackgroundBroker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
