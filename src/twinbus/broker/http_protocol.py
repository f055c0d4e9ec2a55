"""uvicorn's HTTP/1.1 protocol with a deadline for requests, for connections that a door hands over.

Only ``http_side`` imports this module, and late: see there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

# The most that a head of a request, and with it its headers, may have.
HEAD_BYTES_MAX = 64 * 1024
KEEP_ALIVE_S = 5

# Mistakes of ours are told. What callers do wrong is counted by the broker's own log.
_logger = logging.getLogger("twinbus.broker.http")
_logger.setLevel(logging.ERROR)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class HttpServing:
    """One application, ready for connections."""

    def __init__(
        self,
        application: Application,
        request_timeout_s: float,
        note_offence: Callable[[str], None],
    ) -> None:
        self._application = application
        self.request_timeout_s = request_timeout_s
        self.note_offence = note_offence
        self.state = ServerState()
        self.state.default_headers = [(b"date", b"")]
        self._config = uvicorn.Config(
            self._dated,
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()

    def __call__(self) -> asyncio.Protocol:
        """A protocol for one more connection."""
        return PunctualHttp(self, self._config)

    async def _dated(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The answer about to be made looks into this very list for its first headers.
        self.state.default_headers[0] = (b"date", formatdate(usegmt=True).encode())
        await self._application(scope, receive, send)


class PunctualHttp(H11Protocol):
    """One HTTP connection whose requests have to arrive in time."""

    def __init__(self, serving: HttpServing, config: uvicorn.Config) -> None:
        super().__init__(config, serving.state, {}, asyncio.get_running_loop())
        self.logger = _logger
        self._serving = serving
        self._deadline: asyncio.TimerHandle | None = None

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def _watch(self) -> None:
        """Have a deadline exactly while a request has begun and is not here in whole."""
        is_due = self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        )
        if not is_due:
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._serving.request_timeout_s, self._too_late)

    def _too_late(self) -> None:
        self._serving.note_offence("a request did not arrive in time")
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send_400_response(self, msg: str) -> None:
        self._serving.note_offence("a request was not HTTP")
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)
