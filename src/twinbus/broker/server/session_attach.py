"""Attach of a receiver to a session: a named one, or the next one that has messages.

    attach --> PendingSessionLink --granted--> OutgoingLink --its lock expires--> detached
                    |
                    +--held by another, or none in time--> refused

Rule 1: the answer to the attach is the grant. It contains the session and the end of its lock;
        while a client waits for the next session its attach stays unanswered.
Rule 2: an unknown filter is refused, never ignored: its client would get messages that it did not
        request.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from twinbus.amqp.codec.types import Long, Symbol
from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.limits import UINT_MAX
from twinbus.amqp.link import SenderLink
from twinbus.broker.access.rules import Claim
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.sessions import SessionLock, Sessions, Waiter
from twinbus.broker.server.ingest import ID_CHARACTERS_MAX
from twinbus.broker.server.outgoing_link import OutgoingLink
from twinbus.broker.server.session_operations import session_lock_lost

if TYPE_CHECKING:
    from twinbus.broker.server.connection import ClientConnection

FILTER = "com.microsoft:session-filter"
TIMEOUT = "com.microsoft:timeout"
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")

# How long a client without a timeout waits for the next session, as in Azure.
WAIT_S_DEFAULT = 65.0
WAIT_MS_MAX = UINT_MAX

# .NET counts in tenths of microseconds, from the year 1.
_TICKS_AT_1970 = 621_355_968_000_000_000
_TICKS_PER_MS = 10_000


class SessionRequest(NamedTuple):
    """The session that a client requests."""

    session: str | None
    """None is the next one that has messages."""
    wait_s: float


def session_wanted(link: SenderLink, queue: Queue) -> SessionRequest | None:
    """The session of an attach; None for a queue without sessions."""
    filters = {str(name): value for name, value in _filters(link).items()}
    if filters.keys() - {FILTER}:
        raise AmqpError(
            Condition.NOT_IMPLEMENTED,
            "Filters on a link are not supported, except the session filter. Remove them.",
        )
    path = queue.description.display_path
    if queue.sessions is None:
        if filters:
            what = "A dead-letter queue" if queue.is_dead_letter_queue else f"The queue {path!r}"
            raise AmqpError(
                Condition.NOT_ALLOWED, f"{what} has no sessions. Receive without a session id."
            )
        return None
    if not filters:
        raise AmqpError(
            Condition.NOT_ALLOWED,
            f"The queue {path!r} requires sessions. Receive from one, or from the next available.",
        )
    return SessionRequest(_checked_name(filters[FILTER]), _wait_s(link))


def _filters(link: SenderLink) -> dict[Any, Any]:
    source = link.peer.source
    return (source.filter if source is not None else None) or {}


def _checked_name(value: object) -> str | None:
    if value is None or (type(value) is str and len(value) <= ID_CHARACTERS_MAX):
        return value
    if type(value) is str:
        raise AmqpError(
            Condition.ARGUMENT_OUT_OF_RANGE,
            f"The session id has {len(value)} characters. Use at most {ID_CHARACTERS_MAX}.",
        )
    raise AmqpError(
        Condition.ARGUMENT_ERROR,
        "The session filter must be a string, or null for the next session.",
    )


def _wait_s(link: SenderLink) -> float:
    properties = {str(key): value for key, value in (link.peer.properties or {}).items()}
    value = properties.get(TIMEOUT)
    if value is None:
        return WAIT_S_DEFAULT
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= WAIT_MS_MAX:
        raise AmqpError(
            Condition.ARGUMENT_ERROR, f"The property {TIMEOUT} must be a number of milliseconds."
        )
    return value / 1000


class PendingSessionLink:
    """The handler of a link until its session is locked."""

    claim = Claim.LISTEN

    def __init__(
        self,
        peer: ClientConnection,
        link: SenderLink,
        queue: Queue,
        path: str,
        wanted: SessionRequest,
        *,
        deletes_on_receipt: bool,
    ) -> None:
        self._peer = peer
        self._link = link
        self.queue = queue
        self.path = path
        self._wanted = wanted
        self._deletes_on_receipt = deletes_on_receipt
        self._waiter: Waiter | None = None

    def keep_details(self) -> None:
        """Keep only the parts of the attach that the answer repeats."""
        self._link.forget_details()
        source = self._link.peer.source
        assert source is not None
        source.filter = {Symbol(FILTER): self._wanted.session}

    @property
    def _sessions(self) -> Sessions:
        assert self.queue.sessions is not None
        return self.queue.sessions

    def opened(self) -> None:
        now = self._peer.namespace.now()
        session, wait_s = self._wanted
        if session is None:
            self._waiter = Waiter(
                self._peer, now.monotonic_s + wait_s, self._granted, self._timed_out, self._lost
            )
            self._sessions.wait(self._waiter)
        else:
            lock = self._sessions.accept(session, self._peer, self._lost, now)
            if lock is None:
                self._refuse(_held_by_another(session))
            else:
                self._granted(lock)
        self._peer.namespace.touch(self.queue)

    def _granted(self, lock: SessionLock) -> None:
        self._waiter = None
        link = self._link
        if link.is_detached:
            self._sessions.release(lock, is_failure=False)
            return
        source = link.peer.source
        assert source is not None
        named = dict.fromkeys(source.filter or {}, lock.session)
        link.accept(
            source=replace(source, filter=named),
            target=link.peer.target,
            properties={LOCKED_UNTIL: Long(_ticks(lock.locked_until_ms))},
        )
        if self._deletes_on_receipt:
            # It has no unsettled messages for which others wait. Clients wait for a last message
            # for one lock duration after the previous one: they must not be detached before.
            lock.deadline_s += self.queue.description.lock_duration_ms / 1000
        end = OutgoingLink(
            self._peer,
            link,
            self.queue,
            self.path,
            deletes_on_receipt=self._deletes_on_receipt,
            session=lock,
        )
        self._peer.keep(link, end)
        self._peer.wants_flush()

    def _timed_out(self) -> None:
        self._waiter = None
        self._refuse(
            AmqpError(
                Condition.TIMEOUT,
                f"No session of {self.queue.description.display_path!r} had messages in time. "
                "Try again.",
            )
        )

    def _lost(self) -> None:
        """The lock of the session expired while the link was open."""
        if not self._link.is_detached:
            self._refuse(session_lock_lost())

    def _refuse(self, error: AmqpError) -> None:
        self._peer.detach(self._link, error)
        self._peer.wants_flush()

    def flush(self) -> None:
        """Nothing is collected here."""

    def detached(self) -> None:
        """The client detached before it got a session."""
        if self._waiter is not None:
            self._sessions.give_up(self._waiter)


def _ticks(wall_ms: int) -> int:
    return _TICKS_AT_1970 + wall_ms * _TICKS_PER_MS


def _held_by_another(session: str) -> AmqpError:
    return AmqpError(
        Condition.SESSION_CANNOT_BE_LOCKED,
        f"The session {session!a:.140} is held by another receiver. Wait until it is released.",
    )
