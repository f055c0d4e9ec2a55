"""Time that passes when a test says so, for what waits on a routing's pulse."""

from __future__ import annotations

import asyncio

from twinbus.pairing.routing import ChangeNotifier, SendRouter


class PassingTime(ChangeNotifier):
    """The clock and the pulse of a routing. Who waits is woken when its time has come."""

    def __init__(self, routing: SendRouter) -> None:
        super().__init__()
        self._now_s = 0.0
        self._alarms: list[tuple[float, asyncio.Future[None]]] = []
        routing.notifier, routing.now_s = self, self.now_s

    def now_s(self) -> float:
        return self._now_s

    async def wait(self, timeout_s: float | None) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        if timeout_s is not None:
            self._alarms.append((self._now_s + timeout_s, waiter))
        await waiter

    async def passes(self, span_s: float) -> None:
        """Everything that falls due meanwhile is done, each at its time."""
        end_s = self._now_s + span_s
        while True:
            await self._quiet()
            self._alarms = [each for each in self._alarms if not each[1].done()]
            due = min((each for each in self._alarms), key=lambda each: each[0], default=None)
            if due is None or due[0] > end_s:
                self._now_s = end_s
                return
            self._now_s = due[0]
            self._waiters.discard(due[1])
            due[1].set_result(None)

    async def _quiet(self) -> None:
        """Until everybody waits again."""
        while not self._waiters:
            await asyncio.sleep(0.001)
