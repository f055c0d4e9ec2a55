"""What all senders of one factory share: the driver, the routing, and the gate of pairing.

Rule 1: while a pair is being made the gate is shut, and sends wait in front of it (P1), each at
        most until its own deadline.
"""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import TYPE_CHECKING

from twinbus.drivers.port import Driver, Sender
from twinbus.metering.client_books import ClientMeter
from twinbus.pairing.parcels import MessageAdapter
from twinbus.pairing.routing import SendRouter
from twinbus.pairing.sending import PairedSender
from twinbus.pairing.standing import CallTracker
from twinbus.service_errors import OperationTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SenderRegistry"]


class SenderRegistry:
    """Gives out senders and knows the way."""

    def __init__(
        self, driver: Driver, calls: CallTracker, routing: SendRouter, operation_timeout_s: float
    ) -> None:
        self.driver = driver
        self.calls = calls
        self.routing = routing
        self.operation_timeout_s = operation_timeout_s
        self.now_s: Callable[[], float] = time.monotonic
        self.rng = Random()
        self._senders: set[PairedSender] = set()
        self._gate: asyncio.Event | None = None

    def sender(self, path: str, kind: MessageAdapter, link: Sender | None = None) -> PairedSender:
        """A new sender with links of its own; ``path`` is canonical."""
        self.calls.check()
        sender = PairedSender(path, self, kind, link)
        self._senders.add(sender)
        return sender

    def forget(self, sender: PairedSender) -> None:
        self._senders.discard(sender)

    @property
    def paths(self) -> list[str]:
        """The entities that somebody has a sender for."""
        return sorted({sender.path for sender in tuple(self._senders)})

    def set_meter(self, driver: Driver, meter: ClientMeter | None) -> None:
        """What senders do is counted there from now on, whenever they were made."""
        self.driver = driver
        for sender in tuple(self._senders):
            sender.set_meter(meter)

    async def close_senders(self) -> None:
        for sender in tuple(self._senders):
            await sender.close()

    # -- the gate -----------------------------------------------------------------------------

    def suspend_sends(self) -> None:
        self._gate = asyncio.Event()

    def resume_sends(self) -> None:
        if self._gate is not None:
            self._gate.set()
            self._gate = None

    @property
    def is_suspended(self) -> bool:
        return self._gate is not None

    async def wait_until_paired(self, start_s: float, timeout_s: float) -> None:
        """Wait until the pair is made, at most as long as the send has time."""
        try:
            async with asyncio.timeout(start_s + timeout_s - self.now_s()):
                while self._gate is not None:  # Shut again, where pairing failed and is repeated.
                    await self._gate.wait()
        except TimeoutError:
            error = OperationTimeout(
                f"the namespaces were not paired within the {timeout_s:g} s of a send",
                hint="Give the send more time, or look at what pair_namespace() waits for",
            )
            error.is_ambiguous = False
            raise error from None
