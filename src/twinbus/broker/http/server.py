"""What speaks HTTP behind a door: an application, and uvicorn's protocol in front of it.

Rule 1: the HTTP stack takes a third of a start to import, so it is imported when somebody first
        speaks HTTP or when the broker has said that it is ready, and never on the loop's thread.
Rule 2: a request that does not arrive in time is dropped, however it dribbles (slow loris), and
        so is a caller that does not read its answer.
Rule 3: what callers do wrong is an offence like any other: a line of our own, and not too many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twinbus.broker.fairness.loop_turns import Turns

if TYPE_CHECKING:
    from twinbus.broker.http.protocol import HttpServing

# How long answers that are under way may take when the broker stops.
LAST_ANSWERS_S = 1.0
POLL_S = 0.01


class HttpServer:
    """The HTTP connections of one set of doors."""

    def __init__(
        self,
        make_application: Callable[[], Any] | None = None,
        *,
        request_timeout_s: float,
        log_violation: Callable[[str, str], None],
        note_mistake: Callable[[Exception, str, bool], None],
        turns: Turns | None = None,
    ) -> None:
        """Offences are noted with the address they come from; mistakes of ours with the address of
        whoever met one, and whether that is a stranger."""
        self.make_application = make_application
        """Called when the first caller comes, on a thread of its own."""
        self._request_timeout_s = request_timeout_s
        self._log_violation = log_violation
        self._note_mistake = note_mistake
        self._turns = turns
        self._serving: HttpServing | None = None

    @property
    def connection_count(self) -> int:
        return 0 if self._serving is None else len(self._serving.state.connections)

    async def serving(self) -> HttpServing:
        """Ready to make protocols; the first call imports what that needs."""
        if self._serving is None:
            turns = self._turns or Turns(asyncio.get_running_loop())
            serving = await asyncio.to_thread(self._load, turns)
            # While this one waited, another may have been faster.
            self._serving = self._serving or serving
        return self._serving

    def _load(self, turns: Turns) -> HttpServing:
        from twinbus.broker.http.protocol import HttpServing

        assert self.make_application is not None
        return HttpServing(
            self.make_application(),
            self._request_timeout_s,
            self._log_violation,
            self._note_mistake,
            turns,
        )

    async def close(self) -> None:
        """Let answers under way be written, for a moment, and end every connection."""
        if self._serving is None:
            return
        connections = self._serving.state.connections
        for connection in list(connections):
            connection.shutdown()
        until_s = asyncio.get_running_loop().time() + LAST_ANSWERS_S
        while connections and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(POLL_S)
        for connection in list(connections):
            connection.transport.abort()
