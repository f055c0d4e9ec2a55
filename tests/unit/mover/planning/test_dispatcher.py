"""Orders for shifts: who empties what, what is tried again when, and a primary that is away."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from twinbus.encoding.transit import ReceivedMessage
from twinbus.failover.backoff import Backoff
from twinbus.mover.planning.circuit_breaker import DESTINATIONS_MAX
from twinbus.mover.planning.deferred_messages import DeferredMessages
from twinbus.mover.planning.dispatcher import RETRIES_MAX, Dispatcher, WorkLimits
from twinbus.mover.planning.work_order import CircuitSnapshot, WorkReport

DAY_S = 86_400.0
QUEUES = tuple(f"p/x-servicebus-transfer/{index}" for index in range(10))


def dispatcher(**limits: object) -> Dispatcher:
    return Dispatcher(
        QUEUES,
        backoff=Backoff(first_s=1.0, last_s=8.0),
        random=Random(1),
        limits=WorkLimits(**limits),  # type: ignore[arg-type]
    )


def looked_through(**limits: object) -> Dispatcher:
    """One that has had its first batch, in which every queue was empty."""
    made = dispatcher(**limits)
    for order in made.orders({}, 0.0):
        made.apply_report(order, WorkReport(emptied=order.queues, scanned=order.queues), 0.0)
    return made


def closed(path: str, due_in_s: float = 1.0) -> CircuitSnapshot:
    return CircuitSnapshot(path, 1, due_in_s, None, False, False)


def test_the_first_orders_look_through_every_queue() -> None:
    """Y4: what another syphon had set aside is found again."""
    orders = dispatcher().orders({}, 0.0)
    assert sorted(queue for order in orders for queue in order.scan_from) == sorted(QUEUES)


def test_an_idle_backlog_gets_no_orders() -> None:
    """Y3: no task runs for nothing."""
    idle = looked_through()
    assert idle.orders({}, 1.0) == [] and not idle.has_work(1.0)
    assert idle.next_due_s(1.0) is None


def test_only_the_queues_that_rang_are_ordered() -> None:
    rung = ReceivedMessage(path=QUEUES[3], encoded=b"", sequence_number=7)
    (order,) = looked_through().orders({QUEUES[3]: rung}, 1.0)
    assert order.queues == (QUEUES[3],) and order.prefetched == (rung,)
    assert not order.scan_from, "it was looked through a second ago"


def test_queues_are_shared_by_the_tasks_and_none_is_in_two() -> None:
    """Y5: locks would keep two tasks apart, and each would pay for it."""
    orders = looked_through(tasks=3, messages_max=900, rate_per_s=30.0).orders(
        dict.fromkeys(QUEUES), 1.0
    )
    assert sorted(queue for order in orders for queue in order.queues) == sorted(QUEUES)
    assert [len(order.queues) for order in orders] == [4, 3, 3]
    assert {(order.messages_max, order.rate_per_s) for order in orders} == {(300, 10.0)}


def test_what_was_set_aside_is_tried_when_its_destination_is_due() -> None:
    """Y4: and not before, so that nothing is received over and over."""
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 10.0)
    report = WorkReport(
        deferred={QUEUES[0]: {"dead": (5, 6, 7)}},
        open_circuits=(closed("dead", 4.0),),
        emptied=order.queues,
    )
    planner.apply_report(order, report, 10.0)
    assert planner.next_due_s(11.0) == 14.0 and not planner.has_work(13.9)
    (other,) = planner.orders({QUEUES[0]: None}, 12.0)
    assert not other.retry_deferred and other.blocked_paths == {QUEUES[0]: ("dead",)}
    assert other.open_circuits[0].due_in_s == 2.0
    planner.apply_report(
        other, WorkReport(emptied=other.queues, open_circuits=other.open_circuits), 12.0
    )
    (due,) = planner.orders({}, 14.0)
    assert due.retry_deferred == {QUEUES[0]: {"dead": (5, 6, 7)}}
    assert planner.deferred_count == 3, "they are lent, not forgotten"


def test_what_a_shift_never_reported_on_is_set_aside_again() -> None:
    """Y1: a task that was killed takes no message with it."""
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 0.0)
    planner.apply_report(
        order, WorkReport(deferred={QUEUES[0]: {"slow": (1, 2)}}, emptied=order.queues), 0.0
    )
    (lost,) = planner.orders({}, 1.0)
    assert planner.orders({}, 1.1) == [], "after a pause: whatever killed it may do it again"
    (again,) = planner.orders({}, 4.0)
    assert lost.retry_deferred == again.retry_deferred == {QUEUES[0]: {"slow": (1, 2)}}
    assert again.scan_from == {QUEUES[0]: 1}, "what the killed one had set aside is found again"


def test_a_destination_that_opened_gets_all_it_has_in_portions() -> None:
    """Y4: an open destination's messages are due at once."""
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 0.0)
    numbers = tuple(range(1, RETRIES_MAX + 101))
    report = WorkReport(
        deferred={QUEUES[0]: {"d": numbers}},
        open_circuits=(closed("d", 60.0),),
        emptied=order.queues,
    )
    planner.apply_report(order, report, 0.0)
    assert not planner.has_work(1.0)
    (other,) = planner.orders({QUEUES[1]: None}, 1.0)
    planner.apply_report(other, WorkReport(recovered=("d",), emptied=other.queues), 1.0)
    (first,) = planner.orders({}, 1.0)
    assert len(first.retry_deferred[QUEUES[0]]["d"]) == RETRIES_MAX
    planner.apply_report(first, WorkReport(emptied=first.queues), 2.0)
    (rest,) = planner.orders({}, 2.0)
    assert len(rest.retry_deferred[QUEUES[0]]["d"]) == 100


def test_a_queue_that_was_not_emptied_goes_on_in_the_next_batch() -> None:
    planner = looked_through()
    (order,) = planner.orders({QUEUES[2]: None}, 0.0)
    planner.apply_report(order, WorkReport(), 15.0)
    assert planner.has_work(15.0)
    (more,) = planner.orders({}, 15.0)
    assert more.queues == (QUEUES[2],)


def test_a_queue_that_cannot_be_read_is_left_to_its_bell() -> None:
    """A fault does not make batch after batch; and the queue is looked through when it rings."""
    planner = dispatcher()
    orders = planner.orders({}, 0.0)
    for order in orders:
        faults = dict.fromkeys(order.queues, "it is away")
        planner.apply_report(order, WorkReport(faults=faults), 0.0)
    assert not planner.has_work(5.0)
    (order,) = planner.orders({QUEUES[0]: None}, 6.0)
    assert order.scan_from == {QUEUES[0]: 1}


def test_while_the_primary_is_away_nobody_is_sent() -> None:
    """Y4: an outage of the whole primary costs a knock now and then, with longer pauses."""
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 0.0)
    planner.apply_report(
        order, WorkReport(is_primary_unreachable=True, open_circuits=(closed("orders", 30.0),)), 0.0
    )
    assert planner.is_primary_unreachable and not planner.has_work(100.0)
    first_s = planner.next_due_s(0.0)
    assert first_s is not None and 0.8 <= first_s <= 1.2
    assert planner.probe_paths() == ["orders"]
    planner.probe_finished(False, first_s)
    second_s = planner.next_due_s(first_s)
    assert second_s is not None and second_s - first_s > 1.2
    planner.probe_finished(True, second_s)
    assert not planner.is_primary_unreachable and planner.has_work(second_s), (
        "its queue was not emptied"
    )
    assert all(note.due_in_s <= 0 for note in planner.open_circuits(second_s))


def test_what_a_missing_destination_has_waited_grows_between_batches() -> None:
    """Y4: the grace period goes on while no task runs."""
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 0.0)
    gone = CircuitSnapshot("gone", 2, 5.0, 20.0, False, False)
    planner.apply_report(order, WorkReport(open_circuits=(gone,), emptied=order.queues), 0.0)
    (note,) = planner.open_circuits(100.0)
    assert note.gone_for_s == 120.0


def test_after_a_crash_everything_is_ordered() -> None:
    """Y1: a replayed batch needs no memory."""
    orders = looked_through().orders({}, 1.0, everything=True)
    assert sorted(queue for order in orders for queue in order.queues) == sorted(QUEUES)
    assert sorted(queue for order in orders for queue in order.scan_from) == sorted(QUEUES)


def test_invented_destinations_do_not_fill_the_memory() -> None:
    """Y6: names are data from messages; the oldest are forgotten."""
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 0.0)
    notes = tuple(closed(f"d{number}") for number in range(DESTINATIONS_MAX + 5))
    planner.apply_report(order, WorkReport(open_circuits=notes, emptied=order.queues), 0.0)
    found = planner.open_circuits(0.0)
    assert len(found) == DESTINATIONS_MAX and found[0].path == "d5"


def test_an_idle_queue_is_looked_through_now_and_then() -> None:
    """Y4, Y5: what another syphon set aside and forgot rings no bell."""
    planner = looked_through(discovery_interval_s=3_600)
    planner.note_sign(1.0)
    assert planner.queues_to_scan(3_599.0) == []
    (order,) = planner.orders({QUEUES[1]: None}, 3_600.0)
    assert planner.queues_to_scan(3_600.0) == [each for each in QUEUES if each != QUEUES[1]]
    planner.apply_report(order, WorkReport(emptied=order.queues, scanned=order.queues), 3_600.0)

    for queue in planner.queues_to_scan(3_601.0):
        planner.defer(queue, {"orders": [5, 6]} if queue == QUEUES[0] else {})
        planner.scan_finished(queue, 3_601.0, is_whole=True)
    (found,) = planner.orders({}, 3_602.0)
    assert found.retry_deferred == {QUEUES[0]: {"orders": (5, 6)}} and not found.scan_from
    assert planner.queues_to_scan(3_602.0) == []


def test_without_a_sign_of_diverted_messages_no_queue_is_looked_through() -> None:
    """Y3: an idle syphon makes no peek."""
    planner = looked_through(discovery_interval_s=3_600)
    assert planner.queues_to_scan(30 * DAY_S) == []
    planner.note_sign(30 * DAY_S)
    assert planner.queues_to_scan(30 * DAY_S) == list(QUEUES)


def test_a_message_in_one_queue_makes_all_be_looked_through_for_a_day() -> None:
    """Y4, Y5: another syphon may have received others of the same outage, and set them aside."""
    planner = looked_through(discovery_interval_s=3_600)
    (order,) = planner.orders({QUEUES[1]: None}, 0.0)
    planner.apply_report(order, WorkReport(emptied=order.queues, scanned=order.queues), 0.0)
    looks = Counter[str]()
    for hour in range(1, 72):
        for queue in planner.queues_to_scan(hour * 3_600.0):
            looks[queue] += 1
            planner.scan_finished(queue, hour * 3_600.0, is_whole=True)
    assert looks == dict.fromkeys(QUEUES, 24)


def test_a_queue_in_which_messages_are_set_aside_is_looked_through_for_as_long() -> None:
    """Y4: who set them aside may have set more aside since."""
    planner = looked_through(discovery_interval_s=3_600)
    (order,) = planner.orders({QUEUES[0]: None}, 1.0)
    deferred = {QUEUES[0]: {"dead": (7,)}}
    note = closed("dead", 1e9)
    planner.apply_report(
        order, WorkReport(deferred=deferred, open_circuits=(note,), emptied=order.queues), 1.0
    )
    for queue in QUEUES:
        planner.scan_finished(queue, 2 * DAY_S, is_whole=True)
    assert planner.queues_to_scan(3 * DAY_S) == [QUEUES[0]]


def test_a_queue_with_much_set_aside_is_looked_through_less_often() -> None:
    """Y4: a look shows all of it, and while its destination is dead that shall not cost more and
    more."""
    planner = looked_through(discovery_interval_s=3_600)
    (order,) = planner.orders({QUEUES[0]: None}, 1.0)
    deferred = {QUEUES[0]: {"dead": tuple(range(5_000))}}
    note = closed("dead", 1e6)
    planner.apply_report(
        order, WorkReport(deferred=deferred, open_circuits=(note,), emptied=order.queues), 1.0
    )
    assert QUEUES[0] not in planner.queues_to_scan(4 * 3_600.0)
    assert QUEUES[0] in planner.queues_to_scan(5 * 3_600.0)


def test_an_idle_queue_that_cannot_be_looked_through_is_tried_again_soon() -> None:
    planner = looked_through(discovery_interval_s=3_600)
    for queue in QUEUES:
        planner.scan_finished(queue, 4_000.0, is_whole=queue != QUEUES[0])
    assert planner.queues_to_scan(4_007.0) == []
    assert planner.queues_to_scan(4_009.0) == [QUEUES[0]]


def test_a_look_that_was_not_ended_goes_on_where_it_was() -> None:
    """Y4: also when somebody looked through the queue a minute ago, as before a second try."""
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 1.0)
    report = WorkReport(emptied=order.queues, to_scan={QUEUES[0]: 501})
    planner.apply_report(order, report, 2.0)
    (more,) = planner.orders({}, 2.0)
    assert more.scan_from == {QUEUES[0]: 501}
    planner.apply_report(more, WorkReport(emptied=more.queues, scanned=more.queues), 3.0)
    assert planner.orders({}, 3.0) == []


def test_what_could_not_be_remembered_is_looked_for_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Y4: more messages set aside than there is memory for."""
    monkeypatch.setattr(
        "twinbus.mover.planning.dispatcher.DeferredMessages",
        partial(DeferredMessages, numbers_max=10),
    )
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 0.0)
    report = WorkReport(
        deferred={QUEUES[0]: {"d": tuple(range(15))}},
        open_circuits=(closed("d", 5.0),),
        emptied=order.queues,
    )
    planner.apply_report(order, report, 0.0)
    (full,) = planner.orders({}, 5.0)
    planner.apply_report(
        full, replace(report, deferred={QUEUES[0]: {"d": tuple(range(4, 10))}}), 6.0
    )
    (emptier,) = planner.orders({}, 11.0)
    assert not emptier.scan_from, "there is not much room yet"
    report = WorkReport(deferred={QUEUES[0]: {"d": (9,)}}, recovered=("d",), emptied=emptier.queues)
    planner.apply_report(emptier, report, 11.0)
    (again,) = planner.orders({}, 11.0)
    assert again.scan_from == {QUEUES[0]: 1}


def test_what_a_batch_was_too_fast_by_the_next_one_waits() -> None:
    """Short batches that each begin with a burst would exceed the rate together."""
    planner = looked_through(tasks=2, rate_per_s=10.0)
    first, second = planner.orders(dict.fromkeys(QUEUES[:2]), 1.0)
    planner.apply_report(first, WorkReport(emptied=first.queues, rate_delay_s=3.0), 1.0)
    planner.apply_report(second, WorkReport(emptied=second.queues, rate_delay_s=1.0), 1.0)
    assert planner.pause_s(1.0) == 2.0, "15 and 5 messages at 10 a second"
    assert planner.pause_s(4.0) == 0.0


@pytest.mark.parametrize(("rate_per_s", "pause_s"), [(100.0, 0.4), (1.0, 40.0), (None, 0.0)])
def test_what_is_owed_is_owed_at_the_new_rate(rate_per_s: float | None, pause_s: float) -> None:
    """Who raises the rate does not wait for what the old one would have taken."""
    planner = looked_through(tasks=1, rate_per_s=10.0)
    (order,) = planner.orders({QUEUES[0]: None}, 1.0)
    planner.apply_report(order, WorkReport(emptied=order.queues, rate_delay_s=4.0), 1.0)
    assert planner.pause_s(1.0) == pytest.approx(4.0)
    planner.set_rate(rate_per_s, 1.0)
    assert planner.pause_s(1.0) == pytest.approx(pause_s)
    assert planner.limits.rate_per_s == rate_per_s


def test_knocks_go_to_other_doors_each_time() -> None:
    """Y4: eight silent destinations must not pass for a primary that is away."""
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 0.0)
    notes = tuple(closed(f"d{number}", 30.0) for number in range(20))
    planner.apply_report(order, WorkReport(is_primary_unreachable=True, open_circuits=notes), 0.0)
    asked = set(planner.probe_paths())
    assert len(asked) == 8
    for turn in range(2):
        planner.probe_finished(False, float(turn))
        asked |= set(planner.probe_paths())
    assert len(asked) == 20


def test_a_queue_that_fails_again_and_again_is_tried_less_and_less() -> None:
    """Y4: with messages set aside that are due, and nobody who can fetch them."""
    planner = looked_through()
    (order,) = planner.orders({QUEUES[0]: None}, 0.0)
    planner.apply_report(
        order, WorkReport(deferred={QUEUES[0]: {"d": (1,)}}, emptied=order.queues), 0.0
    )
    tries, now_s = [], 0.0
    while now_s < 60:
        due_s = planner.next_due_s(now_s)
        assert due_s is not None
        now_s = max(now_s, due_s)
        (order,) = planner.orders({}, now_s)
        report = WorkReport(deferred=order.retry_deferred, faults={QUEUES[0]: "it is away"})
        planner.apply_report(order, report, now_s)
        tries.append(now_s)
    assert len(tries) < 14, tries
    assert planner.orders({QUEUES[0]: None}, now_s), "its bell brings it back at once"


def test_tasks_that_are_never_heard_of_do_not_make_batch_after_batch() -> None:
    """A desk that executors cannot reach: with ``once`` the query ends."""
    planner = dispatcher()
    assert planner.orders({}, 0.0)
    assert planner.orders({}, 0.1) == [] and not planner.has_work(0.1)
    due_s = planner.next_due_s(0.1)
    assert due_s is not None and due_s > 0.5
