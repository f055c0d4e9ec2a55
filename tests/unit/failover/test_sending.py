"""One send through a pair, step by step."""

from __future__ import annotations

from random import Random

import pytest

from twinbus.errors import (
    AuthenticationFailed,
    BacklogExhausted,
    CommunicationError,
    EntityNotFound,
    LinkDetached,
    MessageRefused,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    SendInterrupted,
    ServerBusy,
    ServiceError,
)
from twinbus.failover.backlog_rotation import BacklogRotation, QueueAffinity
from twinbus.failover.backoff import RetryPolicy
from twinbus.failover.events import (
    BacklogExhaustedEvent,
    BacklogQueueWithdrawn,
    Diverted,
    PossibleDuplicate,
    Suspected,
    SuspicionCleared,
    error_summary,
)
from twinbus.failover.send_decision import (
    CredentialHistory,
    Deadline,
    SendDecision,
    SendFailed,
    SendPolicy,
    SendSucceeded,
    SendToBacklog,
    SendToPrimary,
    Wait,
    first_attempt_s,
)
from twinbus.failover.state_machine import CONFIRM_S, EntityFailover, FailoverPolicy, Health

FIRST, SECOND, THIRD = (f"east/x-servicebus-transfer/{index}" for index in range(3))


def refused() -> CommunicationError:
    return CommunicationError("connection refused", was_sent=False)


def lost() -> CommunicationError:
    return CommunicationError("connection lost", was_sent=True)


class Pair:
    """An entity, its backlog queues, and sends that begin at 100 s."""

    def __init__(
        self, *, interval_s: float = 0, retry_total: int = 0, queues: tuple[str, ...] = (FIRST,)
    ) -> None:
        self.failover = EntityFailover("orders", FailoverPolicy(failover_interval_s=interval_s))
        self.rotation = BacklogRotation(queues)
        self.credential = CredentialHistory()
        self.rules = SendPolicy(
            rotation=self.rotation,
            credential=self.credential,
            retry=RetryPolicy(retry_total=retry_total),
        )

    def send(self, timeout_s: float = 60, affinity: QueueAffinity | None = None) -> SendDecision:
        deadline = Deadline.after(100, timeout_s)
        return SendDecision(
            self.failover,
            self.rules,
            affinity or QueueAffinity(),
            deadline,
            Random(1),
            message_ids=("m1",),
        )

    def divert(self) -> None:
        self.failover.force(100)


def step(send: SendDecision, now_s: float = 100) -> object:
    return send.step(now_s)[0]


# -- a healthy entity ---------------------------------------------------------------------------


def test_a_send_to_a_healthy_entity_is_one_step() -> None:
    """P0: no copy, no extra round trip."""
    pair = Pair(interval_s=60)
    send = pair.send(timeout_s=60)
    assert step(send) == SendToPrimary(60)
    assert send.answered(100.1) == []
    assert step(send, 100.1) == SendSucceeded("orders")
    assert pair.credential.has_succeeded


@pytest.mark.parametrize(
    ("interval_s", "timeout_s"), [(60.0, 60.0), (0.0, 60.0), (10.0, 60.0), (0.0, 1.0)]
)
def test_the_first_attempt_without_a_send_takes_as_long_as_with_one(
    interval_s: float, timeout_s: float
) -> None:
    pair = Pair(interval_s=interval_s)
    decided = step(pair.send(timeout_s=timeout_s))
    assert isinstance(decided, SendToPrimary)
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
    assert step(send, 101) == SendFailed(error)
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
    assert isinstance(step(send, wait.until_s), SendToPrimary)
    assert send.answered(105) == []
    assert step(send, 105) == SendSucceeded("orders")


def test_an_error_counts_only_when_the_retries_are_used_up() -> None:
    """F6, P7: then it surfaces and is not transient any more."""
    pair = Pair(interval_s=60, retry_total=2)
    send, now_s, events = pair.send(), 100.0, []
    for attempt in range(3):
        now = step(send, now_s)
        if isinstance(now, Wait):
            now_s = now.until_s
            now = step(send, now_s)
        assert isinstance(now, SendToPrimary), attempt
        error = refused()
        events = send.answered(now_s, error)
    assert isinstance(events[0], Suspected)
    assert step(send, now_s) == SendFailed(error)
    assert not error.is_transient


def test_with_interval_zero_there_is_at_most_one_immediate_retry() -> None:
    """P6: then the entity is diverted."""
    pair = Pair(interval_s=0, retry_total=3)
    send = pair.send()
    step(send)
    assert [type(event) for event in send.answered(100.1, refused())] == [Suspected]
    assert isinstance(step(send, 100.1), SendToPrimary)
    assert [type(event) for event in send.answered(100.2, refused())] == [Diverted]
    assert isinstance(step(send, 100.2), SendToBacklog)


def test_the_attempt_that_confirms_a_failure_has_a_quarter_of_a_second() -> None:
    """P25: with interval 0 an entity is diverted within 0.3 s of its first error."""
    pair = Pair(interval_s=0, retry_total=3)
    send = pair.send()
    step(send)
    send.answered(100.1, refused())
    assert step(send, 100.1) == SendToPrimary(pytest.approx(CONFIRM_S))
    assert pair.failover.next_timer() == pytest.approx(100.1 + CONFIRM_S)
    assert type(pair.failover.handle_timer(100.36)[0]) is Diverted


def test_sends_that_fail_together_wait_for_one_attempt_that_confirms_it() -> None:
    """P25: one decision for an entity, however many sends have failed."""
    # Given three sends that fail one after the other
    pair = Pair(interval_s=0, retry_total=3)
    sends = [pair.send() for _ in range(3)]
    for send in sends:
        step(send)
    for send in sends:
        send.answered(100.1, refused())

    # Then the first one tries again, and the others wait
    first, *others = sends
    assert isinstance(step(first, 100.1), SendToPrimary)
    assert [step(send, 100.1) for send in others] == [Wait(pytest.approx(100.35))] * 2

    # When it fails, too, all of them go to the backlog
    first.answered(100.15, refused())
    assert all(isinstance(step(send, 100.15), SendToBacklog) for send in sends)


def test_sends_that_wait_for_a_confirmation_go_home_when_it_succeeds() -> None:
    """P6: a link that was lost and is there again diverts nothing."""
    pair = Pair(interval_s=0, retry_total=3)
    first, other = pair.send(), pair.send()
    for send in (first, other):
        step(send)
        send.answered(100.1, refused())
    step(first, 100.1)
    assert [type(event) for event in first.answered(100.2)] == [SuspicionCleared]
    assert isinstance(step(other, 100.2), SendToPrimary)


# -- interruptions and cancellations --------------------------------------------------------------


@pytest.mark.parametrize("was_sent", [True, False])
def test_an_interrupted_send_goes_to_the_backlog_at_once(was_sent: bool) -> None:
    """P22: it says so if the message may be in both places."""
    pair = Pair(interval_s=60)
    send = pair.send()
    step(send)
    pair.divert()
    assert send.answered(100.5, SendInterrupted(path="orders", was_sent=was_sent)) == []
    assert isinstance(step(send, 100.5), SendToBacklog)
    events = send.answered(100.6)
    assert [type(event) for event in events] == ([PossibleDuplicate] if was_sent else [])


def test_an_interruption_says_nothing_about_the_entity() -> None:
    """P22: it came home before the send had its turn."""
    pair = Pair(interval_s=0)
    send = pair.send()
    step(send)
    pair.divert()
    pair.failover.mark_healthy(100.4)
    send.answered(100.5, SendInterrupted(path="orders", was_sent=False))
    assert isinstance(step(send, 100.5), SendToPrimary)
    assert pair.failover.health is Health.HEALTHY


@pytest.mark.parametrize(
    ("silent_s", "interval_s", "health"),
    [
        (0.9, 0, Health.HEALTHY),
        (1.0, 0, Health.DIVERTED),
        (1.0, 60, Health.SUSPECT),
    ],
)
def test_a_caller_that_gives_up_after_a_second_of_silence_counts(
    silent_s: float, interval_s: float, health: Health
) -> None:
    """P22: callers with short timers must not keep an entity in a black hole healthy."""
    pair = Pair(interval_s=interval_s)
    send = pair.send()
    step(send)
    send.cancelled(100 + silent_s)
    assert pair.failover.health is health


def test_a_cancelled_send_says_nothing_when_others_have_succeeded() -> None:
    """P22: the entity answers; this caller was unlucky, or in a hurry."""
    pair = Pair(interval_s=0)
    slow, quick = pair.send(), pair.send()
    step(slow)
    step(quick)
    quick.answered(100.5)
    assert slow.cancelled(103) == []
    assert pair.failover.health is Health.HEALTHY


def test_a_send_that_is_cancelled_on_its_way_to_the_backlog_says_nothing() -> None:
    """P22: a backlog queue's silence is not the entity's."""
    pair = Pair(interval_s=0)
    pair.divert()
    send = pair.send()
    assert isinstance(step(send), SendToBacklog)
    assert send.cancelled(110) == []


def test_no_retry_begins_in_the_backlogs_share() -> None:
    """P10: bounded by the deadline, less the reserve."""
    pair = Pair(interval_s=10, retry_total=3)
    send = pair.send(timeout_s=12)
    assert step(send) == SendToPrimary(9)
    events = send.answered(108.9, refused())
    assert [type(event) for event in events] == [Suspected]
    assert isinstance(step(send, 108.9), SendFailed)


# -- throttling ---------------------------------------------------------------------------------


def test_a_throttled_send_waits_ten_seconds_and_sends_again() -> None:
    """F2: if the deadline allows."""
    pair = Pair(interval_s=0)
    send = pair.send()
    step(send)
    assert send.answered(101, ServerBusy("not now")) == []
    wait = step(send, 101)
    assert isinstance(wait, Wait) and wait.until_s >= 111
    assert isinstance(step(send, wait.until_s), SendToPrimary)
    assert pair.failover.health is Health.HEALTHY


def test_a_throttled_send_without_the_time_raises_server_busy() -> None:
    """F2: otherwise ServerBusy is raised; throttling never diverts."""
    pair = Pair(interval_s=0)
    send, busy = pair.send(timeout_s=5), ServerBusy("not now")
    step(send)
    assert send.answered(101, busy) == []
    assert step(send, 101) == SendFailed(busy)
    assert pair.failover.health is Health.HEALTHY


def test_a_throttled_send_uses_the_backlogs_share_too() -> None:
    """F2: throttled is not down, so nothing will be diverted."""
    pair = Pair(interval_s=0)
    send = pair.send(timeout_s=16)
    assert step(send) == SendToPrimary(12)
    send.answered(103, ServerBusy("not now"))
    wait = step(send, 103)
    assert isinstance(wait, Wait)
    again = step(send, wait.until_s)
    assert again == SendToPrimary(116 - wait.until_s)


def test_a_throttled_send_of_an_entity_that_was_diverted_need_not_wait() -> None:
    """F2, P8: the backlog is not what asked for quiet."""
    pair = Pair()
    send = pair.send(timeout_s=5)
    step(send)
    pair.divert()
    send.answered(101, ServerBusy("not now"))
    assert isinstance(step(send, 101), SendToBacklog)


# -- the way to the backlog ---------------------------------------------------------------------


def test_the_send_that_trips_the_failover_is_itself_rerouted() -> None:
    """P10: the original lost this one to the caller."""
    pair = Pair(interval_s=0)
    send = pair.send(timeout_s=60)
    assert step(send) == SendToPrimary(45)
    events = send.answered(145, OperationTimeout("no answer"))
    assert [type(event) for event in events] == [Suspected, Diverted]
    assert step(send, 145) == SendToBacklog(FIRST, 15)
    (told,) = send.answered(145.5)
    assert told == PossibleDuplicate("orders", 145.5, "orders", ("m1",))
    assert step(send, 145.5) == SendSucceeded(FIRST)


def test_each_attempt_without_a_clear_answer_is_counted() -> None:
    """P10: so many further copies may arrive, and the event tells how many."""
    pair = Pair(interval_s=0, retry_total=1, queues=(FIRST, SECOND))
    send = pair.send(timeout_s=60)
    assert isinstance(step(send), SendToPrimary)
    send.answered(101, OperationTimeout("no answer"))
    assert isinstance(step(send, 101), SendToPrimary)
    send.answered(101.2, OperationTimeout("no answer"))
    first = step(send, 101.2)
    assert isinstance(first, SendToBacklog)
    send.answered(110, OperationTimeout("no answer"))
    second = step(send, 110)
    assert isinstance(second, SendToBacklog)
    [unclear] = [e for e in send.answered(111) if isinstance(e, PossibleDuplicate)]
    assert (unclear.first, unclear.attempts) == ("orders", 3)


def test_a_diverted_send_goes_straight_to_the_backlog() -> None:
    """P8: nothing but pings goes to that primary entity."""
    pair = Pair()
    pair.divert()
    send = pair.send()
    assert step(send) == SendToBacklog(FIRST, 60)
    assert send.answered(100.1) == []
    assert step(send, 100.1) == SendSucceeded(FIRST)


def test_a_send_that_waits_for_a_retry_follows_the_entity() -> None:
    """P8: diverted by somebody else, it does not touch the primary again."""
    pair = Pair(interval_s=60, retry_total=3)
    send = pair.send()
    step(send)
    send.answered(101, refused())
    assert isinstance(step(send, 101), Wait)
    pair.divert()
    assert isinstance(step(send, 101.5), SendToBacklog)


def test_a_failing_queue_is_withdrawn_and_the_same_message_goes_to_another() -> None:
    """P9: within the same send."""
    pair = Pair(queues=(FIRST, SECOND))
    pair.divert()
    send = pair.send(affinity=QueueAffinity(FIRST))
    assert step(send) == SendToBacklog(FIRST, 30)
    (event,) = send.answered(101, refused())
    assert isinstance(event, BacklogQueueWithdrawn) and event.queue == FIRST
    assert step(send, 101) == SendToBacklog(SECOND, 59)
    send.answered(102)
    assert step(send, 102) == SendSucceeded(SECOND)


def test_a_throttled_queue_is_left_for_another_and_stays_in_the_rotation() -> None:
    """F2: try another queue, do not withdraw this one."""
    pair = Pair(queues=(FIRST, SECOND))
    pair.divert()
    send = pair.send(affinity=QueueAffinity(FIRST))
    step(send)
    assert send.answered(101, ServerBusy("not now")) == []
    assert isinstance(step(send, 101), SendToBacklog)
    assert pair.rotation.withdrawn == ()


def test_a_message_that_two_queues_refuse_is_the_callers_own() -> None:
    """P13, P20: no third one is asked, and no queue is blamed."""
    pair = Pair(queues=(FIRST, SECOND, THIRD))
    pair.divert()
    error, affinity = MessageTooLarge("too large"), QueueAffinity(FIRST)
    send = pair.send(affinity=affinity)
    assert isinstance(step(send), SendToBacklog)
    assert send.answered(101, error) == []
    asked = step(send, 101)
    assert isinstance(asked, SendToBacklog) and asked.queue != FIRST
    assert send.answered(101, MessageTooLarge("too large here, too")) == []
    assert step(send, 101) == SendFailed(error)
    assert pair.rotation.withdrawn == ()
    assert affinity.queue is None, "the next send of this sender asks two others, perhaps"


@pytest.mark.parametrize("error", [MessageTooLarge("too large"), MessageRefused("no session")])
def test_a_queue_that_refuses_what_another_takes_is_withdrawn(error: ServiceError) -> None:
    """P20, P9: the caller hears nothing of it, and the event has the reason."""
    pair = Pair(queues=(FIRST, SECOND))
    pair.divert()
    affinity = QueueAffinity(FIRST)
    send = pair.send(affinity=affinity)
    assert step(send) == SendToBacklog(FIRST, 30)
    assert send.answered(101, error) == []
    assert step(send, 101) == SendToBacklog(SECOND, 59)
    assert send.answered(102) == [BacklogQueueWithdrawn(FIRST, 102, error_summary(error))]
    assert step(send, 102) == SendSucceeded(SECOND)
    assert pair.rotation.withdrawn_reasons == {FIRST: error_summary(error)}
    assert affinity.queue == SECOND


def test_the_queue_that_is_asked_is_one_that_took_a_message_before() -> None:
    """P20: of many that refuse it must not ask another of the same kind."""
    queues = tuple(f"east/x-servicebus-transfer/{index}" for index in range(10))
    pair = Pair(queues=queues)
    pair.divert()
    pair.rotation.succeeded(queues[7], 99)
    send = pair.send(affinity=QueueAffinity(queues[3]))
    step(send)
    send.answered(101, MessageRefused("no session"))
    asked = step(send, 101)
    assert isinstance(asked, SendToBacklog) and asked.queue == queues[7]


def test_a_refusal_that_no_other_queue_can_be_asked_about_is_raised() -> None:
    """P20: there is one queue, or the others do not answer."""
    error = MessageRefused("no session")
    alone = Pair(queues=(FIRST,))
    alone.divert()
    send = alone.send()
    step(send)
    send.answered(101, error)
    assert step(send, 101) == SendFailed(error) and alone.rotation.withdrawn == ()

    pair = Pair(queues=(FIRST, SECOND))
    pair.divert()
    send = pair.send(affinity=QueueAffinity(FIRST))
    step(send)
    send.answered(101, error)
    assert isinstance(step(send, 101), SendToBacklog)
    (event,) = send.answered(102, refused())
    assert isinstance(event, BacklogQueueWithdrawn) and event.queue == SECOND
    assert step(send, 102) == SendFailed(error)


@pytest.mark.parametrize("end", ["refused by both", "cancelled", "restored", "in vain"])
def test_a_withdrawn_queue_that_refuses_its_probe_can_be_probed_again(end: str) -> None:
    """P20, P9: however the send ends that asked it."""
    pair = Pair(queues=(FIRST, SECOND))
    pair.divert()
    pair.rotation.failed(FIRST, 90, "gone", is_probe=False)
    send = pair.send(affinity=QueueAffinity(SECOND))
    assert step(send) == SendToBacklog(FIRST, 3)
    send.answered(101, MessageRefused("no session"))
    assert isinstance(step(send, 101), SendToBacklog)
    if end == "refused by both":
        send.answered(101, MessageRefused("no session"))
    elif end == "cancelled":
        send.cancelled(101)
    elif end == "restored":
        send.answered(101, ServerBusy("not now"))
        pair.failover.mark_healthy(101)
        assert isinstance(step(send, 101), SendToPrimary)
    else:
        send.answered(101, ServerBusy("not now"))
        assert isinstance(step(send, 101), SendFailed)
    choice = pair.rotation.choose(QueueAffinity(), 300, Random(1))
    assert choice is not None and choice.is_probe


def test_a_probe_that_is_refused_makes_the_pause_longer() -> None:
    """P20: a queue that never takes anything costs one try a minute, not one in two seconds."""
    pair, now_s, tries = Pair(queues=(FIRST, SECOND)), 100.0, 0
    pair.divert()
    while now_s < 3_700:
        send = pair.send(affinity=QueueAffinity(SECOND), timeout_s=10_000)
        asked = step(send, now_s)
        assert isinstance(asked, SendToBacklog)
        if asked.queue == FIRST:
            tries += 1
            send.answered(now_s, MessageRefused("no session"))
            assert step(send, now_s) == SendToBacklog(SECOND, 10_100 - now_s)
        elif not tries:
            pair.rotation.failed(FIRST, now_s, "no session", is_probe=False, is_refusal=True)
        send.answered(now_s)
        now_s += 1
    assert 60 <= tries <= 70


def test_a_queue_that_takes_some_messages_and_refuses_others_does_not_flap() -> None:
    """P20: its pauses grow, although it answers in between."""
    pair = Pair(queues=(FIRST, SECOND))
    withdrawn = 0
    for second in range(600):
        now_s = 100.0 + second
        choice = pair.rotation.choose(QueueAffinity(FIRST), now_s, Random(second))
        assert choice is not None
        if choice.queue == FIRST and choice.is_probe:
            pair.rotation.succeeded(FIRST, now_s)
        elif choice.queue == FIRST:
            events = pair.rotation.failed(
                FIRST, now_s, "too large", is_probe=False, is_refusal=True
            )
            withdrawn += len(events)
    assert withdrawn <= 15


def test_with_every_queue_withdrawn_the_caller_gets_a_typed_error() -> None:
    """P9: never a silent drop, never an endless retry."""
    pair = Pair(queues=(FIRST,))
    pair.divert()
    send = pair.send(timeout_s=1.5)
    step(send)
    send.answered(100.1, refused())
    end, events = send.step(100.1)
    assert isinstance(end, SendFailed) and isinstance(end.error, BacklogExhausted)
    assert events == [BacklogExhaustedEvent("orders", 100.1, 1)]
    assert "was not sent" in str(end.error)


def test_a_send_with_time_left_waits_for_a_withdrawn_queue() -> None:
    """P9: a withdrawn queue is tried again after a pause."""
    pair = Pair(queues=(FIRST,))
    pair.divert()
    send = pair.send(timeout_s=60)
    step(send)
    send.answered(101, refused())
    assert step(send, 101) == Wait(103)
    assert isinstance(step(send, 103), SendToBacklog)
    send.answered(104)
    assert step(send, 104) == SendSucceeded(FIRST)


def test_a_hanging_queue_leaves_time_for_the_others() -> None:
    """P9: also when all of them were withdrawn and any may be the one that is back."""
    pair = Pair(queues=(FIRST, SECOND))
    for queue in (FIRST, SECOND):
        pair.rotation.failed(queue, 90, "refused", is_probe=False)
    pair.divert()
    send = pair.send(timeout_s=10)
    probe = step(send)
    assert isinstance(probe, SendToBacklog) and probe.timeout_s == 5
    send.answered(105, OperationTimeout("no answer"))
    other = step(send, 105)
    assert isinstance(other, SendToBacklog) and other.queue != probe.queue


def test_when_every_queue_asks_for_more_time_than_is_left_it_is_server_busy() -> None:
    """F2: not a timeout, of which nobody has waited for the end."""
    pair = Pair(queues=(FIRST,))
    pair.divert()
    pair.rotation.throttled(FIRST, 99, is_probe=False)
    end = step(pair.send(timeout_s=4))
    assert isinstance(end, SendFailed) and isinstance(end.error, ServerBusy)


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
    assert step(send, 120) == SendToPrimary(30)
    send.answered(150, OperationTimeout("no answer"))
    assert pair.failover.is_diverted
    assert isinstance(step(send, 150), SendToBacklog)


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
    assert isinstance(end, SendFailed)
    assert pair.failover.health is Health.HEALTHY


def test_a_cancelled_send_frees_the_queue_that_it_was_to_try() -> None:
    """P9: the next send asks."""
    pair = Pair(queues=(FIRST,))
    pair.rotation.failed(FIRST, 90, "refused", is_probe=False)
    pair.divert()
    send = pair.send()
    assert isinstance(step(send), SendToBacklog)
    send.cancelled(100)
    assert isinstance(step(pair.send()), SendToBacklog)


# -- time, doubt, credentials -------------------------------------------------------------------


def test_the_reserve_is_kept_only_where_a_send_could_be_diverted() -> None:
    """P0, P10: with the default interval a healthy entity's send has all of its time."""
    pair = Pair(interval_s=60)
    assert step(pair.send(timeout_s=60)) == SendToPrimary(60)
    pair.failover.send_failed(50, "refused")
    assert step(pair.send(timeout_s=60)) == SendToPrimary(45)
    pair.failover.hold(51)
    assert step(pair.send(timeout_s=60)) == SendToPrimary(60)


def test_a_send_that_wakes_too_late_still_counts_its_failure() -> None:
    """F6, P10: a machine that slept finds the entity diverted by its own evidence."""
    pair = Pair(interval_s=5, retry_total=3)
    pair.failover.send_failed(97, "refused")
    send = pair.send(timeout_s=60)
    step(send)
    send.answered(101, refused())
    assert isinstance(step(send, 101), Wait)
    end, _events = send.step(200)
    assert isinstance(end, SendFailed)
    assert pair.failover.health is Health.DIVERTED


def test_a_retry_that_comes_too_late_is_the_backlogs_turn() -> None:
    """P10: the failure counts, diverts, and the send goes on."""
    pair = Pair(interval_s=0, retry_total=1)
    send = pair.send(timeout_s=60)
    step(send)
    assert [type(event) for event in send.answered(101, refused())] == [Suspected]
    now, events = send.step(150)
    assert [type(event) for event in events] == [Diverted]
    assert now == SendToBacklog(FIRST, 10)


def test_a_success_cancels_the_suspicion() -> None:
    """P6: by any sender."""
    pair = Pair(interval_s=60)
    pair.failover.send_failed(99, "refused")
    send = pair.send()
    step(send)
    assert send.answered(101) == [SuspicionCleared("orders", 101, "a send succeeded")]


def test_an_error_says_that_an_earlier_attempt_is_in_doubt() -> None:
    """P10: "neither place" is said only when it is known."""
    pair = Pair(queues=(FIRST,))
    send = pair.send(timeout_s=4)
    step(send)
    send.answered(101, lost())
    assert isinstance(step(send, 101), SendToBacklog)
    send.answered(103.5, refused())
    end = step(send, 103.5)
    assert isinstance(end, SendFailed) and isinstance(end.error, BacklogExhausted)
    assert end.error.is_ambiguous and end.error.unclear_attempts == 1
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
    assert step(send, wait.until_s) == SendFailed(busy)
    assert busy.is_ambiguous


def test_a_key_that_worked_before_makes_its_refusal_an_outage() -> None:
    """P7: a broken token service looks the same on the wire."""
    new = Pair(interval_s=0)
    send = new.send()
    step(send)
    assert send.answered(101, AuthenticationFailed("who?")) == []
    assert isinstance(step(send, 101), SendFailed)

    used = Pair(interval_s=0)
    used.credential.has_succeeded = True
    send = used.send()
    step(send)
    send.answered(101, AuthenticationFailed("who?"))
    assert isinstance(step(send, 101), SendToBacklog)


def test_a_late_success_at_the_primary_is_a_success_and_restores_nothing() -> None:
    """P11: only a ping does."""
    pair = Pair()
    send = pair.send()
    step(send)
    pair.divert()
    assert send.answered(130) == []
    assert step(send, 130) == SendSucceeded("orders")
    assert pair.failover.is_diverted


def test_a_queue_that_this_send_had_withdrawn_takes_no_share_from_the_others() -> None:
    """P9, P10: with two left that nobody has tried, neither gets all of the time."""
    queues = tuple(f"east/x-servicebus-transfer/{index}" for index in range(4))
    pair = Pair(queues=queues)
    pair.divert()
    send = pair.send(timeout_s=9)
    first = step(send)
    assert isinstance(first, SendToBacklog) and first.timeout_s == 3
    send.answered(103, OperationTimeout("silent"))
    # And somebody else has found another one silent.
    other = next(queue for queue in queues if queue != first.queue)
    pair.rotation.failed(other, 103, "silent", is_probe=False)
    second = step(send, 103)
    assert isinstance(second, SendToBacklog) and second.timeout_s == 3
    send.answered(106, OperationTimeout("silent"))
    last = step(send, 106)
    assert isinstance(last, SendToBacklog)
    assert len({first.queue, other, second.queue, last.queue}) == 4


# -- links that are opened ahead ------------------------------------------------------------------


def test_a_send_that_meets_an_outage_names_the_queue_that_it_may_need() -> None:
    """P25: its link is opened beside the attempt that confirms the failure."""
    pair, affinity = Pair(retry_total=1, queues=(FIRST, SECOND)), QueueAffinity()
    send = pair.send(affinity=affinity)
    assert isinstance(step(send), SendToPrimary)
    assert send.queue_ahead(100) is None
    send.answered(100.1, refused())
    ahead = send.queue_ahead(100.1)
    assert ahead is not None and pair.failover.health is Health.SUSPECT
    assert isinstance(step(send, 100.1), SendToPrimary)
    send.answered(100.2, refused())
    assert send.queue_ahead(100.2) is None  # Diverted: the send itself goes there.
    diverted = step(send, 100.2)
    assert isinstance(diverted, SendToBacklog) and diverted.queue == ahead


@pytest.mark.parametrize("error", [EntityNotFound("no"), ServerBusy("slow"), QuotaExceeded("full")])
def test_what_is_no_outage_opens_nothing_ahead(error: ServiceError) -> None:
    """P0 and P7: an error of the caller, or throttling, costs the secondary nothing."""
    send = Pair(retry_total=1).send()
    step(send)
    send.answered(100.1, error)
    assert send.queue_ahead(100.1) is None
