"""One send through a pair, step by step."""

from __future__ import annotations

from random import Random

import pytest

from twinbus.core.deadline import Deadline
from twinbus.core.events import (
    BacklogOutOfReach,
    Cleared,
    Diverted,
    PossibleDuplicate,
    QueueWithdrawn,
    Suspected,
)
from twinbus.core.failover import Failover, FailoverPolicy, Health
from twinbus.core.retry import RetryPolicy
from twinbus.core.rotation import BacklogRotation, Seat
from twinbus.core.sending import (
    CredentialMemory,
    Done,
    Fail,
    Send,
    SendRules,
    ToBacklog,
    ToPrimary,
    Wait,
    first_attempt_s,
)
from twinbus.service_errors import (
    AuthenticationFailed,
    BacklogExhausted,
    CommunicationError,
    EntityNotFound,
    LinkDetached,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
)

FIRST, SECOND = "east/x-servicebus-transfer/0", "east/x-servicebus-transfer/1"


def refused() -> CommunicationError:
    return CommunicationError("connection refused", was_sent=False)


def lost() -> CommunicationError:
    return CommunicationError("connection lost", was_sent=True)


class Pair:
    """An entity, its backlog queues, and sends that begin at 100 s."""

    def __init__(
        self, *, interval_s: float = 0, retry_total: int = 0, queues: tuple[str, ...] = (FIRST,)
    ) -> None:
        self.failover = Failover("orders", FailoverPolicy(failover_interval_s=interval_s))
        self.rotation = BacklogRotation(queues)
        self.credential = CredentialMemory()
        self.rules = SendRules(
            rotation=self.rotation,
            credential=self.credential,
            retry=RetryPolicy(retry_total=retry_total),
        )

    def send(self, timeout_s: float = 60, seat: Seat | None = None) -> Send:
        deadline = Deadline.after(100, timeout_s)
        return Send(
            self.failover, self.rules, seat or Seat(), deadline, Random(1), message_ids=("m1",)
        )

    def divert(self) -> None:
        self.failover.force(100)


def step(send: Send, now_s: float = 100) -> object:
    return send.step(now_s)[0]


# -- a healthy entity ---------------------------------------------------------------------------


def test_a_send_to_a_healthy_entity_is_one_step() -> None:
    """P0: no copy, no extra round trip."""
    pair = Pair(interval_s=60)
    send = pair.send(timeout_s=60)
    assert step(send) == ToPrimary(60)
    assert send.answered(100.1) == []
    assert step(send, 100.1) == Done("orders")
    assert pair.credential.has_worked


@pytest.mark.parametrize(
    ("interval_s", "timeout_s"), [(60.0, 60.0), (0.0, 60.0), (10.0, 60.0), (0.0, 1.0)]
)
def test_the_first_attempt_without_a_send_takes_as_long_as_with_one(
    interval_s: float, timeout_s: float
) -> None:
    pair = Pair(interval_s=interval_s)
    decided = step(pair.send(timeout_s=timeout_s))
    assert isinstance(decided, ToPrimary)
    assert first_attempt_s(pair.failover, timeout_s) == pytest.approx(decided.timeout_s)


def test_a_send_decides_itself_where_the_entity_is_not_well() -> None:
    pair = Pair(interval_s=60)
    pair.failover.send_failed(100, "refused")
    assert first_attempt_s(pair.failover, 60) is None
    pair.divert()
    assert first_attempt_s(pair.failover, 60) is None


@pytest.mark.parametrize(
    "error", [EntityNotFound("no such queue"), QuotaExceeded("full"), MessageTooLarge("too large")]
)
def test_a_callers_error_is_raised_as_it_is_and_diverts_nothing(error: ServiceError) -> None:
    """P7: not of the failover class."""
    pair = Pair(interval_s=0, retry_total=3)
    send = pair.send()
    step(send)
    assert send.answered(101, error) == []
    assert step(send, 101) == Fail(error)
    assert pair.failover.health is Health.HEALTHY


# -- retries ------------------------------------------------------------------------------------


def test_retries_bridge_a_short_outage() -> None:
    """F6: the client has automatic retry."""
    pair = Pair(interval_s=60, retry_total=3)
    send = pair.send()
    step(send)
    assert send.answered(101, refused()) == []
    wait = step(send, 101)
    assert isinstance(wait, Wait) and 101 < wait.until_s < 104
    assert isinstance(step(send, wait.until_s), ToPrimary)
    assert send.answered(105) == []
    assert step(send, 105) == Done("orders")


def test_an_error_counts_only_when_the_retries_are_used_up() -> None:
    """F6, P7: then it surfaces and is not transient any more."""
    pair = Pair(interval_s=60, retry_total=2)
    send, now_s, events = pair.send(), 100.0, []
    for attempt in range(3):
        now = step(send, now_s)
        if isinstance(now, Wait):
            now_s = now.until_s
            now = step(send, now_s)
        assert isinstance(now, ToPrimary), attempt
        error = refused()
        events = send.answered(now_s, error)
    assert isinstance(events[0], Suspected)
    assert step(send, now_s) == Fail(error)
    assert not error.is_transient


def test_with_interval_zero_there_is_at_most_one_immediate_retry() -> None:
    """P6: then the entity is diverted."""
    pair = Pair(interval_s=0, retry_total=3)
    send = pair.send()
    step(send)
    send.answered(100.1, refused())
    assert isinstance(step(send, 100.1), ToPrimary)
    events = send.answered(100.2, refused())
    assert [type(event) for event in events] == [Suspected, Diverted]
    assert isinstance(step(send, 100.2), ToBacklog)


def test_no_retry_begins_in_the_backlogs_share() -> None:
    """P10: bounded by the deadline, less the reserve."""
    pair = Pair(interval_s=10, retry_total=3)
    send = pair.send(timeout_s=12)
    assert step(send) == ToPrimary(9)
    events = send.answered(108.9, refused())
    assert [type(event) for event in events] == [Suspected]
    assert isinstance(step(send, 108.9), Fail)


# -- throttling ---------------------------------------------------------------------------------


def test_a_throttled_send_waits_ten_seconds_and_sends_again() -> None:
    """F2: if the deadline allows."""
    pair = Pair(interval_s=0)
    send = pair.send()
    step(send)
    assert send.answered(101, ServerBusy("not now")) == []
    wait = step(send, 101)
    assert isinstance(wait, Wait) and wait.until_s >= 111
    assert isinstance(step(send, wait.until_s), ToPrimary)
    assert pair.failover.health is Health.HEALTHY


def test_a_throttled_send_without_the_time_raises_server_busy() -> None:
    """F2: otherwise ServerBusy is raised; throttling never diverts."""
    pair = Pair(interval_s=0)
    send, busy = pair.send(timeout_s=5), ServerBusy("not now")
    step(send)
    assert send.answered(101, busy) == []
    assert step(send, 101) == Fail(busy)
    assert pair.failover.health is Health.HEALTHY


def test_a_throttled_send_uses_the_backlogs_share_too() -> None:
    """F2: throttled is not down, so nothing will be diverted."""
    pair = Pair(interval_s=0)
    send = pair.send(timeout_s=16)
    assert step(send) == ToPrimary(12)
    send.answered(103, ServerBusy("not now"))
    wait = step(send, 103)
    assert isinstance(wait, Wait)
    again = step(send, wait.until_s)
    assert again == ToPrimary(116 - wait.until_s)


def test_a_throttled_send_of_an_entity_that_was_diverted_need_not_wait() -> None:
    """F2, P8: the backlog is not what asked for quiet."""
    pair = Pair()
    send = pair.send(timeout_s=5)
    step(send)
    pair.divert()
    send.answered(101, ServerBusy("not now"))
    assert isinstance(step(send, 101), ToBacklog)


# -- the way to the backlog ---------------------------------------------------------------------


def test_the_send_that_trips_the_failover_is_itself_rerouted() -> None:
    """P10: the original lost this one to the caller."""
    pair = Pair(interval_s=0)
    send = pair.send(timeout_s=60)
    assert step(send) == ToPrimary(45)
    events = send.answered(145, OperationTimeout("no answer"))
    assert [type(event) for event in events] == [Suspected, Diverted]
    assert step(send, 145) == ToBacklog(FIRST, 15)
    (told,) = send.answered(145.5)
    assert told == PossibleDuplicate("orders", 145.5, "orders", ("m1",))
    assert step(send, 145.5) == Done(FIRST)


def test_a_diverted_send_goes_straight_to_the_backlog() -> None:
    """P8: nothing but pings goes to that primary entity."""
    pair = Pair()
    pair.divert()
    send = pair.send()
    assert step(send) == ToBacklog(FIRST, 60)
    assert send.answered(100.1) == []
    assert step(send, 100.1) == Done(FIRST)


def test_a_send_that_waits_for_a_retry_follows_the_entity() -> None:
    """P8: diverted by somebody else, it does not touch the primary again."""
    pair = Pair(interval_s=60, retry_total=3)
    send = pair.send()
    step(send)
    send.answered(101, refused())
    assert isinstance(step(send, 101), Wait)
    pair.divert()
    assert isinstance(step(send, 101.5), ToBacklog)


def test_a_failing_queue_is_withdrawn_and_the_same_message_goes_to_another() -> None:
    """P9: within the same send."""
    pair = Pair(queues=(FIRST, SECOND))
    pair.divert()
    send = pair.send(seat=Seat(FIRST))
    assert step(send) == ToBacklog(FIRST, 30)
    (event,) = send.answered(101, refused())
    assert isinstance(event, QueueWithdrawn) and event.queue == FIRST
    assert step(send, 101) == ToBacklog(SECOND, 59)
    send.answered(102)
    assert step(send, 102) == Done(SECOND)


def test_a_throttled_queue_is_left_for_another_and_stays_in_the_rotation() -> None:
    """F2: try another queue, do not withdraw this one."""
    pair = Pair(queues=(FIRST, SECOND))
    pair.divert()
    send = pair.send(seat=Seat(FIRST))
    step(send)
    assert send.answered(101, ServerBusy("not now")) == []
    assert isinstance(step(send, 101), ToBacklog)
    assert pair.rotation.withdrawn == ()


def test_a_message_that_no_queue_takes_does_not_hop() -> None:
    """P13: and the queue is not blamed."""
    pair = Pair(queues=(FIRST, SECOND))
    pair.divert()
    send, error = pair.send(), MessageTooLarge("too large")
    step(send)
    assert send.answered(101, error) == []
    assert step(send, 101) == Fail(error)
    assert pair.rotation.withdrawn == ()


def test_with_every_queue_withdrawn_the_caller_gets_a_typed_error() -> None:
    """P9: never a silent drop, never an endless retry."""
    pair = Pair(queues=(FIRST,))
    pair.divert()
    send = pair.send(timeout_s=1.5)
    step(send)
    send.answered(100.1, refused())
    end, events = send.step(100.1)
    assert isinstance(end, Fail) and isinstance(end.error, BacklogExhausted)
    assert events == [BacklogOutOfReach("orders", 100.1, 1)]
    assert "was not sent" in str(end.error)


def test_a_send_with_time_left_waits_for_a_withdrawn_queue() -> None:
    """P9: a withdrawn queue is tried again after a pause."""
    pair = Pair(queues=(FIRST,))
    pair.divert()
    send = pair.send(timeout_s=60)
    step(send)
    send.answered(101, refused())
    assert step(send, 101) == Wait(103)
    assert isinstance(step(send, 103), ToBacklog)
    send.answered(104)
    assert step(send, 104) == Done(FIRST)


def test_a_hanging_queue_leaves_time_for_the_others() -> None:
    """P9: also when all of them were withdrawn and any may be the one that is back."""
    pair = Pair(queues=(FIRST, SECOND))
    for queue in (FIRST, SECOND):
        pair.rotation.failed(queue, 90, "refused", is_probe=False)
    pair.divert()
    send = pair.send(timeout_s=10)
    probe = step(send)
    assert isinstance(probe, ToBacklog) and probe.timeout_s == 5
    send.answered(105, OperationTimeout("no answer"))
    other = step(send, 105)
    assert isinstance(other, ToBacklog) and other.queue != probe.queue


def test_when_every_queue_asks_for_more_time_than_is_left_it_is_server_busy() -> None:
    """F2: not a timeout, of which nobody has waited for the end."""
    pair = Pair(queues=(FIRST,))
    pair.divert()
    pair.rotation.throttled(FIRST, 99, is_probe=False)
    end = step(pair.send(timeout_s=4))
    assert isinstance(end, Fail) and isinstance(end.error, ServerBusy)


def test_a_send_that_was_restored_splits_what_is_left_again() -> None:
    """P10: the primary may fail once more."""
    # Given a send that has waited for the backlog for 20 of its 60 s
    pair = Pair(queues=(FIRST,))
    pair.divert()
    send = pair.send(timeout_s=60)
    step(send)
    send.answered(101, refused())
    assert isinstance(step(send, 101), Wait)

    # When the entity is restored
    pair.failover.mark_healthy(120)

    # Then the primary gets three quarters of the other 40 s, and the backlog the rest
    assert step(send, 120) == ToPrimary(30)
    send.answered(150, OperationTimeout("no answer"))
    assert pair.failover.is_diverted
    assert isinstance(step(send, 150), ToBacklog)


def test_what_a_backlog_queue_answers_does_not_count_for_the_primary() -> None:
    """P6: only failures of the entity itself."""
    # Given a send that the primary failed, and a backlog queue too
    pair = Pair(interval_s=0, queues=(FIRST,))
    send = pair.send(timeout_s=8)
    step(send)
    send.answered(101, refused())
    step(send, 101)
    pair.failover.mark_healthy(103)

    # When the last of its time has passed at that queue, and the entity is home again
    send.answered(108, OperationTimeout("no answer"))
    end = step(send, 108)

    # Then it has failed, and the entity is not blamed for it
    assert isinstance(end, Fail)
    assert pair.failover.health is Health.HEALTHY


def test_a_cancelled_send_frees_the_queue_that_it_was_to_try() -> None:
    """P9: the next send asks."""
    pair = Pair(queues=(FIRST,))
    pair.rotation.failed(FIRST, 90, "refused", is_probe=False)
    pair.divert()
    send = pair.send()
    assert isinstance(step(send), ToBacklog)
    send.cancelled()
    assert isinstance(step(pair.send()), ToBacklog)


# -- time, doubt, credentials -------------------------------------------------------------------


def test_the_reserve_is_kept_only_where_a_send_could_be_diverted() -> None:
    """P0, P10: with the default interval a healthy entity's send has all of its time."""
    pair = Pair(interval_s=60)
    assert step(pair.send(timeout_s=60)) == ToPrimary(60)
    pair.failover.send_failed(50, "refused")
    assert step(pair.send(timeout_s=60)) == ToPrimary(45)
    pair.failover.hold(51)
    assert step(pair.send(timeout_s=60)) == ToPrimary(60)


def test_a_send_that_wakes_too_late_still_counts_its_failure() -> None:
    """F6, P10: a machine that slept finds the entity diverted by its own evidence."""
    pair = Pair(interval_s=5, retry_total=3)
    pair.failover.send_failed(97, "refused")
    send = pair.send(timeout_s=60)
    step(send)
    send.answered(101, refused())
    assert isinstance(step(send, 101), Wait)
    end, _events = send.step(200)
    assert isinstance(end, Fail)
    assert pair.failover.health is Health.DIVERTED


def test_a_retry_that_comes_too_late_is_the_backlogs_turn() -> None:
    """P10: the failure counts, diverts, and the send goes on."""
    pair = Pair(interval_s=0, retry_total=1)
    send = pair.send(timeout_s=60)
    step(send)
    assert send.answered(101, refused()) == []
    now, events = send.step(150)
    assert [type(event) for event in events] == [Suspected, Diverted]
    assert now == ToBacklog(FIRST, 10)


def test_a_success_cancels_the_suspicion() -> None:
    """P6: by any sender."""
    pair = Pair(interval_s=60)
    pair.failover.send_failed(99, "refused")
    send = pair.send()
    step(send)
    assert send.answered(101) == [Cleared("orders", 101, "a send succeeded")]


def test_an_error_says_that_an_earlier_attempt_is_in_doubt() -> None:
    """P10: "neither place" is said only when it is known."""
    pair = Pair(queues=(FIRST,))
    send = pair.send(timeout_s=4)
    step(send)
    send.answered(101, lost())
    assert isinstance(step(send, 101), ToBacklog)
    send.answered(103.5, refused())
    end = step(send, 103.5)
    assert isinstance(end, Fail) and isinstance(end.error, BacklogExhausted)
    assert end.error.is_ambiguous
    assert "was not sent" not in str(end.error)


def test_a_clear_last_answer_does_not_hide_an_unclear_one() -> None:
    pair = Pair(interval_s=60, retry_total=1)
    send, busy = pair.send(timeout_s=9), ServerBusy("not now")
    step(send)
    send.answered(100.5, LinkDetached("taken away"))
    wait = step(send, 100.5)
    assert isinstance(wait, Wait)
    step(send, wait.until_s)
    send.answered(wait.until_s, busy)
    assert step(send, wait.until_s) == Fail(busy)
    assert busy.is_ambiguous


def test_a_key_that_worked_before_makes_its_refusal_an_outage() -> None:
    """P7: a broken token service looks the same on the wire."""
    new = Pair(interval_s=0)
    send = new.send()
    step(send)
    assert send.answered(101, AuthenticationFailed("who?")) == []
    assert isinstance(step(send, 101), Fail)

    used = Pair(interval_s=0)
    used.credential.has_worked = True
    send = used.send()
    step(send)
    send.answered(101, AuthenticationFailed("who?"))
    assert isinstance(step(send, 101), ToBacklog)


def test_a_late_success_at_the_primary_is_a_success_and_restores_nothing() -> None:
    """P11: only a ping does."""
    pair = Pair()
    send = pair.send()
    step(send)
    pair.divert()
    assert send.answered(130) == []
    assert step(send, 130) == Done("orders")
    assert pair.failover.is_diverted


def test_a_queue_that_this_send_had_withdrawn_takes_no_share_from_the_others() -> None:
    """P9, P10: with two left that nobody has tried, neither gets all of the time."""
    queues = tuple(f"east/x-servicebus-transfer/{index}" for index in range(4))
    pair = Pair(queues=queues)
    pair.divert()
    send = pair.send(timeout_s=9)
    first = step(send)
    assert isinstance(first, ToBacklog) and first.timeout_s == 3
    send.answered(103, OperationTimeout("silent"))
    # And somebody else has found another one silent.
    other = next(queue for queue in queues if queue != first.queue)
    pair.rotation.failed(other, 103, "silent", is_probe=False)
    second = step(send, 103)
    assert isinstance(second, ToBacklog) and second.timeout_s == 3
    send.answered(106, OperationTimeout("silent"))
    last = step(send, 106)
    assert isinstance(last, ToBacklog)
    assert len({first.queue, other, second.queue, last.queue}) == 4
