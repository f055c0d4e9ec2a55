"""Keeps a mover from receiving while nobody can be reached at the primary.

A destination that is down concerns its own messages. A line that cannot be had concerns all: then
messages stay in the backlog untouched, and opening a link tells when somebody is there again.
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
"""What a primary is asked for when nobody knows better: "there is none" is an answer, too."""

LOOK_INTERVAL_S: Final = 0.1
"""How often a waiting lane looks at the gate, in memory."""
# Destinations of each kind that are asked at once.
KNOCKS_MAX: Final = 8


class PrimaryProbe:
    """Open while the primary can be reached, as far as anybody knows."""

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
        """Return once the primary can be reached; knocks when it is time to."""
        while self.is_unreachable:
            if not await self.probe_once():
                await asyncio.sleep(LOOK_INTERVAL_S)

    async def probe_once(self) -> bool:
        """Knock, if the gate is closed and it is time to; whether that was done."""
        if (
            not self.is_unreachable
            or self._circuits.admit(PRIMARY, self._now_s()) is not SendPermission.PROBE
        ):
            return False
        sign = await self._probe()
        self._circuits.receive(PRIMARY, sign, self._now_s())
        if sign is SendSignal.ACCEPTED:
            self._circuits.allow_probes_now(self._now_s())
        return True

    async def _probe(self) -> SendSignal:
        """Whether anybody answers: some are asked, because one alone may be a silent entity."""
        closed = [each for each in self._circuits.open_circuits() if each != PRIMARY]
        # Those that closed last may all be silent ones: what took messages last is asked as well.
        paths = {*closed[-KNOCKS_MAX:], *self._senders.latest(KNOCKS_MAX), PROBE_PATH}
        is_answered = await any_destination_reachable(
            self._senders, paths, timeout_s=self._timeout_s
        )
        return SendSignal.ACCEPTED if is_answered else SendSignal.FAILED

    def _now_s(self) -> float:
        return self._clock.now().monotonic_s


async def any_destination_reachable(
    senders: DestinationSenders, paths: Collection[str], *, timeout_s: float
) -> bool:
    """Knock at all of them at once, until the first answer."""
    knocks = [asyncio.create_task(_answers(senders, path, timeout_s)) for path in paths]
    try:
        for answer in asyncio.as_completed(knocks):
            if await answer:
                return True
        return False
    finally:
        for knock in knocks:
            knock.cancel()
        await asyncio.gather(*knocks, return_exceptions=True)


async def _answers(senders: DestinationSenders, path: str, timeout_s: float) -> bool:
    try:
        async with senders.borrow(path) as sender:
            await sender.attach(timeout_s=timeout_s)
    except (CommunicationError, OperationTimeout):
        return False
    except ServiceError:
        return True  # Whatever it is, somebody answered.
    return True
