"""Management of sessions: renewing the lock, the state, and the list of those with messages.

Rule 1: the lock and the state belong to the receiver of the session, on the connection on which it
        was locked; for every other connection the lock is lost.
Rule 2: a state is acknowledged once it is on disk; a read returns what was set before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.codec.types import Array, Int, Timestamp
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.sessions import SessionLock, Sessions
from twinbus.broker.server.request_reply import (
    Answer,
    Reply,
    ReplyAck,
    bad_request,
    empty,
    ok,
    refused,
)
from twinbus.common.steps import Steps

if TYPE_CHECKING:
    from twinbus.broker.server.connection import ClientConnection
    from twinbus.broker.storage.interface import Store

# As in Azure: the size limit of a message.
STATE_BYTES_MAX = 256 * 1024
# Names in one reply; the Azure SDK requests as many.
SESSIONS_PER_PAGE_MAX = 100
# Names that are read before other queues have their turn.
SESSIONS_PER_STEP = 512
# The last millisecond of the year 9999 means "all that have messages" (year 10000 in the SDK).
ALL_FROM_MS = 253_402_300_799_999

_STRING_ARRAY = 0xB1


def session_lock_lost() -> AmqpError:
    return AmqpError(
        Condition.SESSION_LOCK_LOST,
        "The lock on the session is lost: it expired, or this connection never had it. Accept the "
        "session again.",
    )


def _no_room(queue: Queue) -> AmqpError:
    path, used = queue.description.display_path, queue.used_bytes
    return AmqpError(
        Condition.RESOURCE_LIMIT_EXCEEDED,
        f"The entity {path!r} is full: it holds {used} bytes, session states included. "
        "Receive messages, clear session states, or raise its quota.",
    )


def session_named(body: dict[str, Any]) -> str:
    """The session of a request."""
    session = body.get("session-id")
    if type(session) is not str:
        raise bad_request("session-id must be a string")
    return session


class SessionOperations:
    """Handles the requests of one connection about the sessions of a queue."""

    def __init__(self, peer: ClientConnection, queue: Queue) -> None:
        self._peer = peer
        self._queue = queue

    @property
    def _sessions(self) -> Sessions:
        if self._queue.sessions is None:
            raise AmqpError(
                Condition.NOT_ALLOWED,
                f"{self._queue.description.display_path!r} has no sessions. "
                "Use an entity that requires sessions.",
            )
        return self._queue.sessions

    def held(self, body: dict[str, Any]) -> SessionLock:
        """The session lock of the request's session; raises when this connection has none."""
        session = session_named(body)
        namespace = self._peer.namespace
        lock = self._sessions.held_by(session, self._peer, namespace.now())
        if lock is None:
            namespace.touch(self._queue)
            raise session_lock_lost()
        return lock

    def is_holder(self, lock: SessionLock | None, body: dict[str, Any]) -> bool:
        """Whether this connection may settle a message under this lock.

        The lock token is not enough: another client may have it, and the lock is the session's.
        """
        if lock is None or lock.is_over or lock.owner is not self._peer:
            return False
        return body.get("session-id") in (None, lock.session)

    def _renew(self, body: dict[str, Any], answer: Answer) -> None:
        lock = self.held(body)
        if not self._sessions.renew(lock, self._peer.namespace.now()):
            raise session_lock_lost()
        answer(ok({"expiration": Timestamp(lock.locked_until_ms)}))

    # -- state ----------------------------------------------------------------------------

    def _get_state(self, body: dict[str, Any], answer: Answer) -> None:
        session = self.held(body).session
        noted = self._sessions.noted_state(session)
        if noted is not None:
            answer(ok({"session-state": noted[0]}))
            return

        def read(store: Store) -> bytes | None:
            return store.load_session_state(self._queue.queue_id, session)

        def found(state: bytes | None) -> None:
            # It may have been set while this was read.
            newer = self._sessions.noted_state(session)
            answer(ok({"session-state": state if newer is None else newer[0]}))

        self._read(read, found, answer)

    def _set_state(self, body: dict[str, Any], answer: Answer) -> None:
        lock, state = self.held(body), body.get("session-state")
        if state is not None and not isinstance(state, bytes):
            raise bad_request("session-state must be binary, or null to delete it")
        if state is not None and len(state) > STATE_BYTES_MAX:
            raise AmqpError(
                Condition.LINK_MESSAGE_SIZE_EXCEEDED,
                f"The state of a session must have at most {STATE_BYTES_MAX} bytes, got "
                f"{len(state)}. Store less in it.",
            )
        namespace = self._peer.namespace
        now_s, holder = namespace.now().monotonic_s, self._peer.pending
        namespace.throttle.check(self._queue.queue_id, 1, now_s, holder=holder)
        size = len(state or b"")

        def answered(reply: Reply) -> None:
            self._peer.ended_storing(size)
            answer(reply)

        def read(store: Store) -> bytes | None:
            return store.load_session_state(self._queue.queue_id, lock.session)

        self._peer.began_storing(size)
        if self._sessions.noted_state(lock.session) is not None:
            self._note_state(lock, state, answered, None)
            return
        # The space that it needs depends on the stored state.
        note = partial(self._note_state, lock, state, answered)
        namespace.read(self._queue, read, note, lambda: answered(refused(session_lock_lost())))

    def _note_state(
        self, lock: SessionLock, state: bytes | None, answer: Answer, kept: bytes | None
    ) -> None:
        queue = self._queue
        if lock.is_over or queue.is_deleted:
            answer(refused(session_lock_lost()))
        elif self._sessions.note_state(lock.session, state, kept, ReplyAck(answer)):
            self._peer.namespace.touch(queue)
        else:
            answer(refused(_no_room(queue)))

    # -- list -----------------------------------------------------------------------------

    def _list(self, body: dict[str, Any], answer: Answer) -> None:
        sessions = self._sessions
        skip, top = _count(body, "skip"), min(_count(body, "top"), SESSIONS_PER_PAGE_MAX)
        since = body.get("last-updated-time")
        if not isinstance(since, int) or isinstance(since, bool):
            raise bad_request("last-updated-time must be a timestamp")
        since_ms = int(since)
        if since_ms >= ALL_FROM_MS:
            answer(_page(sessions.names(skip, top), skip))
            return

        read = partial(_read_updated, self._queue.queue_id, since_ms, skip, top)
        self._read(read, lambda names: answer(_page(names, skip)), answer)

    def _read(
        self, job: Callable[[Store], Any], done: Callable[[Any], None], answer: Answer
    ) -> None:
        """Read from the disk, and reply also if the queue is deleted before."""
        gone = AmqpError(Condition.NOT_FOUND, "The queue was deleted.")
        self._peer.namespace.read(self._queue, job, done, lambda: answer(refused(gone)))


SESSION_OPERATIONS: Final[
    dict[str, Callable[[SessionOperations, dict[str, Any], Answer], None]]
] = {
    "com.microsoft:renew-session-lock": SessionOperations._renew,
    "com.microsoft:get-session-state": SessionOperations._get_state,
    "com.microsoft:set-session-state": SessionOperations._set_state,
    "com.microsoft:get-message-sessions": SessionOperations._list,
}


def _read_updated(
    queue_id: int, since_ms: int, skip: int, top: int, store: Store
) -> Steps[list[str]]:
    """The names on one page; all names before them must be counted."""
    found: list[str] = []
    after: str | None = None
    while True:
        names, after = store.load_sessions_updated(queue_id, since_ms, after, SESSIONS_PER_STEP)
        passed = min(skip, len(names))
        skip -= passed
        found += names[passed:]
        if after is None or len(found) >= top:
            return found[:top]
        yield


def _page(names: list[str], skip: int) -> Reply:
    if not names:
        return empty()
    return ok({"skip": Int(skip), "sessions-ids": Array.of(_STRING_ARRAY, list(names))})


def _count(body: dict[str, Any], key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise bad_request(f"{key} must be a whole number, 0 or more")
    return int(value)
