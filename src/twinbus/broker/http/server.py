"""The HTTP connections of a set of listeners: an application and uvicorn's protocol before it.

Rule 1: the import of the HTTP stack takes a third of a start, so it is imported for the first HTTP
        connection, or after the broker has reported that it is ready, and never on the loop's
        thread.
Rule 2: a request that is not complete in time is dropped, also when it is sent byte by byte (slow
        loris), and so is a client that does not read its response.
Rule 3: what clients do wrong goes to the violation log, which limits its lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twinbus.broker.fairness.loop_turns import Turns

if TYPE_CHECKING:
    from twinbus.broker.http.protocol import HttpServing

# How long responses in progress may take when the broker stops.
LAST_ANSWERS_S = 1.0
POLL_S = 0.01


class HttpServer:
    """The HTTP connections of one set of listeners."""

    def __init__(
        self,
        make_application: Callable[[], Any] | None = None,
        *,
        request_timeout_s: float,
        log_violation: Callable[[str, str], None],
        note_mistake: Callable[[Exception, str, bool], None],
        turns: Turns | None = None,
    ) -> None:
        """``log_violation`` gets a sentence and the client's address; ``note_mistake`` an error of
        the broker, the address, and whether the connection is unauthenticated."""
        self.make_application = make_application
        """Called for the first connection, on a thread of its own."""
        self._request_timeout_s = request_timeout_s
        self._log_violation = log_violation
        self._note_mistake = note_mistake
        self._turns = turns
        self._serving: HttpServing | None = None

    @property
    def connection_count(self) -> int:
        return 0 if self._serving is None else len(self._serving.state.connections)

    async def serving(self) -> HttpServing:
        """What makes the protocols of connections; the first call imports the HTTP stack."""
        if self._serving is None:
            turns = self._turns or Turns(asyncio.get_running_loop())
            serving = await asyncio.to_thread(self._load, turns)
            # Another call may have finished first.
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
        """Wait a moment for responses in progress, then close every connection."""
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
