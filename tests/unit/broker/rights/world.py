"""The broker of the matrix: in this process, in memory, with every entity and rule of it."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from tests.support.wire_client import WireClient
from tests.unit.broker.rights.addresses import QUEUES, TOPICS
from tests.unit.broker.rights.credentials import CLAIMS, DELETED, SCOPES, Shown, key_of, shown
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.message.message import Message
from twinbus.broker import Broker, BrokerOptions, NamespaceSpec, QueueDescription
from twinbus.broker.access.rules import AuthorizationRule, Claim, RuleSet
from twinbus.broker.engine.descriptions import SubscriptionDescription, TopicDescription
from twinbus.broker.running_namespace import RunningNamespace

__all__ = ["SESSIONS", "World"]

T = TypeVar("T")
TIMEOUT_S = 20.0
SESSIONS = "other/sessions"
"""A queue with sessions, and no rules of its own."""


class World:
    """Started once for many cells; whatever a cell changes it puts right again."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._http: http.client.HTTPConnection | None = None
        self.broker: Broker
        self.namespace: RunningNamespace
        self.admin_port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._http is not None:
            self._http.close()
        self.run(lambda: self.broker.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine on the broker's loop and wait for its result."""

        async def working() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(working(), self._loop).result(TIMEOUT_S)

    async def _start(self) -> None:
        self.broker = Broker(BrokerOptions())
        self.namespace = await self.broker.add_namespace(NamespaceSpec("demo"))
        administration = await self.broker.open_administration()
        assert administration is not None
        self.admin_port = administration.port
        root = self.namespace.access.rules.rules
        self.namespace._set_rules(RuleSet((*root, *rules_of("", with_deleted=True))))
        self.namespace._set_rules(RuleSet((*root, *rules_of(""))))
        for path in QUEUES:
            await self.namespace.create_queue(described(path, with_deleted=True))
            await self.namespace.update_queue(described(path))
        for path in TOPICS:
            await self.namespace.create_topic(described_topic(path))
            await self.namespace.create_subscription(described_subscription(path))
        sessions = QueueDescription(path=SESSIONS, requires_session=True)
        await self.namespace.create_queue(sessions)

    # -- asking it --------------------------------------------------------------------------

    def connect(self, token: Shown | None) -> WireClient:
        """A connection that has shown a token, whatever became of that; None shows none."""
        client = WireClient(self.namespace.port, timeout_s=TIMEOUT_S).open()
        if token is not None:
            client.put_token(token.token(self.namespace.port))
        return client

    def ask(
        self,
        method: str,
        path: str,
        token: Shown | None,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> int:
        """One request; the status of its answer."""
        told = {"Host": "localhost", "Content-Length": str(len(body)), **(headers or {})}
        if token is not None:
            told["Authorization"] = token.token(self.admin_port)
        for _attempt in range(2):
            if self._http is None:
                self._http = http.client.HTTPConnection(
                    "127.0.0.1", self.admin_port, timeout=TIMEOUT_S
                )
            try:
                self._http.request(method, path, body, told)
                response = self._http.getresponse()
                response.read()
            except (ConnectionError, http.client.HTTPException):
                # The broker ends a connection after some refusals.
                self._http.close()
                self._http = None
                continue
            if response.will_close:
                self._http.close()
                self._http = None
            return response.status
        raise ConnectionError(f"no answer to {method} {path}")

    def fill(self, path: str) -> None:
        """Let there be a message to receive."""
        queue = self.namespace.queue(path)
        assert queue is not None
        if not queue.message_count:
            with self.connect(shown("", "sender", "")) as client:
                sent = client.send(client.attach_sender(path), Message(body=b"x").encode())
                assert sent == Accepted()

    # -- putting it right ---------------------------------------------------------------------

    def restore(self, path: str) -> None:
        """The entity as it was at the beginning, whatever became of it."""
        self.run(lambda: self._restore(path))

    async def _restore(self, path: str) -> None:
        namespace, found = self.namespace, self.namespace.access.catalogue.find(path)
        wanted: Any
        if path in QUEUES:
            wanted = described(path)
        elif path in TOPICS:
            wanted = described_topic(path)
        elif path.endswith("/subscriptions/s"):
            wanted = described_subscription(path.rpartition("/subscriptions/")[0])
        elif found is None:
            return
        else:
            await namespace.access.delete_queue(found)
            return
        if found is None:
            await namespace.access.create_queue(wanted)
        else:
            await namespace.access.update_queue(found, wanted)
        if path in TOPICS:
            await self._restore(f"{path}/subscriptions/s")


def rules_of(scope: str, *, with_deleted: bool = False) -> tuple[AuthorizationRule, ...]:
    """The rules that stand there."""
    wanted = {**CLAIMS, **({DELETED: CLAIMS["owner"]} if with_deleted else {})}
    return tuple(
        AuthorizationRule(
            name,
            Claim.from_names(claims),
            key_of(scope, name),
            key_of(scope, name, "secondary"),
        )
        for name, claims in wanted.items()
    )


def _rule_set(path: str, *, with_deleted: bool = False) -> RuleSet:
    return RuleSet(rules_of(path, with_deleted=with_deleted) if path in SCOPES else ())


def described(path: str, *, with_deleted: bool = False) -> QueueDescription:
    rules = _rule_set(path, with_deleted=with_deleted)
    return QueueDescription(path=path, authorization_rules=rules)


def described_topic(path: str) -> TopicDescription:
    return TopicDescription(path=path, authorization_rules=_rule_set(path))


def described_subscription(topic: str) -> SubscriptionDescription:
    return SubscriptionDescription(path=f"{topic}/subscriptions/s")
