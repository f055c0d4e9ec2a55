"""The ``<entity>/$management`` node: the requests besides sending and receiving.

    renew-lock, update-disposition             by lock token, from any connection (rule M2);
                                               a session's, from its holder's only
    peek-message, receive-by-sequence-number   by sequence number
    schedule-message, cancel-scheduled-message

Each operation is a function from a request to a reply; those that read the disk answer later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from twinbus.amqp.codec.types import Array, Long, Timestamp
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.access.rules import Claim
from twinbus.broker.engine.chunk import Chunk
from twinbus.broker.engine.consumers import Consumer, DeliveryBatch
from twinbus.broker.engine.duplicate_detection import DUPLICATE
from twinbus.broker.engine.locks import LockRun
from twinbus.broker.engine.outcomes import (
    ABANDON,
    COMPLETE,
    DEFER,
    DeadLetter,
    SettlementOutcome,
)
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.sessions import SessionLock
from twinbus.broker.engine.store_requests import ScheduledSize
from twinbus.broker.engine.stored_message import IncomingMessage, PartitionAssigner
from twinbus.broker.faults.injection import inject_request
from twinbus.broker.read_gate import ASKING
from twinbus.broker.server.ingest import FORMAT_MESSAGE, Ingestion, plain_messages
from twinbus.broker.server.message_lookup import (
    Found,
    deferred_message,
    peeked,
    read_deferred,
    read_peek,
    read_scheduled,
)
from twinbus.broker.server.request_reply import (
    Answer,
    Reply,
    ReplyAck,
    Request,
    bad_request,
    empty,
    ok,
    refused,
)
from twinbus.broker.server.session_operations import (
    SESSION_OPERATIONS,
    SessionOperations,
    session_lock_lost,
    session_named,
)
from twinbus.broker.storage.interface import SEQ_MAX, Store
from twinbus.broker.throttle import MESSAGE_OVERHEAD_BYTES
from twinbus.common.steps import Steps
from twinbus.cost.units import Operation, units_of
from twinbus.metering.operations_log import OperationCounter

if TYPE_CHECKING:
    from twinbus.broker.server.connection import ClientConnection

_Reply = TypeVar("_Reply")
_Handler = Callable[[dict[str, Any], Answer], None]

PEEK_COUNT_MAX = 1_000
# Tokens, sequence numbers or messages in one request.
ITEMS_PER_REQUEST_MAX = 1_000
# Runs of messages that are settled in one step.
RUNS_PER_STEP = 64
# Deferred messages that are taken and built in one step.
TAKEN_PER_STEP = 64

_LONG_ARRAY, _TIMESTAMP_ARRAY = 0x81, 0x83

# Requests that carry no content: a thousand lock tokens have 17 KB.
REQUEST_BYTES_MAX = 64 << 10
_WITH_CONTENT = frozenset(
    {"com.microsoft:schedule-message", "com.microsoft:set-session-state"},
)
_LOOKED_UP = frozenset(
    {
        "com.microsoft:peek-message",
        "com.microsoft:receive-by-sequence-number",
        "com.microsoft:cancel-scheduled-message",
        "com.microsoft:get-session-state",
        "com.microsoft:get-message-sessions",
    }
)
_COUNTED_ELSEWHERE = frozenset(
    {
        "com.microsoft:update-disposition",
        "com.microsoft:peek-message",
        "com.microsoft:receive-by-sequence-number",
        "com.microsoft:schedule-message",
    }
)


class _SharedCommit:
    """One reply for several changes: success when all are on disk, or the first error."""

    def __init__(self, ticket: ReplyAck, count: int) -> None:
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


class ManagementNode:
    """Handles the management requests for one queue on one connection."""

    def __init__(self, peer: ClientConnection, queue: Queue, path: str) -> None:
        self._peer = peer
        self._queue = queue
        self._spread = PartitionAssigner()
        self._path = path
        self._sessions = SessionOperations(peer, queue)

    def handle(self, request: Request, answer: Answer) -> None:
        try:
            claim, operation = self._operation(request.operation)
            self._peer.authorization.demand(self._path, claim)
            if self._queue.is_deleted:
                raise AmqpError(Condition.NOT_FOUND, "The queue was deleted.")
            if request.is_too_long:
                raise bad_request(
                    f"it must have at most {ITEMS_PER_REQUEST_MAX} messages, lock tokens or "
                    "sequence numbers. Send several requests"
                )
            if not isinstance(request.body, dict):
                raise bad_request("the body must be a map")
            if request.size > REQUEST_BYTES_MAX and request.operation not in _WITH_CONTENT:
                raise bad_request(f"it must have at most {REQUEST_BYTES_MAX} bytes")
            self._count(request.operation)
            body = {str(key): value for key, value in request.body.items()}
            peer, work = self._peer, partial(_run_operation, operation, body)
            if not peer.namespace.faults.has_no_faults and inject_request(
                peer, self._queue.description.path, request.operation, work, answer
            ):
                return
            operation(body, answer)
        except AmqpError as error:
            answer(refused(error))

    def _operation(self, name: str) -> tuple[Claim, _Handler]:
        """The claim and the handler of an operation."""
        operation: _Handler
        if name in _OPERATIONS:
            claim, method = _OPERATIONS[name]
            operation = partial(method, self)
        elif name in SESSION_OPERATIONS:
            claim, operation = Claim.LISTEN, partial(SESSION_OPERATIONS[name], self._sessions)
        else:
            raise AmqpError(
                Condition.NOT_IMPLEMENTED,
                f"The management operation {name[:80]!a} is not supported. Check its name.",
            )
        return claim, partial(self._in_turn, operation) if name in _LOOKED_UP else operation

    def _in_turn(
        self,
        operation: _Handler,
        body: dict[str, Any],
        answer: Answer,
    ) -> None:
        """Read when this connection has its turn: there is one reader for all of them."""
        place = self._peer.reader_place

        def answered(reply: Reply) -> None:
            try:
                place.end()
            finally:
                answer(reply)

        if not place.begin(lambda: _run_operation(operation, body, answered)):
            self._peer.input.stop(ASKING)

    def _read(
        self, job: Callable[[Store], Any], done: Callable[[Any], None], answer: Answer
    ) -> None:
        """Read from the disk, and reply also if the queue is deleted before."""
        gone = AmqpError(Condition.NOT_FOUND, "The queue was deleted.")
        self._peer.namespace.read(self._queue, job, done, lambda: answer(refused(gone)))

    def _count(self, name: str) -> None:
        """Requests that move messages are counted where they do (rule C1)."""
        if name not in _COUNTED_ELSEWHERE:
            self._tally(Operation.MANAGEMENT).add_request()

    def _tally(self, operation: Operation) -> OperationCounter:
        return self._peer.namespace.meter.counter(self._path, operation)

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
        if queue.sessions is not None and not all(
            self._sessions.is_holder(run.session, body) for run, _index in held
        ):
            raise session_lock_lost()
        self._tally(Operation.SETTLE).add_incoming(1, len(held), 0, 0)
        masks: dict[LockRun, int] = {}
        for run, index in held:
            masks[run] = masks.get(run, 0) | 1 << index
        ticket = _SharedCommit(ReplyAck(answer), len(masks))
        self._go_on(self._settle(masks, outcome, ticket), answer, self._peer.turn_ends_s)

    def _settle(
        self, masks: dict[LockRun, int], outcome: SettlementOutcome, ticket: _SharedCommit
    ) -> Iterator[None]:
        """Settle locked messages, a few runs in each step.

        Between two steps a lock may expire or the queue may be deleted: then the reply is an error.
        """
        namespace, queue = self._peer.namespace, self._queue
        runs = list(masks.items())
        for at in range(0, len(runs), RUNS_PER_STEP):
            now = namespace.now()
            for run, mask in runs[at : at + RUNS_PER_STEP]:
                if queue.is_deleted:
                    ticket.failed(AmqpError(Condition.NOT_FOUND, "The queue was deleted."))
                elif run.unsettled & mask != mask:
                    ticket.failed(_lock_lost() if run.session is None else session_lock_lost())
                elif not queue.settle(run, mask, outcome, now, ticket):
                    ticket.stored(range(0))  # Nothing is left to be written.
            namespace.touch(queue)
            yield

    # -- peek and deferred ----------------------------------------------------------------

    def _peek(self, body: dict[str, Any], answer: Answer) -> None:
        first = max(1, _whole(body, "from-sequence-number"))
        count = min(_whole(body, "message-count"), PEEK_COUNT_MAX)
        if count < 1:
            raise bad_request("message-count must be at least 1")
        session = None if body.get("session-id") is None else session_named(body)
        self._peek_from(first, count, session, answer)

    def _peek_from(self, first: int, count: int, session: str | None, answer: Answer) -> None:
        queue, namespace = self._queue, self._peer.namespace

        def found(rows: Found) -> None:
            self._build(peeked(queue, rows, first, count, namespace.now()), partial(built, rows))

        def built(rows: Found, messages: list[dict[str, Any]]) -> None:
            if not messages and rows.through_seq < SEQ_MAX:
                # All messages that were read were removed since; there may be more behind them.
                self._peek_from(rows.through_seq + 1, count, session, answer)
                return
            self._gave_out(Operation.PEEK, messages)
            answer(ok({"messages": messages}) if messages else empty())

        read = partial(read_peek, queue, first, count, session, namespace.now().wall_ms)
        self._read(read, found, answer)

    def _receive(self, body: dict[str, Any], answer: Answer) -> None:
        seqs = [_seq(value) for value in _items(body, "sequence-numbers")]
        if len(set(seqs)) != len(seqs):
            raise bad_request("each sequence number must occur only once")
        deletes = body.get("receiver-settle-mode") == 0
        queue = self._queue
        lock = None if queue.sessions is None else self._sessions.held(body)
        self._read(
            partial(read_deferred, queue, seqs),
            partial(self._received, seqs, deletes, lock, answer),
            answer,
        )

    def _received(
        self,
        seqs: list[int],
        deletes: bool,
        lock: SessionLock | None,
        answer: Answer,
        found: list[Chunk | None] | None,
    ) -> None:
        if found is None:
            answer(refused(_too_much()))
            return
        if lock is not None and lock.is_over:
            answer(refused(session_lock_lost()))
            return
        queue, now = self._queue, self._peer.namespace.now()
        session = None if lock is None else lock.session
        wanted: list[tuple[Chunk, int, bytes]] = []
        for seq, built in zip(seqs, found, strict=True):
            if built is not None:
                blob = built.blob or b""
                chunk = queue.chunk_cache.adopt_built(built)
                wanted.append((chunk, seq - chunk.first_seq, blob))
        is_there = len(wanted) == len(seqs) and all(
            chunk.session == session and queue.is_deferred(chunk, index, now)
            for chunk, index, _blob in wanted
        )
        if is_there:
            for chunk, index, _blob in wanted:
                queue.reserve_deferred(chunk, index)
            self._build(self._take(wanted, deletes, lock), partial(self._hand_over, answer))
        else:
            answer(refused(_not_found(seqs)))
            for chunk, _index, _blob in wanted:
                queue.chunk_cache.put_back(chunk)
        self._peer.namespace.touch(queue)

    def _take(
        self, wanted: list[tuple[Chunk, int, bytes]], deletes: bool, lock: SessionLock | None
    ) -> Steps[list[dict[str, Any]] | None]:
        """Receive reserved deferred messages, a few in each step; None if the lock ends."""
        queue, namespace = self._queue, self._peer.namespace
        messages: list[dict[str, Any]] = []
        for at in range(0, len(wanted), TAKEN_PER_STEP):
            if at:
                yield
            # Messages that previous steps have deleted are only in this reply: it needs no lock.
            is_over = queue.is_deleted or (lock is not None and lock.is_over and not deletes)
            now = namespace.now()
            for chunk, index, blob in wanted[at : at + TAKEN_PER_STEP]:
                # Delivering one message of a chunk may drop the chunk's bytes.
                chunk.blob = blob if chunk.blob is None else chunk.blob
                taker = Consumer(
                    _unused, unsettled_max=1, deletes_on_receipt=deletes, credit=1, session=lock
                )
                grant = queue.take_deferred(chunk, index, None if is_over else taker, now)
                if grant is not None:
                    messages.append(deferred_message(grant))
                queue.chunk_cache.put_back(chunk)
            namespace.touch(queue)
        return messages if len(messages) == len(wanted) else None

    def _hand_over(self, answer: Answer, messages: list[dict[str, Any]] | None) -> None:
        if messages is None:
            answer(refused(session_lock_lost()))
            return
        self._gave_out(Operation.RECEIVE, messages)
        answer(ok({"messages": messages}))

    def _build(self, steps: Steps[_Reply], done: Callable[[_Reply], None]) -> None:
        """Build a reply: a part of it now, and the rest after the turns of others."""
        try:
            next(steps)
        except StopIteration as end:
            done(end.value)
        else:
            self._peer.namespace.call_later(0, partial(self._build, steps, done))

    def _gave_out(self, operation: Operation, messages: list[dict[str, Any]]) -> None:
        sizes = [len(message["message"]) for message in messages]
        # A request that finds nothing is an operation too.
        self._tally(operation).add_outgoing(len(sizes), max(1, units_of(sizes)), sum(sizes))

    # -- schedules ------------------------------------------------------------------------

    def _schedule(self, body: dict[str, Any], answer: Answer) -> None:
        queue = self._queue
        if queue.is_dead_letter_queue or not queue.description.takes_messages:
            raise bad_request("messages can only be sent to a queue or a topic")
        if not queue.description.status.can_send:
            raise AmqpError(
                Condition.ENTITY_DISABLED,
                f"The {queue.description.kind} {queue.description.display_path!r} does not accept "
                f"messages: its status is {queue.description.status}.",
            )
        self._go_on(self._ingest(_items(body, "messages"), answer), answer, self._peer.turn_ends_s)

    def _go_on(self, steps: Iterator[None], answer: Answer, stop_s: float) -> bool:
        """Run steps until they are done (True) or the monotonic clock is at ``stop_s`` (False)."""
        try:
            for _step in steps:
                if time.monotonic() > stop_s:
                    self._peer.unfinished = partial(self._go_on, steps, answer)
                    return False
        except AmqpError as error:
            answer(refused(error))
        return True

    def _ingest(self, entries: list[Any], answer: Answer) -> Iterator[None]:
        """Check what is to be scheduled, one message or less in each step, then store all of it."""
        namespace, queue, now = self._peer.namespace, self._queue, self._peer.namespace.now()
        messages: list[IncomingMessage] = []
        size = 0
        plain = plain_messages()
        for entry in entries:
            payload = entry.get("message") if isinstance(entry, dict) else None
            if not isinstance(payload, bytes):
                raise bad_request("each entry of messages must be a map with a binary message")
            description = queue.description
            limits = self._peer.limits
            ingestion = Ingestion(payload, FORMAT_MESSAGE, description, limits, now, plain)
            # This time has always passed: a large body stops after each step of its check.
            while not ingestion.go_on(-math.inf):
                yield
            taken = ingestion.taken
            if not taken.messages:
                raise bad_request("a ping cannot be scheduled")
            messages += taken.messages
            size += taken.byte_count
            yield
        if queue.is_deleted:
            raise AmqpError(Condition.NOT_FOUND, "The queue was deleted.")
        for message in messages:
            # A time that has passed means now; it still gets the number the caller waits for.
            message.due_ms = now.wall_ms if message.due_ms is None else message.due_ms
        shares = None
        if queue.description.enable_partitioning:
            shares = self._spread.assign(messages, queue.description)
        holder = self._peer.pending
        namespace.throttle.check(queue.queue_id, len(messages), now.monotonic_s, shares, holder)
        if not queue.has_room_for(size):
            raise AmqpError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"The {queue.description.kind} {queue.description.display_path!r} is full.",
            )
        units = units_of([len(message.record) for message in messages])
        self._tally(Operation.SEND).add_incoming(1, len(messages), units, size)
        load = size + MESSAGE_OVERHEAD_BYTES * len(messages)
        self._peer.began_storing(load)
        stored = partial(self._stored, load, answer)
        queue.enqueue(messages, ReplyAck(stored, partial(_sequence_numbers, messages)))
        namespace.touch(queue)

    def _stored(self, load: int, answer: Answer, reply: Reply) -> None:
        self._peer.ended_storing(load)
        answer(reply)

    def _cancel(self, body: dict[str, Any], answer: Answer) -> None:
        seqs = [_seq(value) for value in _items(body, "sequence-numbers")]
        queue, namespace = self._queue, self._peer.namespace

        def found(sizes: list[ScheduledSize]) -> None:
            known = [each for each in sizes if queue.is_still_scheduled(each.seq)]
            if len(known) != len(set(seqs)):
                answer(refused(_not_found(seqs)))
                return
            queue.cancel_scheduled(known, ReplyAck(answer))
            namespace.touch(queue)

        self._read(partial(read_scheduled, queue, seqs), found, answer)


# Not in each node: bound methods in it would be cycles that wait for the garbage collector.
_OPERATIONS: Final[
    dict[str, tuple[Claim, Callable[[ManagementNode, dict[str, Any], Answer], None]]]
] = {
    "com.microsoft:renew-lock": (Claim.LISTEN, ManagementNode._renew),
    "com.microsoft:update-disposition": (Claim.LISTEN, ManagementNode._update_disposition),
    "com.microsoft:peek-message": (Claim.LISTEN, ManagementNode._peek),
    "com.microsoft:receive-by-sequence-number": (Claim.LISTEN, ManagementNode._receive),
    "com.microsoft:schedule-message": (Claim.SEND, ManagementNode._schedule),
    "com.microsoft:cancel-scheduled-message": (Claim.SEND, ManagementNode._cancel),
}


def _run_operation(
    operation: Callable[[dict[str, Any], Answer], None], body: dict[str, Any], answer: Answer
) -> None:
    """Run the operation, and reply also if it is refused."""
    try:
        operation(body, answer)
    except AmqpError as error:
        answer(refused(error))


def _unused(_grant: DeliveryBatch) -> None:
    """A deferred message is delivered in the reply, not on a link."""


def _sequence_numbers(messages: list[IncomingMessage], seqs: range) -> dict[str, Any]:
    """One number for each message; a duplicate was dropped and has none, which is 0."""
    numbers = iter(seqs)
    assigned = [Long(0 if m.facts is DUPLICATE else next(numbers)) for m in messages]
    return {"sequence-numbers": Array.of(_LONG_ARRAY, assigned)}


def _items(body: dict[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    items = list(value.items) if isinstance(value, Array) else value
    if not isinstance(items, list) or not items:
        raise bad_request(f"{key} must be a list with at least one entry")
    if len(items) > ITEMS_PER_REQUEST_MAX:
        raise bad_request(
            f"{key} must have at most {ITEMS_PER_REQUEST_MAX} entries, got {len(items)}. "
            "Send several requests"
        )
    return items


def _tokens(body: dict[str, Any]) -> list[bytes]:
    tokens = _items(body, "lock-tokens")
    if not all(isinstance(token, UUID) for token in tokens):
        raise bad_request("lock-tokens must contain only UUIDs")
    # As bytes: the hashes of UUIDs can be chosen so that all collide.
    as_bytes = [token.bytes_le for token in tokens]
    if len(set(as_bytes)) != len(as_bytes):
        # The second one would find its lock lost, after the first had settled the message.
        raise bad_request("each lock token must occur only once")
    return as_bytes


def _whole(body: dict[str, Any], key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request(f"{key} must be a whole number")
    return int(value)


def _seq(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request("a sequence number must be a whole number")
    return int(value)


def _outcome(body: dict[str, Any], queue: Queue) -> SettlementOutcome:
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
        "The lock is lost: it expired, or the message was settled. Receive the message again.",
    )


def _too_much() -> AmqpError:
    return AmqpError(
        Condition.LINK_MESSAGE_SIZE_EXCEEDED,
        "These messages are too large for one reply. Request fewer messages.",
    )


def _not_found(seqs: list[int]) -> AmqpError:
    shown = ", ".join(str(seq) for seq in seqs[:5])
    return AmqpError(
        Condition.MESSAGE_NOT_FOUND,
        f"Message not found for sequence number {shown}. Peek to list the messages.",
    )
