"""Dispositions: the settlements of a receiver, applied and answered.

The Azure SDK settles one delivery at a time and waits for the answer; twinbus' own AMQP client
settles hundreds with one frame. Both are a range of delivery ids here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from twinbus.amqp.delivery_states import (
    STATE_ABANDONED,
    STATE_ACCEPTED,
    STATE_DEFERRED,
    STATE_REJECTED,
    STATE_RELEASED,
    Accepted,
    Error,
    Modified,
    Rejected,
    Released,
    encode_state,
)
from twinbus.amqp.errors import Condition
from twinbus.amqp.events import DispositionReceived
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.limits import UINT_MAX
from twinbus.amqp.session import Session
from twinbus.amqp.transfers import encode_disposition
from twinbus.broker.engine.chunk import span_mask, spans_of
from twinbus.broker.engine.outcomes import (
    ABANDON,
    COMPLETE,
    DEFER,
    RELEASE,
    DeadLetter,
    SettlementOutcome,
)
from twinbus.broker.faults.injection import inject_settlement
from twinbus.broker.server.incoming_link import as_amqp_error
from twinbus.broker.server.outgoing_link import DeliveryRun, UnsettledDeliveries

if TYPE_CHECKING:
    from twinbus.broker.namespace.namespace import Namespace


# Runs of deliveries of 10 microseconds each, after which the clock is read.
RUNS_BETWEEN_CLOCK_READS = 64

_LOCK_LOST = encode_state(
    Rejected(
        Error(
            Condition.MESSAGE_LOCK_LOST,
            "The lock is lost: it expired, or the message was settled. Receive it again.",
        )
    )
)
_BARRED = encode_state(
    Rejected(
        Error(
            Condition.UNAUTHORIZED_ACCESS,
            "The Listen claim is missing or has expired. Send a new token to $cbs.",
        )
    )
)
_NO_DEAD_LETTERS = encode_state(
    Rejected(Error(Condition.NOT_ALLOWED, "A dead-letter queue has no dead-letter queue."))
)


class SettlementAck:
    """Answers a settlement once it is on disk."""

    __slots__ = ("_end", "_first", "_last", "_session", "_state")

    def __init__(self, session: Session, first: int, last: int, state: bytes, end: Any) -> None:
        self._session = session
        self._first = first
        self._last = last
        self._state = state
        self._end = end

    def stored(self, seqs: range) -> None:
        answer(self._session, self._first, self._last, self._state)
        self._end.answered()

    def failed(self, error: Exception) -> None:
        amqp_error = as_amqp_error(error)
        state = encode_state(Rejected(Error(amqp_error.condition, amqp_error.description)))
        answer(self._session, self._first, self._last, state)
        self._end.answered()


def answer(session: Session, first: int, last: int, state: bytes) -> None:
    """Send the result of a settlement to the receiver."""
    if not session.is_ended:
        body = encode_disposition(False, first & UINT_MAX, last & UINT_MAX, True, state)
        session.connection.write(encode_frame(session.channel, body))


def settle(
    namespace: Namespace, ledger: UnsettledDeliveries, event: DispositionReceived, stop_s: float
) -> Callable[[float], bool] | None:
    """Apply a receiver's disposition, unless a fault handles it.

    If it is not finished when the monotonic clock reaches ``stop_s``, returns a function that
    continues until another such time and returns whether all is done.
    """
    if not namespace.faults.has_no_faults and inject_settlement(namespace, ledger, event):
        return None
    return _apply_until(stop_s, namespace, ledger, event)


def apply(namespace: Namespace, ledger: UnsettledDeliveries, event: DispositionReceived) -> None:
    """Apply a disposition that a fault has delayed, if its session has not ended."""
    if event.session.is_ended:
        return
    _apply_until(math.inf, namespace, ledger, event)


def _apply_until(
    stop_s: float, namespace: Namespace, ledger: UnsettledDeliveries, event: DispositionReceived
) -> Callable[[float], bool] | None:
    decided = _decision(event.state)
    if decided is None:
        return None
    settlement = _Settlement(namespace, ledger, event, *decided)
    return None if settlement.go_on(stop_s) else settlement.go_on


class _Settlement:
    """One disposition: a range of deliveries, from ``_at`` on still to be settled.

    A client may settle all its deliveries at once, which can be thousands of runs. Between two
    turns its deliveries may change; so they are searched again, and later ones are not included.
    """

    __slots__ = ("_at", "_event", "_high", "_ledger", "_namespace", "_outcome", "_state")

    def __init__(
        self,
        namespace: Namespace,
        ledger: UnsettledDeliveries,
        event: DispositionReceived,
        outcome: SettlementOutcome,
        state: bytes,
    ) -> None:
        self._namespace = namespace
        self._ledger = ledger
        self._event = event
        self._outcome = outcome
        self._state = state
        self._at, self._high = ledger.span(event.first, event.last)

    def go_on(self, stop_s: float) -> bool:
        """Settle until all is done (True) or the monotonic clock reaches ``stop_s`` (False)."""
        while True:
            parts = list(
                islice(self._ledger.find_in(self._at, self._high), RUNS_BETWEEN_CLOCK_READS)
            )
            for part in parts:
                self._settle(*part)
            if len(parts) < RUNS_BETWEEN_CLOCK_READS:
                return True
            if time.monotonic() > stop_s:
                return False

    def _settle(self, first: int, count: int, entry: DeliveryRun | None) -> None:
        event = self._event
        self._at = first + count
        if entry is None:
            if not event.settled:
                answer(event.session, first, first + count - 1, _LOCK_LOST)
            return
        _settle_run(self._namespace, event, entry, first, count, self._outcome, self._state)


def _settle_run(
    namespace: Namespace,
    event: DispositionReceived,
    entry: DeliveryRun,
    first: int,
    count: int,
    outcome: SettlementOutcome,
    state: bytes,
) -> None:
    run, queue = entry.run, entry.end.queue
    index = run.start + first - entry.first
    wanted = span_mask(index, count)
    if not entry.end.may_settle:
        if not event.settled:
            answer(event.session, first, first + count - 1, _BARRED)
        return
    if entry.end.is_detached:
        # The delivery id is no longer valid, but the lock token is (rule M2). The Azure SDK
        # settles again through management, which must find the lock.
        return
    if isinstance(outcome, DeadLetter) and queue.is_dead_letter_queue:
        answer(event.session, first, first + count - 1, _NO_DEAD_LETTERS)
        return
    entry.end.use_count += 1
    if outcome != RELEASE:
        entry.end.settled.add_incoming(1, count, 0, 0)
    ticket = None
    if not event.settled and outcome != RELEASE:
        # The usual case: one answer for the whole range once it is on disk.
        ticket = SettlementAck(event.session, first, first + count - 1, state, entry.end)
    now = namespace.now()
    held = wanted & run.unsettled & ~run.overdue(now.monotonic_s)
    if held == wanted:
        queue.settle(run, held, outcome, now, ticket)
        if ticket is None and not event.settled:
            answer(event.session, first, first + count - 1, state)
    else:
        _settle_partly(event, entry, held, wanted, outcome, state, now)
    namespace.touch(queue)


def _settle_partly(
    event: DispositionReceived,
    entry: DeliveryRun,
    held: int,
    wanted: int,
    outcome: SettlementOutcome,
    state: bytes,
    now: Any,
) -> None:
    """Some of the locks are lost: settle the others, and answer each range accordingly."""
    run, queue = entry.run, entry.end.queue
    offset = entry.first - run.start
    for start, count in spans_of(held):
        ids = (offset + start, offset + start + count - 1)
        ticket = None
        if not event.settled and outcome != RELEASE:
            ticket = SettlementAck(event.session, *ids, state, entry.end)
        queue.settle(run, span_mask(start, count), outcome, now, ticket)
        if ticket is None and not event.settled:
            answer(event.session, *ids, state)
    if not event.settled:
        for start, count in spans_of(wanted & ~held):
            answer(event.session, offset + start, offset + start + count - 1, _LOCK_LOST)


def _decision(state: Any) -> tuple[SettlementOutcome, bytes] | None:
    """The outcome of a delivery state, and the state that answers it."""
    match state:
        case Accepted():
            return COMPLETE, STATE_ACCEPTED
        case Released():
            return RELEASE, STATE_RELEASED
        case Modified(undeliverable_here=True):
            return DEFER, STATE_DEFERRED
        case Modified(delivery_failed=True):
            return ABANDON, STATE_ABANDONED
        case Modified():
            return RELEASE, STATE_ABANDONED
        case Rejected():
            return _dead_letter(state.error), STATE_REJECTED
    return None


def _dead_letter(error: Error | None) -> DeadLetter:
    if error is None:
        return DeadLetter()
    info = {str(key): value for key, value in (error.info or {}).items()}
    reason = info.get("DeadLetterReason", "")
    description = info.get("DeadLetterErrorDescription", error.description or "")
    return DeadLetter(
        reason if isinstance(reason, str) else "",
        description if isinstance(description, str) else "",
    )
