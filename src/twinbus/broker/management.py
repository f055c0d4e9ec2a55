"""The ``<entity>/$management`` node: what the SDK asks besides sending and receiving.

    renew-lock, update-disposition             by lock token, from any connection (rule M2)
    peek-message, receive-by-sequence-number   by sequence number
    schedule-message, cancel-scheduled-message

Each operation is a function from a request to a reply; those that read the disk answer later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.types import Array, Long, Timestamp
from twinbus.broker.access.claims import Claim
from twinbus.broker.answers import Answer, AnswerTicket, bad_request, empty, ok, refused
from twinbus.broker.entities.consumer import Consumer, Grant
from twinbus.broker.entities.history import DUPLICATE
from twinbus.broker.entities.locks import LockRun
from twinbus.broker.entities.outcome import (
    ABANDON,
    COMPLETE,
    DEFER,
    DeadLetter,
    Outcome,
)
from twinbus.broker.entities.partitions import Spread
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.record import IncomingMessage
from twinbus.broker.entities.sessions import SessionLock
from twinbus.broker.faults.requests import catch_request
from twinbus.broker.ingest import FORMAT_MESSAGE, ingest
from twinbus.broker.peeking import (
    deferred_message,
    peeked,
    read_deferred,
    read_peek,
    read_scheduled,
)
from twinbus.broker.replies import Request
from twinbus.broker.session_desk import SessionDesk, session_lock_lost, session_named
from twinbus.broker.store.port import LoadedChunk, ScheduledRow
from twinbus.core.costs import Operation, units_of
from twinbus.metering.tally import Tally

if TYPE_CHECKING:
    from twinbus.broker.peer import Peer

PEEK_COUNT_MAX = 1_000
# Tokens, sequence numbers or messages in one request.
ITEMS_PER_REQUEST_MAX = 1_000

_LONG_ARRAY, _TIMESTAMP_ARRAY = 0x81, 0x83

_COUNTED_ELSEWHERE = frozenset(
    {
        "com.microsoft:update-disposition",
        "com.microsoft:peek-message",
        "com.microsoft:receive-by-sequence-number",
        "com.microsoft:schedule-message",
    }
)


class _SharedTicket:
    """One answer for several changes: good when all are on disk, bad with the first that is not."""

    def __init__(self, ticket: AnswerTicket, count: int) -> None:
        self._ticket = ticket
        self._missing = count

    def stored(self, seqs: range) -> None:
        self._missing -= 1
        if not self._missing:
            self._ticket.stored(seqs)

    def failed(self, error: Exception) -> None:
        if self._missing > 0:
            self._missing = -1
            self._ticket.failed(error)


class ManagementDesk:
    """Answers management requests for one queue on one connection."""

    def __init__(self, peer: Peer, queue: Queue, path: str) -> None:
        self._peer = peer
        self._queue = queue
        self._spread = Spread()
        self._path = path
        self._operations: dict[str, tuple[Claim, Callable[[dict[str, Any], Answer], None]]] = {
            "com.microsoft:renew-lock": (Claim.LISTEN, self._renew),
            "com.microsoft:update-disposition": (Claim.LISTEN, self._update_disposition),
            "com.microsoft:peek-message": (Claim.LISTEN, self._peek),
            "com.microsoft:receive-by-sequence-number": (Claim.LISTEN, self._receive),
            "com.microsoft:schedule-message": (Claim.SEND, self._schedule),
            "com.microsoft:cancel-scheduled-message": (Claim.SEND, self._cancel),
        }
        self._sessions = SessionDesk(peer, queue)
        for name, operation in self._sessions.operations().items():
            self._operations[name] = (Claim.LISTEN, operation)

    def handle(self, request: Request, answer: Answer) -> None:
        try:
            known = self._operations.get(request.operation)
            if known is None:
                raise AmqpError(
                    Condition.NOT_IMPLEMENTED,
                    f"The management operation {request.operation[:80]!a} is not offered. "
                    "Check its name.",
                )
            claim, operation = known
            self._peer.admission.demand(self._path, claim)
            if self._queue.is_deleted:
                raise AmqpError(Condition.NOT_FOUND, "The queue was deleted.")
            if not isinstance(request.body, dict):
                raise bad_request("the body must be a map")
            self._count(request.operation)
            body = {str(key): value for key, value in request.body.items()}
            peer, work = self._peer, partial(_tried, operation, body)
            if not peer.namespace.faults.is_calm and catch_request(
                peer, self._queue.description.path, request.operation, work, answer
            ):
                return
            operation(body, answer)
        except AmqpError as error:
            answer(refused(error))

    def _count(self, name: str) -> None:
        """Requests that move messages are counted where they do (rule C1)."""
        if name not in _COUNTED_ELSEWHERE:
            self._tally(Operation.MANAGEMENT).happened()

    def _tally(self, operation: Operation) -> Tally:
        return self._peer.namespace.meter.tally(self._path, operation)

    # -- locks ----------------------------------------------------------------------------

    def _renew(self, body: dict[str, Any], answer: Answer) -> None:
        if self._queue.sessions is not None:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                "A message of a session has no lock of its own. Renew the session's lock.",
            )
        now = self._peer.namespace.now()
        ends = [self._queue.renew(token, now) for token in _tokens(body)]
        self._peer.namespace.touch(self._queue)
        if None in ends:
            raise _lock_lost()
        expirations = Array.of(_TIMESTAMP_ARRAY, [Timestamp(end or 0) for end in ends])
        answer(ok({"expirations": expirations}))

    def _update_disposition(self, body: dict[str, Any], answer: Answer) -> None:
        outcome = _outcome(body, self._queue)
        namespace, queue = self._peer.namespace, self._queue
        now = namespace.now()
        found = [queue.locks.find(token, now.monotonic_s) for token in _tokens(body)]
        if not found or None in found:
            raise _lock_lost() if body.get("session-id") is None else session_lock_lost()
        held = [each for each in found if each is not None]
        self._tally(Operation.SETTLE).took_in(1, len(held), 0, 0)
        masks: dict[LockRun, int] = {}
        for run, index in held:
            masks[run] = masks.get(run, 0) | 1 << index
        ticket = _SharedTicket(AnswerTicket(answer), len(masks))
        for run, mask in masks.items():
            if not queue.settle(run, mask, outcome, now, ticket):
                ticket.stored(range(0))  # Nothing is left to be written.
        namespace.touch(queue)

    # -- peek and deferred ----------------------------------------------------------------

    def _peek(self, body: dict[str, Any], answer: Answer) -> None:
        first = max(1, _whole(body, "from-sequence-number"))
        count = min(_whole(body, "message-count"), PEEK_COUNT_MAX)
        if count < 1:
            raise bad_request("message-count must be at least 1")
        queue = self._queue
        session = None if body.get("session-id") is None else session_named(body)

        def found(rows: tuple[list[LoadedChunk], list[ScheduledRow]]) -> None:
            messages = peeked(queue, rows, first, count, self._peer.namespace.now())
            self._gave_out(Operation.PEEK, messages)
            answer(ok({"messages": messages}) if messages else empty())

        now_ms = self._peer.namespace.now().wall_ms
        read = partial(read_peek, queue, first, count, session, now_ms)
        self._peer.namespace.read(queue, read, found)

    def _receive(self, body: dict[str, Any], answer: Answer) -> None:
        seqs = [_seq(value) for value in _items(body, "sequence-numbers")]
        if len(set(seqs)) != len(seqs):
            raise bad_request("a sequence number must not stand twice")
        deletes = body.get("receiver-settle-mode") == 0
        queue = self._queue
        lock = None if queue.sessions is None else self._sessions.held(body)
        self._peer.namespace.read(
            queue,
            partial(read_deferred, queue, seqs),
            partial(self._received, seqs, deletes, lock, answer),
        )

    def _received(
        self,
        seqs: list[int],
        deletes: bool,
        lock: SessionLock | None,
        answer: Answer,
        rows: list[LoadedChunk | None] | None,
    ) -> None:
        if rows is None:
            answer(refused(_too_much()))
            return
        if lock is not None and lock.is_over:
            answer(refused(session_lock_lost()))
            return
        queue, now = self._queue, self._peer.namespace.now()
        chunks = [None if row is None else queue.shelf.adopt(row) for row in rows]
        wanted = [
            (chunk, seq - chunk.first_seq, row.row.blob)
            for seq, chunk, row in zip(seqs, chunks, rows, strict=True)
            if chunk is not None and row is not None
        ]
        session = None if lock is None else lock.session
        if len(wanted) == len(seqs) and all(
            chunk.session == session and queue.is_deferred(chunk, index, now)
            for chunk, index, _blob in wanted
        ):
            messages = []
            for chunk, index, blob in wanted:
                # Handing out one message of a chunk may give the chunk's bytes back.
                chunk.blob = blob if chunk.blob is None else chunk.blob
                taker = Consumer(
                    _unused, unsettled_max=1, deletes_on_receipt=deletes, credit=1, session=lock
                )
                messages.append(deferred_message(queue.take_deferred(chunk, index, taker, now)))
            self._gave_out(Operation.RECEIVE, messages)
            reply = ok({"messages": messages})
        else:
            reply = refused(_not_found(seqs))
        for chunk, _index, _blob in wanted:
            queue.shelf.put_back(chunk)
        self._peer.namespace.touch(queue)
        answer(reply)

    def _gave_out(self, operation: Operation, messages: list[dict[str, Any]]) -> None:
        sizes = [len(message["message"]) for message in messages]
        # A look that finds nothing is an operation too.
        self._tally(operation).gave_out(len(sizes), max(1, units_of(sizes)), sum(sizes))

    # -- schedules ------------------------------------------------------------------------

    def _schedule(self, body: dict[str, Any], answer: Answer) -> None:
        namespace, queue = self._peer.namespace, self._queue
        if queue.is_dead_letter_queue or not queue.description.takes_messages:
            raise bad_request("messages can be sent to a queue or a topic only")
        if not queue.description.status.can_send:
            raise AmqpError(Condition.ENTITY_DISABLED, "The queue takes no messages.")
        now = namespace.now()
        messages = []
        size = 0
        for entry in _items(body, "messages"):
            payload = entry.get("message") if isinstance(entry, dict) else None
            if not isinstance(payload, bytes):
                raise bad_request("each of the messages must be a map with a binary message")
            taken = ingest(payload, FORMAT_MESSAGE, queue.description, self._peer.limits, now)
            if not taken.messages:
                raise bad_request("a ping cannot be scheduled")
            messages += taken.messages
            size += taken.byte_count
        for message in messages:
            # A time that has passed means now; it still gets the number the caller waits for.
            message.due_ms = now.wall_ms if message.due_ms is None else message.due_ms
        shares = None
        if queue.description.enable_partitioning:
            shares = self._spread.assign(messages, queue.description)
        namespace.throttle.check(queue.queue_id, len(messages), now.monotonic_s, shares)
        if not queue.has_room_for(size):
            raise AmqpError(Condition.RESOURCE_LIMIT_EXCEEDED, "The queue is full.")
        units = units_of([len(message.record) for message in messages])
        self._tally(Operation.SEND).took_in(1, len(messages), units, size)
        queue.enqueue(messages, AnswerTicket(answer, partial(_sequence_numbers, messages)))
        namespace.touch(queue)

    def _cancel(self, body: dict[str, Any], answer: Answer) -> None:
        seqs = [_seq(value) for value in _items(body, "sequence-numbers")]
        queue, namespace = self._queue, self._peer.namespace

        def found(rows: list[ScheduledRow | None]) -> None:
            known = [row for row in rows if row and queue.is_still_scheduled(row.seq)]
            if len(known) != len(set(seqs)):
                answer(refused(_not_found(seqs)))
                return
            queue.cancel_scheduled(known, AnswerTicket(answer))
            namespace.touch(queue)

        namespace.read(queue, partial(read_scheduled, queue, seqs), found)


def _tried(
    operation: Callable[[dict[str, Any], Answer], None], body: dict[str, Any], answer: Answer
) -> None:
    """Do what was asked, and answer also if it is refused."""
    try:
        operation(body, answer)
    except AmqpError as error:
        answer(refused(error))


def _unused(_grant: Grant) -> None:
    """A deferred message is handed over in the reply, not on a link."""


def _sequence_numbers(messages: list[IncomingMessage], seqs: range) -> dict[str, Any]:
    """One number for each message; a duplicate was dropped and has none, which is 0."""
    numbers = iter(seqs)
    given = [Long(0 if m.facts is DUPLICATE else next(numbers)) for m in messages]
    return {"sequence-numbers": Array.of(_LONG_ARRAY, given)}


def _items(body: dict[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    items = list(value.items) if isinstance(value, Array) else value
    if not isinstance(items, list) or not items:
        raise bad_request(f"{key} must be a list with at least one entry")
    if len(items) > ITEMS_PER_REQUEST_MAX:
        raise bad_request(f"{key} may have {ITEMS_PER_REQUEST_MAX} entries, not {len(items)}")
    return items


def _tokens(body: dict[str, Any]) -> list[bytes]:
    tokens = _items(body, "lock-tokens")
    if not all(isinstance(token, UUID) for token in tokens):
        raise bad_request("lock-tokens must hold uuids")
    if len(set(tokens)) != len(tokens):
        # The second one would find its lock gone, after the first had settled the message.
        raise bad_request("a lock token must not stand twice")
    return [token.bytes_le for token in tokens]


def _whole(body: dict[str, Any], key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request(f"{key} must be a whole number")
    return int(value)


def _seq(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request("a sequence number must be a whole number")
    return int(value)


def _outcome(body: dict[str, Any], queue: Queue) -> Outcome:
    status = body.get("disposition-status")
    if status == "completed":
        return COMPLETE
    if status == "abandoned":
        return ABANDON
    if status == "defered":
        return DEFER
    if status == "suspended":
        if queue.is_dead_letter_queue:
            raise bad_request("a dead-letter queue has no dead-letter queue")
        return DeadLetter(
            str(body.get("deadletter-reason") or ""), str(body.get("deadletter-description") or "")
        )
    raise bad_request("disposition-status must be completed, abandoned, defered or suspended")


def _lock_lost() -> AmqpError:
    return AmqpError(
        Condition.MESSAGE_LOCK_LOST,
        "The lock is lost: it ran out, or the message was settled. Receive the message again.",
    )


def _too_much() -> AmqpError:
    return AmqpError(
        Condition.LINK_MESSAGE_SIZE_EXCEEDED,
        "These messages are too much for one reply. Ask for fewer at once.",
    )


def _not_found(seqs: list[int]) -> AmqpError:
    shown = ", ".join(str(seq) for seq in seqs[:5])
    return AmqpError(
        Condition.MESSAGE_NOT_FOUND,
        f"No such message is waiting under sequence number {shown}. Peek to see which ones are.",
    )
