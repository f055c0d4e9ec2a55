"""One object of the SDK with its connection, and a time limit that is enforced for the SDK.

The driver interface needs more than the SDK's public names offer: whether the service has detached
an idle link, whether a message was sent before the connection broke, the bytes of a message as
they were delivered, a receive that can be cancelled without losing a message, and a close that does
not wait. tests/integration/drivers/azure_sdk/test_line.py fails when a new version changes the
private names used here.

    SdkLink           every object of the SDK: poll it, drop it, close it
    SdkSenderLink     shows whether something was sent since a mark
    SdkReceiverLink   receives messages with their bytes, and settles many at once
    Watch             the time limit, which costs next to nothing while it is kept:

        with watch.until(until_s):         # TimeoutError when the time is over
            await sender.send_messages(...)

Rule 1: a link is dropped once and for good; the SDK creates another one when it is needed.
Rule 2: dropping never waits, so it is safe in a cancelled task and when the peer does not respond.
Rule 3: when the time is over, the connection is dropped and the task cancelled. Cancelling alone is
        not enough: the SDK can swallow it (``wait_for`` before Python 3.12).
Rule 4: one timer serves all calls of a sender, which come one after the other: it is set again
        only when it fires, not for each message (P0).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import UUID

from azure.servicebus import ServiceBusMessage
from azure.servicebus._common.tracing import is_tracing_enabled
from azure.servicebus._common.utils import _convert_to_single_service_bus_message
from azure.servicebus._pyamqp.constants import ConnectionState, LinkState
from azure.servicebus._pyamqp.error import AMQPException, ErrorCondition, MessageException
from azure.servicebus._pyamqp.outcomes import Accepted, Modified
from azure.servicebus._pyamqp.receiver import check_disposition_outcome, outcome_name
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.drivers.interface import LinkProperties

# A read that finds a whole frame in the buffer does not wait; the rest of a partial one follows.
FRAME_S: Final = 0.2
# Frames of one batch arrive within this time of each other; a receive that has a message waits no
# longer for more.
TOGETHER_S: Final = 0.01
# After this time without use, the event loop reads the connection once more before a send.
IDLE_S: Final = 1.0
# A peer that responds needs little time for detach, end and close, and the SDK drains a receiver
# for 0.4 s; for one that does not respond, the close ends here.
CLOSE_S: Final = 3.0

# A link is open after about ten frames; after more of them the SDK's own pace applies.
OPENING_FRAMES_MAX: Final = 64

# Positions in a transfer frame of the SDK.
_MORE: Final = 5
_PAYLOAD: Final = 11


# The outcomes for settling many messages at once; the SDK's own methods settle one and wait.
ACCEPTED: Final = Accepted()
ABANDONED: Final = Modified(True, undeliverable_here=False, message_annotations=None)
DEFERRED: Final = Modified(True, undeliverable_here=True, message_annotations=None)

Mark: TypeAlias = tuple[Any, int]
"""The state of a sender link: the link, and its delivery count."""


class SdkLink:
    """An object of the SDK and its connection."""

    def __init__(self, sdk: Any) -> None:
        self.sdk = sdk
        self.is_dropped = False
        self._handler: Any = None
        """The last one: it still shows what happened after the SDK has dropped it."""
        self._used_s = 0.0
        self._reading: asyncio.Future[None] | None = None
        # After an error, the SDK closes a connection only when its keep-alive task wakes up, once a
        # second.
        sdk._close_handler = self._drop_at_once
        sdk._create_handler = partial(self._create_handler, sdk._create_handler)

    @property
    def is_open(self) -> bool:
        return bool(self.sdk._running)

    async def open(self) -> None:
        """Open the link if it is not open."""
        await self.sdk.__aenter__()

    def _create_handler(self, create: Callable[..., None], *args: Any) -> None:
        create(*args)
        handler = self.sdk._handler
        handler.client_ready_async = partial(self._ready, handler.client_ready_async)

    async def _ready(self, is_ready: Callable[[], Awaitable[bool]]) -> bool:
        """Process all frames that open a link without pauses: the SDK processes one and sleeps for
        50 ms, so that opening takes half a second although all responses have arrived.

        The SDK waits for this in a task of its own. If that is cancelled and the connection ends
        meanwhile, no code retrieves the error, and asyncio would write it to the log.
        """
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        try:
            for _ in range(OPENING_FRAMES_MAX):
                if await is_ready():
                    return True
                if self.is_open:
                    return False  # In use: the SDK waits for a new token at its own pace.
        except Exception:
            if task is not None and task.cancelling() > before:
                raise asyncio.CancelledError from None
            raise
        return False

    def is_quiet(self, now_s: float) -> bool:
        """Whether there is nothing to process: the fast path of poll(), for each message (P0)."""
        idle_s, self._used_s = now_s - self._used_s, now_s
        handler = self.sdk._handler
        return (
            idle_s < IDLE_S
            and handler is not None
            and not _has_input(handler._connection)
            and not is_gone(handler)
        )

    async def poll(self) -> bool:
        """Process what arrived since the last call; whether the link can still be used."""
        # One turn of the event loop to read what has arrived in the meantime.
        await asyncio.sleep(0)
        handler = self.sdk._handler
        if not self.sdk._running or handler is None:
            return not self.is_dropped
        connection = handler._connection
        try:
            while _has_input(connection) and connection._error is None:
                await self._read_uncancelled(connection.listen(wait=FRAME_S))
        except Exception:
            return False  # The connection was closed; nothing was sent on it.
        return not is_gone(handler)

    async def _read_uncancelled(self, reading: Coroutine[Any, Any, None]) -> None:
        """Continue reading although the caller is cancelled: the SDK can lose a frame otherwise.

        One read at a time: a call during another's read waits for that.
        """
        if self._reading is not None and not self._reading.done():
            reading.close()
        else:
            self._reading = asyncio.ensure_future(reading)
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._reading)

    @property
    def link_error(self) -> BaseException | None:
        """The service's error when it detached the link."""
        link = getattr(self._known_handler(), "_link", None)
        error: BaseException | None = getattr(link, "_error", None)
        return error

    def _known_handler(self) -> Any:
        self._handler = self.sdk._handler or self._handler
        return self._handler

    def drop(self) -> None:
        """Close the connection immediately, in any state."""
        self.is_dropped = True
        handler = self._known_handler()
        self.sdk._handler, self.sdk._running = None, False
        if handler is not None:
            handler._shutdown = True
            _stop_keep_alive(handler)
            _abort(handler._connection)

    def _drop_at_once(self) -> Awaitable[None]:
        """Finished before it is awaited: the SDK allows it the rest of its time, which may be 0,
        and logs a traceback when that is not enough."""
        self.drop()
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        finished.set_result(None)
        return finished

    async def close(self) -> None:
        """Close the link properly if the peer responds, and the connection."""
        handler = self.sdk._handler
        try:
            if handler is not None:
                _stop_keep_alive(handler)
                await self._close_properly()
        finally:
            self.drop()
        # One turn of the event loop for the keep-alive task and the socket to end.
        await asyncio.sleep(0)

    async def _close_properly(self) -> None:
        close_handler = type(self.sdk)._close_handler
        try:
            async with asyncio.timeout(CLOSE_S):
                await close_handler(self.sdk)
        except Exception:
            return  # The caller could do nothing about it.


class SdkSenderLink(SdkLink):
    """A sender of the SDK."""

    def send(self, outgoing: Any, timeout_s: float) -> Awaitable[None]:
        """Send a message, a list of them or a batch of the SDK's."""
        if type(outgoing) is ServiceBusMessage and not is_tracing_enabled():  # type: ignore[no-untyped-call]
            return self._send_one(outgoing, timeout_s)
        sending: Awaitable[None] = self.sdk.send_messages(outgoing, timeout=timeout_s)
        return sending

    async def _send_one(self, message: ServiceBusMessage, timeout_s: float) -> None:
        """What send_messages() does with one message, without the layers for tracing and retries,
        which are off: they cost a send more than all of our layers."""
        try:
            await self.sdk._send(
                _convert_to_single_service_bus_message(
                    message, ServiceBusMessage, PyamqpTransportAsync.to_outgoing_amqp_message
                ),
                timeout=timeout_s,
            )
        except Exception as error:
            last = await self.sdk._handle_exception(error)
            if isinstance(last, OperationTimeoutError):
                raise OperationTimeoutError(message=str(last)) from last
            raise last from None

    def mark(self) -> Mark | None:
        """The current state of the link; None when there is no link yet."""
        handler = self.sdk._handler
        link = None if handler is None else handler._link
        return None if link is None else (link, link.delivery_count)

    def has_sent_since(self, mark: Mark | None) -> bool:
        """Whether a whole message was sent since then."""
        link = getattr(self._known_handler(), "_link", None)
        if link is None:
            return False
        if mark is not None and mark[0] is link:
            return bool(link.delivery_count != mark[1])
        return bool(link.delivery_count != link.initial_delivery_count)

    def has_asked_since(self, mark: Mark | None) -> bool:
        """Whether a request to ``$management`` may have been sent: there was a link."""
        return getattr(self._known_handler(), "_link", None) is not None

    def has_only_opened(self, mark: Mark | None) -> bool:
        """Opening a link sends no message."""
        return False

    @property
    def facts(self) -> LinkProperties | None:
        """The limits that the service reported when the link was attached, and the SDK's own limit
        for batches; None if there was no link yet."""
        message_bytes_max = int(self.sdk._max_message_size_on_link)
        if not message_bytes_max:
            return None
        return LinkProperties(message_bytes_max, int(self.sdk._max_batch_size_on_link))


class SdkReceiverLink(SdkLink):
    """A receiver of the SDK."""

    def __init__(self, sdk: Any, *, prefetch: int) -> None:
        super().__init__(sdk)
        self._prefetch = prefetch
        self._tapped: Any = None
        self._build = sdk._build_received_message
        self._ask = sdk._mgmt_request_response_with_retry
        sdk._build_received_message = self._built
        sdk._mgmt_request_response_with_retry = self._asked

    async def open(self) -> None:
        await super().open()
        link = self.sdk._handler._link
        if self._tapped is not link:
            self._tapped = link
            link._incoming_transfer = partial(_whole_transfer, link, link._incoming_transfer)

    async def poll_messages(self) -> bool:
        """poll(), keeping messages that arrive: the SDK releases those that no call receives."""
        self.sdk._receive_context.set()
        try:
            return await self.poll()
        finally:
            self.sdk._receive_context.clear()

    async def take(self, count_max: int, *, until_s: float) -> list[Any]:
        """Messages of the SDK as soon as some have arrived, or none at ``until_s``.

        A message is either returned or still in the SDK's buffer: a cancelled call loses none.
        """
        handler, context = self.sdk._handler, self.sdk._receive_context
        clock = asyncio.get_running_loop().time
        waiting, before = handler._received_messages, 0
        context.set()
        try:
            while waiting.empty() and clock() < until_s:
                await self._read_uncancelled(self._wait(handler, count_max, until_s - clock()))
            while before < waiting.qsize() < count_max:
                before = waiting.qsize()
                reading = handler._connection.listen(wait=TOGETHER_S, batch=count_max)
                await self._read_uncancelled(reading)
        finally:
            context.clear()
        count = min(count_max, waiting.qsize())
        return [self.sdk._build_received_message(waiting.get_nowait()) for _ in range(count)]

    async def _wait(self, handler: Any, count: int, seconds: float) -> None:
        """Grant credit, and let the SDK read one frame for at most this long."""
        if not await handler.client_ready_async():
            return
        link = handler._link
        if self._prefetch == 0 and link.current_link_credit != count:
            await link.flow(link_credit=count)
        elif link.current_link_credit <= 0:
            await link.flow(link_credit=handler._link_credit)
        await handler._connection.listen(wait=max(0.001, min(FRAME_S, seconds)))

    def _built(self, received: tuple[Any, Any]) -> Any:
        message = self._build(received)
        message._as_delivered = bytes(received[0][_PAYLOAD])
        message._delivered_by = self.sdk._handler._link
        return message

    # -- settling -------------------------------------------------------------------------

    def holds(self, message: Any) -> bool:
        """Whether the open link delivered it, it is unsettled, and its outcome is awaited there."""
        handler, link = self.sdk._handler, getattr(message, "_delivered_by", None)
        if handler is None or link is None:
            return False
        is_open = handler._link is link and self.sdk._await_settlement_outcome
        return bool(is_open and message._delivery_tag in link._received_delivery_tags)

    async def settle(self, messages: Sequence[Any], state: Any) -> dict[int, Exception]:
        """Settle messages of this link, consecutive ids by one frame, and wait for all outcomes:
        the indexes of those that were refused, and why."""
        handler = self.sdk._handler
        link, connection = handler._link, handler._connection
        places = {message._delivery_id: place for place, message in enumerate(messages)}
        pending: dict[int, dict[str, Any]] = {
            number: {"settled": False, "outcome": None} for number in places
        }
        link._pending_dispositions.update(pending)
        try:
            for first, last in _neighbours(sorted(places)):
                tag = messages[places[first]]._delivery_tag
                await link._outgoing_disposition(first, last, tag, False, state, None)
            link._received_delivery_tags.difference_update(
                message._delivery_tag for message in messages
            )
            while not all(each["settled"] for each in pending.values()):
                if is_gone(handler):
                    raise link._error or connection._error or _lost_link()
                await self._read_uncancelled(connection.listen(wait=FRAME_S))
        finally:
            for number in pending:
                link._pending_dispositions.pop(number, None)
        refused: dict[int, Exception] = {}
        for number, place in places.items():
            try:
                check_disposition_outcome(number, pending[number]["outcome"], outcome_name(state))
            except MessageException as error:
                refused[place] = error
            else:
                messages[place]._settled = True
        return refused

    async def settle_by_token(self, tokens: Sequence[UUID], status: str, **details: str) -> None:
        """Settle messages of another link through ``$management``: all or none."""
        named = {name.replace("_", "-"): text for name, text in details.items()}
        await self.sdk._settle_message_via_mgmt_link(status, list(tokens), named or None)

    async def renew(self, tokens: Sequence[UUID], *, timeout_s: float) -> list[int]:
        """Lock messages for longer, all or none; until when, in milliseconds."""
        answer = await self.sdk._renew_locks(*tokens, timeout=timeout_s)
        return list(answer[b"expirations"])

    async def _asked(
        self, operation: bytes, body: Any, callback: Callable[..., Any], **options: Any
    ) -> Any:
        return await self._ask(operation, body, partial(_with_bytes, callback), **options)


def note_renewed(message: Any, until_ms: int) -> None:
    """Set the end of a message's lock: the SDK does not settle it after that."""
    message._expiry = datetime.fromtimestamp(until_ms / 1000, UTC)


def _neighbours(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of consecutive numbers."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def _lost_link() -> AMQPException:
    return AMQPException(ErrorCondition.LinkDetachForced, description="The link is gone.")


def encoded_bytes(message: Any) -> bytes:
    """A message of a SdkReceiverLink in message format 0, as the service delivered it."""
    encoded: bytes = message._as_delivered
    return encoded


async def _whole_transfer(link: Any, incoming: Callable[[Any], Any], frame: list[Any]) -> None:
    """Keep the bytes of a message in several frames, which the SDK would drop."""
    if link._received_payload and not frame[_MORE]:
        link._first_frame[_PAYLOAD] = bytes(link._received_payload) + bytes(frame[_PAYLOAD])
    await incoming(frame)


def _with_bytes(
    callback: Callable[..., Any], status: int, response: Any, description: Any, **options: Any
) -> Any:
    """The response of ``$management``; messages in it keep their bytes."""
    answer = callback(status, response, description, **options)
    entries = response.value.get(b"messages") if isinstance(response.value, dict) else None
    if isinstance(answer, list) and entries:
        for message, entry in zip(answer, entries, strict=True):
            message._as_delivered = bytes(entry[b"message"])
    return answer


def _has_input(connection: Any) -> bool:
    """Whether there is unread input: a frame, or the end of the connection."""
    reader = getattr(connection._transport, "reader", None)
    if reader is None:
        return False
    return bool(reader._buffer or reader._eof or reader._exception)


def is_gone(handler: Any) -> bool:
    """Whether a client of the SDK, async or not, has lost its connection or its link."""
    connection, link = handler._connection, handler._link
    return (
        connection._error is not None
        or connection.state is not ConnectionState.OPENED
        or link is None
        or link._error is not None
        or link.state is not LinkState.ATTACHED
        or (bool(handler._mgmt_links) and _has_lost_management(handler))
    )


def _has_lost_management(handler: Any) -> bool:
    return any(each._mgmt_error is not None for each in handler._mgmt_links.values())


def _stop_keep_alive(handler: Any) -> None:
    keep_alive, handler._keep_alive_thread = handler._keep_alive_thread, None
    if keep_alive is not None:
        keep_alive.cancel()


def _abort(connection: Any) -> None:
    transport = getattr(connection, "_transport", None)
    writer = getattr(transport, "writer", None)
    if writer is not None:
        writer.transport.abort()
    elif transport is not None and getattr(transport, "session", None) is not None:
        _close_web_socket(transport.close())


_CLOSING: Final[set[asyncio.Task[None]]] = set()
"""Web sockets that are being closed: a loop holds its tasks only weakly."""


def _close_web_socket(closing: Any) -> None:
    async def close() -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await closing
        except Exception:
            return  # No call waits for it.

    task = asyncio.ensure_future(close())
    _CLOSING.add(task)
    task.add_done_callback(_CLOSING.discard)


_NEVER: Final = float("inf")


class Watch:
    """An enforced time limit, for one call at a time."""

    __slots__ = ("_cancelling", "_drop", "_fires_s", "_has_fired", "_task", "_timer", "_until_s")

    def __init__(self, drop: Callable[[], None]) -> None:
        self._drop = drop
        self._timer: asyncio.TimerHandle | None = None
        self._fires_s = _NEVER
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._until_s = 0.0
        self._has_fired = False

    def until(self, until_s: float) -> Watch:
        """Limit the block to this time of the event loop."""
        self._until_s = until_s
        return self

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._has_fired = False
        if self._fires_s > self._until_s:
            self.stop()
            self._set()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        task, self._task = self._task, None
        if not self._has_fired or task is None:
            return
        is_ours = task.uncancel() <= self._cancelling
        if error is not None and (is_ours or not isinstance(error, asyncio.CancelledError)):
            raise TimeoutError from error

    def _set(self) -> None:
        self._fires_s = self._until_s
        self._timer = asyncio.get_running_loop().call_at(self._until_s, self._fire)

    def _fire(self) -> None:
        self._timer, self._fires_s = None, _NEVER
        if self._task is None:
            return
        if asyncio.get_running_loop().time() < self._until_s:
            self._set()
            return
        self._has_fired = True
        self._drop()
        self._cancelling = self._task.cancelling()
        self._task.cancel()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._fires_s = None, _NEVER
