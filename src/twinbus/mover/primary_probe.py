"""Keeps a mover from receiving while the primary is unreachable.

A destination that is unavailable concerns its own messages. A connection that fails concerns all:
then messages stay in the backlog, and opening a link shows when the primary is reachable again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from twinbus.common.clock import Clock
from twinbus.errors import CommunicationError, OperationTimeout, ServiceError
from twinbus.mover.chunk_transfer import PRIMARY
from twinbus.mover.destination_senders import DestinationSenders
from twinbus.mover.planning.circuit_breaker import (
    CircuitState,
    DestinationCircuits,
    SendPermission,
    SendSignal,
)

__all__ = ["PROBE_PATH", "PrimaryProbe", "any_destination_reachable"]

PROBE_PATH: Final = "twinbus-contact"
"""A link is opened to this path, too: also "not found" shows that the primary is reachable."""

CHECK_INTERVAL_S: Final = 0.1
"""How often a waiting worker checks the state of the primary, in memory."""
# Destinations of each kind that are probed at the same time.
PROBES_MAX: Final = 8


class PrimaryProbe:
    """Whether the primary is reachable, by the last sends and probes."""

    def __init__(
        self,
        circuits: DestinationCircuits,
        senders: DestinationSenders,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._circuits, self._senders = circuits, senders
        self._clock, self._timeout_s = clock, timeout_s

    @property
    def is_unreachable(self) -> bool:
        return self._circuits.state(PRIMARY) is not CircuitState.CLOSED

    async def wait_until_reachable(self) -> None:
        """Return once the primary is reachable; probes it when that is due."""
        while self.is_unreachable:
            if not await self.probe_once():
                await asyncio.sleep(CHECK_INTERVAL_S)

    async def probe_once(self) -> bool:
        """Probe the primary, if it is unreachable and a probe is due; whether that was done."""
        if (
            not self.is_unreachable
            or self._circuits.admit(PRIMARY, self._now_s()) is not SendPermission.PROBE
        ):
            return False
        signal = await self._probe()
        self._circuits.receive(PRIMARY, signal, self._now_s())
        if signal is SendSignal.ACCEPTED:
            self._circuits.allow_probes_now(self._now_s())
        return True

    async def _probe(self) -> SendSignal:
        """Whether one of several destinations responds: one alone may not respond by itself."""
        failed = [each for each in self._circuits.open_circuits() if each != PRIMARY]
        # Those that failed last may all be silent: those that were used last are probed as well.
        paths = {*failed[-PROBES_MAX:], *self._senders.latest(PROBES_MAX), PROBE_PATH}
        is_reachable = await any_destination_reachable(
            self._senders, paths, timeout_s=self._timeout_s
        )
        return SendSignal.ACCEPTED if is_reachable else SendSignal.FAILED

    def _now_s(self) -> float:
        return self._clock.now().monotonic_s


async def any_destination_reachable(
    senders: DestinationSenders, paths: Collection[str], *, timeout_s: float
) -> bool:
    """Open a link to all of them at the same time, until the first responds."""
    probes = [asyncio.create_task(_responds(senders, path, timeout_s)) for path in paths]
    try:
        for probe in asyncio.as_completed(probes):
            if await probe:
                return True
        return False
    finally:
        for task in probes:
            task.cancel()
        await asyncio.gather(*probes, return_exceptions=True)


async def _responds(senders: DestinationSenders, path: str, timeout_s: float) -> bool:
    try:
        async with senders.borrow(path) as sender:
            await sender.attach(timeout_s=timeout_s)
    except (CommunicationError, OperationTimeout):
        return False
    except ServiceError:
        return True  # Any other error is a response.
    return True
