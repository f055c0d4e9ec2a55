"""uvicorn's HTTP/1.1 protocol behind a gate, with a deadline, for connections of a door.

Rule 1: what can be read in two ways does not reach the parser (administration/request_gate.py).
Rule 2: who is refused there hears why: the connection stays half open for a moment, because one
        that is closed with bytes unread takes the answer with it.

Only ``http_side`` imports this module, and late: see there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from twinbus.broker.administration.request_gate import HEAD_BYTES_MAX, BadRequest, RequestGate

KEEP_ALIVE_S = 5
# How long whoever was refused may go on writing, unread, before the connection is closed.
LINGER_S = 1.0

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
            # The gate lets no more through.
            h11_max_incomplete_event_size=2 * HEAD_BYTES_MAX,
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
    """One HTTP connection: requests have to arrive in time, and answers have to be read in time."""

    def __init__(self, serving: HttpServing, config: uvicorn.Config) -> None:
        super().__init__(config, serving.state, {}, asyncio.get_running_loop())
        self.logger = _logger
        self._serving = serving
        self._deadline: asyncio.TimerHandle | None = None
        self._being_read: asyncio.TimerHandle | None = None
        self._going: asyncio.TimerHandle | None = None
        self._gate = RequestGate()
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        try:
            passed = self._gate.receive(data)
        except BadRequest as refusal:
            self._refuse(refusal)
            return
        self._unset_keepalive_if_required()
        self._watch()
        if passed:
            super().data_received(passed)

    def _refuse(self, refusal: BadRequest) -> None:
        self._is_refused = True
        self._serving.note_offence("a request was not HTTP as it is taken here")
        self._unset_keepalive_if_required()
        self._stop_watching()
        if self.cycle is not None and not self.cycle.response_complete:
            # A refusal now would be read as the answer to the request before.
            self.transport.abort()
            return
        self.transport.write(_refusal_bytes(refusal))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.close)

    def _watch(self) -> None:
        """Have a deadline exactly while a request has begun and is not here in whole."""
        if not self._gate.is_in_request:
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
        self._begin_to_go()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._being_read = self.loop.call_later(self._serving.request_timeout_s, self._is_deaf)

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self._being_read)

    def _is_deaf(self) -> None:
        self._serving.note_offence("an answer was not read in time")
        self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._begin_to_go()

    def _begin_to_go(self) -> None:
        """If this was the last answer, its end must be read in time too: closing waits for that."""
        _stop(self._going)
        delay_s = KEEP_ALIVE_S + self._serving.request_timeout_s
        self._going = self.loop.call_later(delay_s, self._end_if_closing)

    def _end_if_closing(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        _stop(self._being_read)
        _stop(self._going)
        super().connection_lost(exc)


def _refusal_bytes(refusal: BadRequest) -> bytes:
    body = str(refusal).encode()
    phrase = HTTPStatus(refusal.status).phrase
    head = (
        f"HTTP/1.1 {refusal.status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
