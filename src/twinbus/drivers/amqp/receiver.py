"""AmqpReceiver: the Receiver interface over AMQP, and settlement by lock token (rule M2).

Messages whose link is gone, or that arrived without one, are settled by their lock tokens.

Rule 1: the service accepts many tokens at once and refuses all when one lock is lost; then each is
        requested alone, which shows the lost ones.
Rule 2: several requests are under way at once, so that they share the service's commits.
Rule 3: one call at a time waits for messages; the others wait for their turn.
Rule 4: a message is settled on the link that delivered it, as long as that is open, and otherwise
        by its lock token.
Rule 5: a receiver of "the next session" keeps the session that it got.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from uuid import UUID, uuid4

from twinbus.amqp.codec.types import Array, Int, Long, Symbol, UInt
from twinbus.amqp.delivery_states import (
    STATE_ABANDONED,
    STATE_ACCEPTED,
    STATE_DEFERRED,
    Error,
    Rejected,
    encode_state,
)
from twinbus.amqp.errors import Condition
from twinbus.amqp.limits import UINT_MAX
from twinbus.drivers.amqp.connection import AmqpConnection
from twinbus.drivers.amqp.connection_pool import ConnectionPool, PooledConnection
from twinbus.drivers.amqp.delivery_metadata import MetadataReader
from twinbus.drivers.amqp.errors import closed_loss
from twinbus.drivers.amqp.receiver_endpoint import (
    SESSION_FILTER,
    Arrival,
    ReceiverEndpoint,
    Settlement,
)
from twinbus.drivers.amqp.shared_attempt import (
    OPEN_TIMEOUT_S_MAX,
    OPEN_TIMEOUT_S_MIN,
    SharedAttempt,
    time_limit,
    timeout_error,
)
from twinbus.drivers.interface import NextSession, ReceiveMode
from twinbus.encoding.transit import ReceivedMessage
from twinbus.errors import (
    CommunicationError,
    LinkDetached,
    MessageLockLost,
    MessageNotFound,
    MessageRefused,
    OperationTimeout,
    ServiceError,
    ServiceInternalError,
    SessionLockLost,
)

# Tokens in one request; the service's own limit is not documented, the broker's is 1,000.
TOKENS_PER_REQUEST_MAX: Final = 100
REQUESTS_AT_ONCE_MAX: Final = 16

_UUID: Final = 0x98
_TOKEN_BYTES: Final = 16


class Decision:
    """How messages are settled: as a delivery state, and as a request."""

    __slots__ = ("body", "state")

    def __init__(self, state: bytes, status: str, **more: str) -> None:
        self.state = state
        self.body: dict[str, Any] = {"disposition-status": status}
        self.body |= {name.replace("_", "-"): value for name, value in more.items()}


COMPLETE: Final = Decision(STATE_ACCEPTED, "completed")
ABANDON: Final = Decision(STATE_ABANDONED, "abandoned")
DEFER: Final = Decision(STATE_DEFERRED, "defered")


def dead_letter(reason: str, description: str) -> Decision:
    """Move to the dead-letter queue, with a reason."""
    info = {
        Symbol("DeadLetterReason"): reason,
        Symbol("DeadLetterErrorDescription"): description,
    }
    state = encode_state(Rejected(Error(Condition.DEAD_LETTER, description, info)))
    return Decision(
        state, "suspended", deadletter_reason=reason, deadletter_description=description
    )


def lock_tokens(messages: Sequence[ReceivedMessage]) -> Array:
    """The lock tokens of messages, in the form that requests need."""
    for each in messages:
        if len(each.lock_token) != _TOKEN_BYTES:
            raise MessageRefused(
                "A message without a lock cannot be settled",
                path=each.path,
                hint="Receive it with ReceiveMode.PEEK_LOCK; peeked messages have no lock",
            )
    return Array.of(_UUID, [UUID(bytes_le=each.lock_token) for each in messages])


Ask = Callable[[Sequence[ReceivedMessage]], Awaitable[Any]]


async def find_lost(messages: Sequence[ReceivedMessage], ask: Ask) -> list[ReceivedMessage]:
    """Send requests for all of them; returns those whose lock was lost, in their order."""
    size = TOKENS_PER_REQUEST_MAX
    if len(messages) <= size:
        return await _lost_among(messages, ask)
    room = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)

    async def in_turn(part: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        async with room:
            return await _lost_among(part, ask)

    parts = [messages[start : start + size] for start in range(0, len(messages), size)]
    found = await asyncio.gather(*map(in_turn, parts))
    return [each for part in found for each in part]


async def _lost_among(messages: Sequence[ReceivedMessage], ask: Ask) -> list[ReceivedMessage]:
    if not messages or not await _is_lost(messages, ask):
        return []
    if len(messages) == 1:
        return list(messages)
    answers = await asyncio.gather(*(_is_lost([each], ask) for each in messages))
    return [each for each, is_lost in zip(messages, answers, strict=True) if is_lost]


async def _is_lost(messages: Sequence[ReceivedMessage], ask: Ask) -> bool:
    try:
        await ask(messages)
    except (MessageLockLost, SessionLockLost, MessageNotFound):
        return True
    return False


# A link that was detached after this long may have been idle; Azure allows ten minutes.
IDLE_LINK_S_MIN: Final = 30.0
_LONG: Final = 0x81
_MS_PER_S: Final = 1_000


class AmqpReceiver:
    """Receives from one queue, subscription or dead-letter queue."""

    def __init__(
        self,
        pool: ConnectionPool,
        path: str,
        *,
        mode: ReceiveMode,
        prefetch: int,
        session: str | NextSession | None,
        on_close: Callable[[AmqpReceiver], None],
    ) -> None:
        self.path = path
        self.session_id = session if isinstance(session, str) else None
        self._pool = pool
        self._deletes = mode is ReceiveMode.RECEIVE_AND_DELETE
        self._prefetch = prefetch
        self._has_session = session is not None
        self._on_close = on_close
        self._pooled: PooledConnection | None = None
        self._end: ReceiverEndpoint | None = None
        self._opening: SharedAttempt[ReceiverEndpoint] = SharedAttempt()
        self._turn = asyncio.Lock()
        self._is_closed = False

    # -- receiving ------------------------------------------------------------------------

    async def receive(self, count_max: int, *, wait_s: float) -> list[ReceivedMessage]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        try:
            async with asyncio.timeout(wait_s if self._turn.locked() else None):
                await self._turn.acquire()
        except TimeoutError:
            return []
        try:
            return await self._received(count_max, deadline_s)
        except OperationTimeout as error:
            if self._has_session and error.condition == Condition.TIMEOUT:
                return []  # No session became free in this time.
            raise
        finally:
            self._turn.release()

    async def _received(self, count_max: int, deadline_s: float) -> list[ReceivedMessage]:
        loop = asyncio.get_running_loop()
        is_last = False
        while True:
            end = await self._fresh(max(0.0, deadline_s - loop.time()))
            began_s = loop.time()
            try:
                arrivals = await end.collect(count_max, max(0.0, deadline_s - loop.time()))
                return self._delivered(end, arrivals)
            except (LinkDetached, CommunicationError):
                # No message arrived, so none is lost by waiting on a new link. The service may
                # detach an idle one repeatedly; two that end soon are an error.
                was_idle = loop.time() - began_s >= IDLE_LINK_S_MIN
                if self._is_closed or (is_last and not was_idle):
                    raise
                is_last = is_last or not was_idle

    def _delivered(
        self, end: ReceiverEndpoint, arrivals: Sequence[Arrival]
    ) -> list[ReceivedMessage]:
        path, deletes, read = self.path, self._deletes, end.facts.read
        # By position: keyword arguments would double the time of this function.
        return [
            ReceivedMessage(
                path, payload, *read(payload), b"" if deletes else tag, (end, delivery_id)
            )
            for delivery_id, tag, payload in arrivals
        ]

    async def _fresh(self, wait_s: float) -> ReceiverEndpoint:
        """The existing link if it has messages or is open, or a new one."""
        if self._is_closed:
            raise self._closed()
        end = self._end
        if end is not None and (end.has_arrivals or end.is_fresh):
            await end.connection.poll_if_idle()
            if end.has_arrivals or end.is_fresh:
                return end
        timeout_s = min(max(wait_s, OPEN_TIMEOUT_S_MIN), OPEN_TIMEOUT_S_MAX)
        if self._has_session:
            # The service responds when a session is free.
            timeout_s = wait_s + OPEN_TIMEOUT_S_MIN
        try:
            async with asyncio.timeout(timeout_s):
                return await self._opening.result(lambda: self._open(wait_s))
        except ServiceError as error:
            error.path = error.path or self.path
            raise
        except TimeoutError:
            raise timeout_error(
                timeout_s, path=self.path, doing="Opening a link from", was_sent=False
            ) from None

    async def _open(self, wait_s: float) -> ReceiverEndpoint:
        def make(connection: AmqpConnection) -> ReceiverEndpoint:
            return ReceiverEndpoint(
                connection,
                self.path,
                f"receiver-{uuid4()}",
                deletes=self._deletes,
                prefetch=self._prefetch,
                session_filter={SESSION_FILTER: self.session_id} if self._has_session else None,
                session_wait_ms=min(UINT_MAX, max(1, int(wait_s * _MS_PER_S)))
                if self._has_session
                else None,
            )

        pooled, end = await self._pool.attach(self.path, make)
        if self._has_session:
            self.session_id = end.session_id
        old, self._end, self._pooled = self._end, end, pooled
        if old is not None:
            old.close_when_idle()
        return end

    # -- settling -------------------------------------------------------------------------

    async def complete(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return await self._settle(messages, COMPLETE, timeout_s)

    async def abandon(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return await self._settle(messages, ABANDON, timeout_s)

    async def defer(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        return await self._settle(messages, DEFER, timeout_s)

    async def dead_letter(
        self,
        messages: Sequence[ReceivedMessage],
        *,
        reason: str,
        description: str,
        timeout_s: float,
    ) -> list[ReceivedMessage]:
        return await self._settle(messages, dead_letter(reason, description), timeout_s)

    async def _settle(
        self, messages: Sequence[ReceivedMessage], decision: Decision, timeout_s: float
    ) -> list[ReceivedMessage]:
        self._check_settling()
        on_links: dict[ReceiverEndpoint, dict[int, ReceivedMessage]] = {}
        by_token: list[ReceivedMessage] = []
        for message in messages:
            end, delivery_id = message.handle or (None, 0)
            if isinstance(end, ReceiverEndpoint) and end.loss is None:
                on_links.setdefault(end, {})[delivery_id] = message
            else:
                by_token.append(message)
        async with self._time_limit(timeout_s, "Settling messages of"):
            lost = []
            for end, by_id in on_links.items():
                lost += await self._settle_on(end, by_id, decision)
            return lost + await self._settle_by_token(by_token, decision, timeout_s)

    async def _settle_on(
        self, end: ReceiverEndpoint, by_id: dict[int, ReceivedMessage], decision: Decision
    ) -> list[ReceivedMessage]:
        settlement: Settlement = end.settle(list(by_id), decision.state)
        try:
            await settlement.future
        finally:
            end.forget(settlement)
        return [by_id[each] for each in sorted(settlement.lost)]

    async def _settle_by_token(
        self, messages: Sequence[ReceivedMessage], decision: Decision, timeout_s: float
    ) -> list[ReceivedMessage]:
        async def ask(some: Sequence[ReceivedMessage]) -> None:
            body = {**decision.body, "lock-tokens": lock_tokens(some)}
            await self._request("update-disposition", body, timeout_s)

        return await find_lost(messages, ask) if messages else []

    def _check_settling(self) -> None:
        if self._deletes:
            raise MessageRefused(
                "A message received with ReceiveMode.RECEIVE_AND_DELETE cannot be settled",
                path=self.path,
                hint="Receive with ReceiveMode.PEEK_LOCK",
            )

    async def renew(
        self, messages: Sequence[ReceivedMessage], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        self._check_settling()

        async def ask(some: Sequence[ReceivedMessage]) -> None:
            if self._has_session:
                await self._request("renew-session-lock", {}, timeout_s)
            else:
                await self._request("renew-lock", {"lock-tokens": lock_tokens(some)}, timeout_s)

        async with self._time_limit(timeout_s, "Renewing locks of"):
            if self._has_session and messages:
                return list(messages) if await find_lost(messages[:1], ask) else []
            return await find_lost(messages, ask)

    # -- peeking --------------------------------------------------------------------------

    async def peek(
        self, count_max: int, *, from_sequence: int = 1, timeout_s: float
    ) -> list[ReceivedMessage]:
        body = {"from-sequence-number": Long(from_sequence), "message-count": Int(count_max)}
        async with self._time_limit(timeout_s, "Peeking messages of"):
            answer = await self._request("peek-message", body, timeout_s)
        return self._listed(answer)

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ReceivedMessage]:
        body = {
            "sequence-numbers": Array.of(_LONG, [Long(each) for each in sequence_numbers]),
            "receiver-settle-mode": UInt(0 if self._deletes else 1),
        }
        async with self._time_limit(timeout_s, "Receiving from"):
            answer = await self._request("receive-by-sequence-number", body, timeout_s)
        return self._listed(answer)

    def _listed(self, answer: dict[str, Any]) -> list[ReceivedMessage]:
        reader = MetadataReader()
        return [self._listed_one(reader, each) for each in answer.get("messages") or []]

    def _listed_one(self, reader: MetadataReader, entry: Any) -> ReceivedMessage:
        encoded = entry.get("message") if isinstance(entry, dict) else None
        if not isinstance(encoded, bytes):
            raise ServiceInternalError(
                f"A response of {self.path!r} contains no messages", path=self.path
            )
        token = entry.get("lock-token")
        number, enqueued_ms, until_ms, count = reader.read(encoded)
        return ReceivedMessage(
            path=self.path,
            encoded=encoded,
            sequence_number=number,
            enqueued_at_ms=enqueued_ms,
            locked_until_ms=until_ms,
            delivery_count=count,
            lock_token=token.bytes_le if isinstance(token, UUID) and not self._deletes else b"",
        )

    def _time_limit(self, timeout_s: float, doing: str) -> AbstractAsyncContextManager[None]:
        suspect = self._pool.suspect
        return time_limit(timeout_s, path=self.path, doing=doing, on_timeout=suspect)

    async def _request(
        self, operation: str, body: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        if self._is_closed:
            raise self._closed()
        end, pooled = self._end, self._pooled
        if end is None or pooled is None or not end.is_fresh:
            # The service identifies a session by its link, which must be on the same connection.
            pooled = await self._pool.acquire()
        if self.session_id is not None:
            body = {**body, "session-id": self.session_id}
        name = "" if end is None or not end.is_open else end.name
        return await pooled.request(self.path, operation, body, timeout_s=timeout_s, link_name=name)

    # -- the end --------------------------------------------------------------------------

    def _closed(self) -> ServiceError:
        return closed_loss(f"The receiver of {self.path!r}").error(self.path, was_sent=False)

    async def close(self) -> None:
        self._is_closed = True
        self._on_close(self)
        self._opening.fail(self._closed())
        if self._end is not None:
            await self._end.drain_and_close()
