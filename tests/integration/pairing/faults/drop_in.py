"""The same application through the drop-in: the SDK's client with a secondary behind it."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.integration.pairing.faults.scene import SEND_TIMEOUT_S, Scene
from twinbus.azure.aio import PairedServiceBusClient, Pairing


class DropInScene(Scene):
    """A scene whose sends are calls of ``send_messages``, all of them on one sender."""

    async def open(self, queue: str = "") -> DropInScene:
        self.queue = queue or self._broker.fresh_queue(lock_duration_ms=300_000)
        pairing = Pairing(
            secondary=self._secondary_string,
            backlog_queue_count=2,
            namespace_name=self.name,
            on_event=self._note,
            **self._options,
        )
        self._client = PairedServiceBusClient.from_connection_string(
            self._primary_string, pairing=pairing
        )
        await self._client.__aenter__()
        self.primary = self._client.messaging_factory
        self._sdk_sender = self._client.get_queue_sender(self.queue)
        self.backlog = [f"{self.name}/x-servicebus-transfer/{n}" for n in range(2)]
        return self

    async def close(self) -> None:
        await self._client.close()

    async def send(self, value: str, *, timeout_s: float = SEND_TIMEOUT_S, queue: str = "") -> Any:
        """Send one message; None when it was acknowledged."""
        try:
            message = ServiceBusMessage(value, message_id=value)
            await self._sdk_sender.send_messages(message, timeout=timeout_s)
        except ServiceBusError as error:
            return error
        self.acknowledged.append(value)
        return None
