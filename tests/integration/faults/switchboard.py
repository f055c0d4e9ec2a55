"""Faults of a broker in another process, switched on and off over HTTP; and what was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from tests.support.broker_process import BrokerProcess
from tests.support.sdk_clients import SEND_TIMEOUT_S, Sdk, bodies, receive

PATIENCE_S = 1.5
"""How long a client waits for an answer that never comes."""


def patience_s(expected: object) -> float:
    """A short wait where waiting is what is expected; elsewhere a busy machine may take long."""
    return PATIENCE_S if expected is OperationTimeoutError else SEND_TIMEOUT_S


class Switchboard:
    """The faults of one namespace."""

    def __init__(self, broker: BrokerProcess, namespace: str | None = None) -> None:
        self._broker = broker
        self._path = f"/namespaces/{namespace or broker.namespace}/faults"

    def add(self, kind: str, entity: str = "", **options: Any) -> dict[str, Any]:
        scope = options.pop("scope", {"entity": entity} if entity else {})
        added: dict[str, Any] = self._broker.admin(
            "POST", self._path, {"kind": kind, "scope": scope, **options}
        )
        return added

    @contextmanager
    def on(self, kind: str, entity: str = "", **options: Any) -> Iterator[dict[str, Any]]:
        added = self.add(kind, entity, **options)
        try:
            yield added
        finally:
            if any(each["id"] == added["id"] for each in self.list()):
                self.clear(added["id"])

    def list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._broker.admin("GET", self._path)
        return found

    def clear(self, fault_id: str | None = None) -> int:
        path = self._path if fault_id is None else f"{self._path}/{fault_id}"
        return int(self._broker.admin("DELETE", path)["cleared"])

    def advance(self, seconds: float) -> None:
        """Move the broker's clock. The client's stays: after an hour its tokens are too old."""
        self._broker.admin("POST", "/clock/advance", {"seconds": seconds})


class Count:
    """What became of every message that was sent, by its value."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.failed: list[str] = []
        self.errors: list[type[BaseException]] = []

    async def send(self, sender: Any, value: str, timeout_s: float = SEND_TIMEOUT_S) -> None:
        """Send once, and remember how that ended."""
        try:
            await sender.send_messages(ServiceBusMessage(value), timeout=timeout_s)
        except ServiceBusError as error:
            self.failed.append(value)
            self.errors.append(type(error))
        else:
            self.acknowledged.append(value)

    def lost(self, received: list[str]) -> list[str]:
        """Acknowledged, and never seen again."""
        return [value for value in self.acknowledged if value not in received]

    def surplus(self, received: list[str]) -> list[str]:
        """Refused or unanswered, and there all the same: sending it again makes two."""
        return [value for value in self.failed if value in received]

    @staticmethod
    def repeated(received: list[str]) -> list[str]:
        return [value for value, times in Counter(received).items() if times > 1]


async def drained(sdk: Sdk, broker: BrokerProcess, queue: str) -> list[str]:
    """Every message of a queue that nobody has locked."""
    shown = broker.queue(queue)
    count = shown["active_message_count"] - shown["locked_message_count"]
    receiver = sdk.receiver(queue, receive_mode="receiveanddelete")
    return bodies(await receive(receiver, count)) if count else []
