"""uvicorn's HTTP/1.1 protocol behind the request gate, with deadlines.

Rule 1: a request that is ambiguous does not reach the parser (request_gate.py).
Rule 2: requests have turns on the loop, as AMQP's frames do (broker/fairness/loop_turns.py): one
        request in a turn, and the next one of a connection when that is answered.
Rule 3: a client that is refused by the gate gets the reason: its connection stays half open for a
        moment, because closing it with unread bytes would discard the response.

Only ``http.server`` imports this module, and late: see there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from twinbus.broker.fairness.connection_slots import EVICTED, Slot
from twinbus.broker.fairness.loop_turns import Turns
from twinbus.broker.http.request_checks import SLOT
from twinbus.broker.http.request_gate import HEAD_BYTES_MAX, BadRequest, HttpRequestGate
from twinbus.broker.read_gate import ASKING, ReadGate

KEEP_ALIVE_S = 5
# How long a refused client may continue to write before the connection is closed.
LINGER_S = 1.0
# What a request costs after it was parsed. It is not measured: the request runs in its own task.
ANSWER_S = 0.0004

# Only defects of the broker are logged here; the violation log counts what clients do wrong.
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
        log_violation: Callable[[str, str], None],
        note_mistake: Callable[[Exception, str, bool], None],
        turns: Turns,
    ) -> None:
        self.turns = turns
        self._application = application
        self.note_mistake = note_mistake
        self.request_timeout_s = request_timeout_s
        self.log_violation = log_violation
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

    def __call__(self, slot: Slot) -> asyncio.Protocol:
        """A protocol for one more connection."""
        return DeadlineHttpProtocol(self, self._config, slot)

    async def _dated(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The response takes its first headers from this list.
        self.state.default_headers[0] = (b"date", formatdate(usegmt=True).encode())
        has_begun = False

        async def send_noted(message: MutableMapping[str, Any]) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._application(scope, receive, send_noted)
        except ClientDisconnect:
            # The client has disconnected; this is not a defect of the broker.
            self.log_violation("an HTTP request ended before it was complete", _client_of(scope))
        except Exception as error:
            is_stranger = not scope["state"][SLOT].is_authenticated
            self.note_mistake(error, _client_of(scope), is_stranger)
            if not has_begun:
                await _answer_500(send)


class DeadlineHttpProtocol(H11Protocol):
    """One HTTP connection: requests must be complete, and responses must be read, in time."""

    def __init__(self, serving: HttpServing, config: uvicorn.Config, slot: Slot) -> None:
        # The check of a request's token finds the slot of its connection in the scope.
        super().__init__(config, serving.state, {SLOT: slot}, asyncio.get_running_loop())
        self.logger = _logger
        self._serving = serving
        self._slot = slot
        self._deadline: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None
        self._closing_timer: asyncio.TimerHandle | None = None
        self._gate = HttpRequestGate()
        self._is_refused = False
        self._unread = b""
        self._turns = serving.turns.join()
        self._input = ReadGate(self._turns, self._work)
        self._has_key = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._input.opened(self.transport)
        if self._slot.is_taken:
            self._slot.evict = self._evicted
        else:
            self.transport.abort()

    def _evicted(self) -> None:
        self._log_violation(EVICTED)
        self.transport.abort()

    def _log_violation(self, what: str) -> None:
        self._serving.log_violation(what, self.client[0] if self.client else "")

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._unread += data
        if self._turns.is_free:
            self._work()
        else:
            self._input.wait()

    def _work(self) -> None:
        """Parse the received bytes of one request; those behind it wait for the response."""
        began_s = time.monotonic()
        cost_s = 0.0
        while self._unread and not self._input.reasons and not self._is_refused:
            if self._is_answering and not self._gate.is_in_request:
                # Until it is answered nothing more is read. A client that has sent nothing more is
                # still read from: it may disconnect before the response.
                self._input.stop(ASKING)
                break
            try:
                passed, self._unread = self._gate.take(self._unread)
            except BadRequest as refusal:
                self._refuse(refusal)
                break
            self._watch()
            if passed:
                super().data_received(passed)
            if not self._gate.is_in_request:
                cost_s = ANSWER_S
        self._turns.spent(time.monotonic() - began_s + cost_s)
        if self._slot.is_authenticated and not self._has_key:
            self._has_key = True
            self._turns.use_key(("http", self._slot.key), _always)
        self._input.turn_ended(is_done=not self._unread)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, refusal: BadRequest) -> None:
        self._is_refused, self._unread = True, b""
        self._log_violation("an HTTP request was refused: ambiguous or too large")
        self._unset_keepalive_if_required()
        self._stop_watching()
        if self.cycle is not None and not self.cycle.response_complete:
            # The client would take the error for the response to its previous request.
            self.transport.abort()
            return
        self.transport.write(_refusal_bytes(refusal))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.close)

    def _watch(self) -> None:
        """Have a deadline exactly while a request has begun and is not complete."""
        if not self._gate.is_in_request:
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(
                self._serving.request_timeout_s, self._request_timed_out
            )

    def _request_timed_out(self) -> None:
        self._log_violation("an HTTP request was not complete in time")
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send_400_response(self, msg: str) -> None:
        self._log_violation("an HTTP request was refused: invalid HTTP")
        super().send_400_response(msg)
        self._limit_closing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_timer = self.loop.call_later(
            self._serving.request_timeout_s, self._response_not_read
        )

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self._reading_timer)

    def _response_not_read(self) -> None:
        self._log_violation("an HTTP response was not read in time")
        self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_closing()
        self._input.go_on(ASKING)

    def _limit_closing(self) -> None:
        """If this was the last response, it must be read in time: closing waits for that."""
        _stop(self._closing_timer)
        delay_s = KEEP_ALIVE_S + self._serving.request_timeout_s
        self._closing_timer = self.loop.call_later(delay_s, self._end_if_closing)

    def _end_if_closing(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.leave()
        self._turns.leave()
        self._input.close()
        self._stop_watching()
        _stop(self._reading_timer)
        _stop(self._closing_timer)
        self._reading_timer = self._closing_timer = None
        super().connection_lost(exc)


def _client_of(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


async def _answer_500(send: Send) -> None:
    body = b"The broker could not handle this request. See the log of the broker."
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _refusal_bytes(refusal: BadRequest) -> bytes:
    body = str(refusal).encode()
    phrase = HTTPStatus(refusal.status).phrase
    head = (
        f"HTTP/1.1 {refusal.status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _always() -> bool:
    return True


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
