"""The two brokers of the demo, as processes (``twinbus serve``)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from twinbus.demo.files import Files
from twinbus.demo.plan import DESTINATIONS, PRIMARY, QUEUES, SECONDARY, SUBSCRIPTIONS, TOPIC
from twinbus.testing.served import BrokerProcessHandle

__all__ = ["DemoBrokers"]

# The demo writes a few megabytes: a disk that is nearly full is no reason to refuse it.
DISK_FREE_MB: Final = 16


class DemoBrokers:
    """A primary and a secondary."""

    def __init__(self, files: Files) -> None:
        self._files = files
        entities = [f"--topic={TOPIC}"]
        entities += [f"--subscription={TOPIC}/{name}" for name in SUBSCRIPTIONS]
        self.primary = self._broker(PRIMARY, QUEUES, entities)
        self.secondary = self._broker(SECONDARY, (), [])

    def _broker(self, name: str, queues: tuple[str, ...], more: list[str]) -> BrokerProcessHandle:
        arguments = ["--audit", "--metering", str(self._files.logs)]
        arguments += ["--disk-free-mb", str(DISK_FREE_MB)]
        return BrokerProcessHandle(
            self._files / name, namespace=name, queues=queues, arguments=(*more, *arguments)
        )

    @property
    def brokers(self) -> tuple[BrokerProcessHandle, BrokerProcessHandle]:
        return self.primary, self.secondary

    @property
    def addresses(self) -> dict[str, str]:
        """Connection strings, by namespace."""
        return {broker.namespace: broker.connection_string for broker in self.brokers}

    async def start(self) -> None:
        """Start both brokers at once."""
        await asyncio.gather(*(asyncio.to_thread(broker.start) for broker in self.brokers))

    async def stop(self) -> None:
        """Let both brokers end what they do, and close their logs."""
        await asyncio.gather(*(asyncio.to_thread(broker.stop) for broker in self.brokers))

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()

    async def counters(self) -> dict[str, Any]:
        """What each broker has counted since it started, in its own words."""
        return {
            broker.namespace: await asyncio.to_thread(
                broker.admin, "GET", f"/namespaces/{broker.namespace}/operations"
            )
            for broker in self.brokers
        }

    async def waiting(self) -> int:
        """Messages on the primary that nobody has received yet."""
        return await asyncio.to_thread(self._waiting)

    def _waiting(self) -> int:
        count = 0
        for place in (place for places in DESTINATIONS.values() for place in places):
            kind = "topics" if "/" in place else "queues"
            facts = self.primary.admin("GET", f"/namespaces/{PRIMARY}/{kind}/{place}")
            count += facts["active_message_count"]
        return count
