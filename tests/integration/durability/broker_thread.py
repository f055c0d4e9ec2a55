"""A broker inside the test's process, on a disk that can be held, filled and broken.

The broker is the real one, with its sockets and its HTTP side, on an event loop in a thread.
Only the store under it listens to the test.
"""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.wire_client import WireClient, connected
from twinbus.amqp.message.message import Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker.access.sas import make_token
from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions
from twinbus.broker.running_namespace import RunningNamespace
from twinbus.broker.storage.interface import Op, PutEntity, Store
from twinbus.common.connection_string import parse_connection_string
from twinbus.errors import StoreFailed, StoreFull

T = TypeVar("T")
TIMEOUT_S = 20.0
NAMESPACE = "demo"


def payload(body: str, message_id: str | None = None) -> bytes:
    """A message as it is sent."""
    properties = None if message_id is None else Properties(message_id=message_id)
    return Message(properties=properties, body=body.encode()).encode()


class TroubledStore:
    """A store whose commits wait, are refused, or fail, as the test says."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self.is_waiting = threading.Event()
        """A commit has come and is held."""
        self.is_full = False
        self.refusals = 0
        self.commits_left: int | None = None
        """So many commits succeed before the disk fails for good; None is for ever."""
        self.reads_fail = False
        self.refused_path: str | None = None
        """An entity of this path breaks the store's rules, as a mistake of ours would."""
        self.refuses: Callable[[Op], bool] = lambda _op: False
        """Which other ops break them."""
        self.commit_count = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("load_", "next_")) and self.reads_fail:
            return self._fail
        return getattr(self._store, name)

    def _fail(self, *_args: object) -> None:
        raise StoreFailed(path="broken", detail="an input/output error")

    def hold(self) -> None:
        """Let commits begin and not end."""
        self.is_waiting.clear()
        self._may_go_on.clear()

    def let_go(self) -> None:
        self._may_go_on.set()

    def commit(self, ops: Sequence[Op]) -> None:
        if not self._may_go_on.is_set():
            self.is_waiting.set()
            self._may_go_on.wait(TIMEOUT_S)
        if self.is_full:
            self.refusals += 1
            raise StoreFull(path="full")
        if self.commits_left is not None:
            if self.commits_left <= 0:
                self._fail()
            self.commits_left -= 1
        if any(isinstance(op, PutEntity) and op.entity.path == self.refused_path for op in ops):
            raise ValueError(f"{self.refused_path!r} breaks a rule")
        self.commit_count += 1
        if any(self.refuses(op) for op in ops):
            raise ValueError("an op breaks a rule")
        self._store.commit(ops)


class BrokerThread:
    """A running broker with one namespace and one queue, ``orders``."""

    def __init__(self, data: Path, patch: pytest.MonkeyPatch) -> None:
        self._data = data
        self._patch = patch
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stop: Callable[[], Awaitable[None]] | None = None
        self.store: TroubledStore

    def __enter__(self) -> BrokerThread:
        make_store = Broker._store

        def troubled(broker: Broker, name: str) -> Store:
            self.store = TroubledStore(make_store(broker, name))
            return self.store  # type: ignore[return-value]

        self._patch.setattr(Broker, "_store", troubled)
        self._thread.start()
        self.run(self._start)
        return self

    async def _start(self) -> None:
        broker = Broker(BrokerOptions(data_directory=self._data, close_timeout_s=1.0))
        self.namespace: RunningNamespace = await broker.add_namespace(
            NamespaceSpec(NAMESPACE, queues=["orders"])
        )
        administration = await broker.open_administration()
        assert administration is not None
        self._admin_port = administration.port
        self._stop = broker.close

    def __exit__(self, *_error: object) -> None:
        self.store.let_go()
        if self._stop is not None:
            self.run(self._stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def start(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Begin to run a coroutine on the broker's loop."""

        async def working() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(working(), self._loop)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine on the broker's loop and wait for its result."""
        return self.start(work).result(TIMEOUT_S)

    def client(self) -> WireClient:
        """A client with every claim."""
        return connected(self.namespace.port, self._token(self.namespace.port))

    def _token(self, port: int) -> str:
        parsed = parse_connection_string(self.namespace.connection_string)
        return make_token(
            resource=f"sb://localhost:{port}/",
            rule_name=parsed.shared_access_key_name or "",
            key=parsed.shared_access_key or "",
            expires_s=4_000_000_000,
        )

    def health(self) -> tuple[int, dict[str, Any]]:
        """The status and the answer of ``GET /health``."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._admin_port}/health",
            headers={"Authorization": self._token(self._admin_port)},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.loads(refusal.read())
