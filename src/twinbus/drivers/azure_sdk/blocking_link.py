"""A blocking sender of the SDK with an open link, for a caller that sends on its own thread.

    open() --> send(), send(), ... --> drop() or close()

Rule 1: a send opens nothing and renews no token: the SDK would do so without a time limit. For a
        link that is gone, or whose token is old, is_usable() is False; another one replaces it.
Rule 2: one thread at a time uses a link. Any thread may interrupt() it: that ends the call which
        is waiting, and nothing else.
Rule 3: this file uses private names of the SDK, as sdk_link.py does, and
        tests/integration/drivers/azure_sdk/test_blocking_link.py fails when a new version changes
        them.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from azure.servicebus import ServiceBusMessage
from azure.servicebus._common.tracing import is_tracing_enabled
from azure.servicebus._common.utils import _convert_to_single_service_bus_message
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.common import fork
from twinbus.drivers.azure_sdk.errors import closed_error, condition_of, translate_error
from twinbus.drivers.azure_sdk.sdk_link import FRAME_S, OPENING_FRAMES_MAX, is_gone
from twinbus.drivers.azure_sdk.sdk_messages import encoded_batch
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import (
    AccessRefused,
    CommunicationError,
    LinkDetached,
    SendInterrupted,
    ServiceError,
)

__all__ = ["BlockingLink", "encoded_message", "is_tracing_enabled", "native_message"]

# Nothing keeps an idle link alive. A router may have dropped it, and a message sent on it would get
# no response, so a link that was idle for this long is not used again.
IDLE_S_MAX: Final = 20.0
# The SDK renews a token when a tenth of its time is left; the link has been replaced by then.
TOKEN_SHARE_MAX: Final = 0.8
# Opening a link takes a tenth of a second; a thread that waits for a silent peer ends.
OPEN_TIMEOUT_S: Final = 20.0


M = TypeVar("M")


def native_message(message: ServiceBusMessage) -> Any:
    """A message of the SDK, in the form that send_messages() passes on."""
    return _convert_to_single_service_bus_message(
        message, ServiceBusMessage, PyamqpTransport.to_outgoing_amqp_message
    )


def encoded_message(outgoing_message: OutgoingMessage) -> Any:
    """A message that is encoded already."""
    return encoded_batch([outgoing_message.encoded])


class BlockingLink(Generic[M]):
    """One link to one queue or topic. ``sdk`` is a ServiceBusSender without retries and without
    a keep-alive thread; ``outgoing`` turns a message into what it sends."""

    def __init__(self, path: str, sdk: Any, outgoing: Callable[[M], Any]) -> None:
        self.path = path
        self._sdk = sdk
        self._outgoing = outgoing
        self._handler: Any = None
        self._sock: socket.socket | None = None
        self._has_input: Callable[[], object] = lambda: True
        self._used_s = 0.0
        self._replace_s = 0.0
        self._is_interrupted = False
        self._is_dropped = False
        # The SDK closes a connection by a handshake with a peer that may not respond.
        sdk._close_handler = self.drop

    def open(self, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        """Open it; blocks for as long as the peer and the credential take."""
        self._sdk._open(timeout_s)
        try:
            self._adopt(self._sdk._handler)
        except BaseException:
            self.drop()
            raise

    def _adopt(self, handler: Any) -> None:
        sock = handler._connection._transport.sock
        if not isinstance(sock, socket.socket):
            raise closed_error(f"The web socket to {self.path!r}", self.path)
        self._handler, self._sock, self._has_input = handler, sock, _input_check(sock)
        fork.register_socket(sock)
        token_s = handler._cbs_authenticator._expires_on - time.time()
        self._used_s = time.monotonic()
        self._replace_s = self._used_s + token_s * TOKEN_SHARE_MAX

    def is_usable(self) -> bool:
        """Process what arrived since the last call; whether a message may be sent now."""
        handler, self._is_interrupted = self._handler, False
        now_s = time.monotonic()
        idle_s = now_s - self._used_s
        if self._is_dropped or now_s >= self._replace_s or idle_s > IDLE_S_MAX:
            return False
        frames = 0
        while self._has_input() and handler._connection._error is None:
            frames += 1
            if frames > OPENING_FRAMES_MAX:
                return False
            try:
                handler._connection.listen(wait=FRAME_S)
            except Exception:
                return False
        return not is_gone(handler)

    def send(self, message: M, timeout_s: float) -> None:
        """Return once the service has stored it durably; what send_messages() does, without its
        layers for tracing and retries."""
        link = self._handler._link
        mark = link.delivery_count
        if self._is_interrupted:
            raise SendInterrupted(path=self.path, was_sent=False)
        try:
            self._sdk._send(self._outgoing(message), timeout=timeout_s)
        except Exception as error:
            original = self._as_sdk_error(error)
            raise self._failure(original, link.delivery_count != mark) from original
        except BaseException:
            self.drop()
            raise
        self._used_s = time.monotonic()

    def _as_sdk_error(self, error: Exception) -> Exception:
        """The error that send_messages() raises for it."""
        try:
            last: Exception = self._sdk._handle_exception(error)
        except Exception as raised:
            last = raised
        if isinstance(last, OperationTimeoutError):
            wrapped = OperationTimeoutError(message=str(last))
            wrapped.__cause__ = last
            return wrapped
        return last

    def _failure(self, error: Exception, was_sent: bool) -> ServiceError:
        if self._is_interrupted:
            self.drop()
            return SendInterrupted(path=self.path, was_sent=was_sent)
        link_error = getattr(self._handler._link, "_error", None)
        failure = translate_error(
            error, doing="Sending to", path=self.path, was_sent=was_sent, link_error=link_error
        )
        if isinstance(failure, AccessRefused):
            # The link was authorized: a new one, with a new token, shows whether it still is (P7).
            was_sent = was_sent and link_error is not None
            failure = LinkDetached(
                failure.sentence, path=self.path, condition=failure.condition, hint=failure.hint
            )
        if isinstance(failure, LinkDetached):
            failure.is_ambiguous = was_sent
        is_silence = isinstance(error, OperationTimeoutError) and not condition_of(error)
        if is_silence or isinstance(failure, CommunicationError | LinkDetached):
            self.drop()
        return failure

    def interrupt(self) -> None:
        """End the call that is waiting, if there is one; from any thread."""
        self._is_interrupted = True
        if self._sock is not None:
            _shut(self._sock)

    def drop(self) -> None:
        """Close the connection immediately, in any state."""
        self._is_dropped = True
        handler = self._handler or self._sdk._handler
        self._sdk._handler, self._sdk._running = None, False
        if handler is not None:
            self._handler = handler
            handler._shutdown = True
        # The SDK drops the socket of a connection that has ended, and does not always close it.
        transport = getattr(getattr(handler, "_connection", None), "_transport", None)
        for sock in (self._sock, getattr(transport, "sock", None)):
            if isinstance(sock, socket.socket):
                _shut(sock)
                sock.close()

    def close(self) -> None:
        """Close the link properly if it is intact, and the connection."""
        try:
            if not self._is_dropped and self._handler is not None:
                type(self._sdk)._close_handler(self._sdk)
        except Exception:
            return  # The peer does not respond, and the caller could do nothing about it.
        finally:
            self.drop()


def _shut(sock: socket.socket) -> None:
    try:
        # The method of the plain class: that of an SSL socket changes state that its reader uses.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return  # It is gone already.


def _input_check(sock: socket.socket) -> Callable[[], object]:
    """A check for unread input; it runs before every message (P0)."""
    pending: Callable[[], int] = getattr(sock, "pending", int)  # What TLS has decoded already.
    if not hasattr(select, "poll"):  # Windows.
        return lambda: pending() or select.select([sock], [], [], 0)[0]
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if pending is int:
        return lambda: poll.poll(0)
    return lambda: pending() or poll.poll(0)
