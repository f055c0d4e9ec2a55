"""The ledgers of a streaming source, on literal times."""

from __future__ import annotations

import pytest

from twinbus.spark.connector.lock_ledger import (
    LEASE_S,
    RENEW_AGAIN_S,
    RENEWAL_COUNT_MAX,
    Counts,
    Lock,
    LockLedger,
    ReadPermission,
)
from twinbus.spark.connector.partition_plan import BatchLimit, places, shares

ORDER = "1/0"


def lock(number: int) -> Lock:
    return Lock("orders", number, number.to_bytes(16, "big"))


def held(*numbers: int, reader: str = "first", lock_s: float = 60.0) -> LockLedger:
    """An order that a reader has begun and received these messages for, at 100 s."""
    holding = LockLedger()
    holding.plan(ORDER, 1)
    assert holding.begin(ORDER, reader, 100) is ReadPermission.GO
    locks = [lock(each) for each in numbers]
    assert holding.report(ORDER, reader, locks, lock_s=lock_s, now_s=100)
    return holding


def due(holding: LockLedger, now_s: float) -> dict[str, list[Lock]]:
    """What is to be renewed, by order; all of it is renewed."""
    renewals = holding.due(now_s)
    for each in renewals:
        holding.renewed(each, [], began_s=now_s)
    return {each.order_id: each.locks for each in renewals}


def numbers_of(holding: LockLedger) -> list[int]:
    return [each.sequence_number for each in holding.known(ORDER)[0]]


def test_a_second_run_of_a_sealed_order_gets_the_same_and_no_more() -> None:
    """S2: whichever run is written, it has every message that will be settled."""
    holding = held(1, 2)
    assert holding.finish(ORDER, "first")

    assert holding.begin(ORDER, "second", 101) is ReadPermission.GO
    assert numbers_of(holding) == [1, 2]
    assert holding.known(ORDER)[1]
    assert not holding.report(ORDER, "second", [lock(3)], lock_s=60, now_s=101)
    assert numbers_of(holding) == [1, 2]


def test_a_run_after_one_that_failed_begins_with_what_that_one_received() -> None:
    """S2: the failed run may have been written in part."""
    holding = held(1, 2)
    holding.leave(ORDER, "first")

    assert holding.begin(ORDER, "second", 101) is ReadPermission.GO
    assert holding.report(ORDER, "second", [lock(3)], lock_s=60, now_s=101)
    assert numbers_of(holding) == [1, 2, 3]


def test_one_reader_receives_and_others_wait() -> None:
    holding = held(1)
    assert holding.begin(ORDER, "second", 101) is ReadPermission.WAIT
    assert not holding.report(ORDER, "second", [lock(2)], lock_s=60, now_s=101)
    assert not holding.finish(ORDER, "second")


def test_a_silent_owner_is_succeeded_and_refused_when_it_speaks_again() -> None:
    """S2: a task that was cut off yields nothing that its successor does not have."""
    holding = held(1)
    assert holding.note_alive(ORDER, "first", 103)
    assert holding.begin(ORDER, "second", 103 + LEASE_S - 0.1) is ReadPermission.WAIT
    assert holding.begin(ORDER, "second", 103 + LEASE_S) is ReadPermission.GO

    assert not holding.report(ORDER, "first", [lock(2)], lock_s=60, now_s=110)
    assert not holding.finish(ORDER, "first")
    assert holding.finish(ORDER, "second")


def test_the_progress_of_a_reader_is_what_it_says_or_its_end() -> None:
    holding = held(1)
    seen = [holding.progress(ORDER)]
    assert holding.note_alive(ORDER, "first", 101, read_count=500)
    seen.append(holding.progress(ORDER))
    assert holding.note_alive(ORDER, "first", 102, read_count=500)
    assert holding.progress(ORDER) == seen[-1]
    assert not holding.note_alive(ORDER, "second", 102, read_count=9)
    assert holding.progress(ORDER) == seen[-1]
    holding.leave(ORDER, "first")
    assert holding.begin(ORDER, "second", 103) is ReadPermission.GO
    assert holding.progress(ORDER) not in seen


def test_an_order_that_is_over_is_known_to_nobody() -> None:
    holding = held(1)
    holding.written(1)
    assert holding.begin(ORDER, "late", 200) is ReadPermission.OVER
    assert not holding.report(ORDER, "first", [lock(2)], lock_s=60, now_s=200)
    holding.take(ORDER, 9)
    holding.close(ORDER)
    assert holding.begin(ORDER, "late", 200) is ReadPermission.OVER
    assert not holding.report(ORDER, "first", [lock(2)], lock_s=60, now_s=200)
    assert holding.remove_missing(ORDER, [1]) == 0


def test_deleted_messages_are_read_once() -> None:
    holding = LockLedger(deletes=True)
    holding.plan(ORDER, 1)
    assert holding.begin(ORDER, "first", 100) is ReadPermission.GO
    assert holding.begin(ORDER, "second", 200) is ReadPermission.DELETED


def test_locks_are_renewed_at_half_their_time_again_and_again() -> None:
    holding = held(1, 2, lock_s=60)
    assert due(holding, 129.9) == {}
    assert due(holding, 130) == {ORDER: [lock(1), lock(2)]}
    assert due(holding, 130.1) == {}
    assert due(holding, 160) == {ORDER: [lock(1), lock(2)]}


def test_a_renewal_that_failed_is_tried_again_while_the_locks_last() -> None:
    """S2: one answer that is lost costs no lock."""
    holding = held(1, lock_s=60)
    (renewal,) = holding.due(130)
    assert holding.due(150) == []  # It is under way.
    holding.renewed(renewal, None, began_s=140)
    assert due(holding, 140 + RENEW_AGAIN_S) == {ORDER: [lock(1)]}
    assert due(holding, 160) == {}
    assert due(holding, 140 + RENEW_AGAIN_S + 30) == {ORDER: [lock(1)]}


@pytest.mark.parametrize(
    ("seeming_s", "renewed_after_s"),
    [(60, 30), (30, 15), (3_600, 30), (1, 2.5), (-3_600, 2.5)],
)
def test_a_clock_that_is_wrong_is_believed_within_limits(
    seeming_s: float, renewed_after_s: float
) -> None:
    """S2: how long a lock lasts is told by two clocks, and one of them is not ours."""
    holding = held(1, lock_s=seeming_s)
    assert due(holding, 100 + renewed_after_s * 0.9) == {}
    assert due(holding, 100 + renewed_after_s) == {ORDER: [lock(1)]}


def test_a_lock_that_is_nearly_over_is_renewed_at_once() -> None:
    """The message of the long poll may have waited."""
    holding = LockLedger()
    holding.plan("pending", 9)
    holding.add_locks("pending", [lock(1)], lock_s=0.2, now_s=100)
    assert due(holding, 100.1) == {"pending": [lock(1)]}
    assert due(holding, 102.5) == {}
    assert due(holding, 102.6) == {"pending": [lock(1)]}


def test_many_small_receptions_are_renewed_together_in_slices() -> None:
    holding = held(*range(RENEWAL_COUNT_MAX))
    for number in range(5_000, 5_300):
        assert holding.report(ORDER, "first", [lock(number)], lock_s=60, now_s=101)
    assert [len(each.locks) for each in holding.due(131)] == [RENEWAL_COUNT_MAX, 300]


def test_a_lost_lock_is_counted_and_neither_renewed_nor_settled() -> None:
    holding = held(1, 2, lock_s=60)
    (renewal,) = holding.due(130)
    assert holding.renewed(renewal, [lock(1), lock(99)], began_s=130) == 1
    assert due(holding, 160) == {ORDER: [lock(2)]}
    assert holding.take(ORDER, 9) == [lock(2)]
    assert holding.counts.locks_lost == 1


def test_a_message_that_came_again_is_renewed_once() -> None:
    holding = held(1, lock_s=60)
    again = Lock("orders", 1, b"another-token-16")
    assert holding.report(ORDER, "first", [again], lock_s=60, now_s=100)
    assert due(holding, 130) == {ORDER: [again]}


def test_the_new_lock_of_a_message_is_not_lost_with_its_old_one() -> None:
    holding = held(1, lock_s=60)
    (renewal,) = holding.due(130)
    again = Lock("orders", 1, b"another-token-16")
    assert holding.report(ORDER, "first", [again], lock_s=60, now_s=131)
    assert holding.renewed(renewal, [lock(1)], began_s=130) == 0
    assert holding.take(ORDER, 9) == [again]


def test_what_is_being_settled_is_neither_renewed_nor_taken_for_lost() -> None:
    """S2: a renewal that comes after the completion finds no lock, and that is no loss."""
    holding = held(1, 2, lock_s=60)
    holding.finish(ORDER, "first")
    (renewal,) = holding.due(130)
    holding.written(1)
    assert holding.take(ORDER, 1) == [lock(1)]
    assert holding.renewed(renewal, [lock(1)], began_s=130) == 0
    assert due(holding, 160) == {ORDER: [lock(2)]}

    holding.put_back(ORDER, [lock(1)], now_s=161)
    assert due(holding, 161) == {ORDER: [lock(1)]}
    assert holding.take(ORDER, 9) == [lock(2), lock(1)]


def test_locks_that_could_not_be_settled_are_renewed_as_seldom_as_before() -> None:
    """S2: at half their time, once; also when a renewal found all of them taken."""
    holding = held(1, 2, lock_s=60)
    for now_s in (110, 120, 140):
        taken = holding.take(ORDER, 9)
        assert due(holding, now_s) == {}
        holding.put_back(ORDER, taken, now_s=now_s)
    assert due(holding, 140) == {ORDER: [lock(1), lock(2)]}
    assert due(holding, 169) == {}
    assert due(holding, 170) == {ORDER: [lock(1), lock(2)]}
    assert due(holding, 199) == {}


def test_a_message_that_moved_keeps_the_time_of_its_lock() -> None:
    holding = LockLedger()
    holding.plan("pending", 9)
    holding.add_locks("pending", [lock(1)], lock_s=10, now_s=100)
    holding.plan(ORDER, 1)
    assert holding.move("pending", ORDER)
    assert due(holding, 105) == {ORDER: [lock(1)]}
    assert due(holding, 110) == {ORDER: [lock(1)]}


def test_written_orders_are_settled_when_sealed_and_given_back_when_not() -> None:
    """S2: of a part that was not read to its end nobody knows which rows were written."""
    holding = held(1, 2, 3)
    holding.finish(ORDER, "first")
    holding.plan("1/1", 1)
    holding.add_locks("1/1", [lock(9)], lock_s=60, now_s=100)
    holding.plan("2/0", 2)

    assert holding.written(0) == {}
    written = holding.written(1)
    assert {name: each.is_sealed for name, each in written.items()} == {ORDER: True, "1/1": False}
    holding.ended(ORDER, len(holding.take(ORDER, 9)), 1)
    holding.ended("1/1", len(holding.take("1/1", 9)), 0)
    holding.close(ORDER)
    holding.close("1/1")
    assert holding.counts == Counts(received=4, settled=2, given_back=1, locks_lost=1)
    assert list(holding.written(9)) == ["2/0"]


def test_the_message_that_rang_moves_to_its_order_with_its_lock() -> None:
    holding = LockLedger()
    holding.plan("pending", 9)
    holding.add_locks("pending", [lock(1)], lock_s=60, now_s=100)
    holding.plan(ORDER, 1)
    assert holding.move("pending", ORDER)
    assert numbers_of(holding) == [1]
    assert due(holding, 130) == {ORDER: [lock(1)]}
    assert holding.counts.received == 1


def test_a_message_that_moves_while_it_is_renewed_is_renewed_on() -> None:
    holding = LockLedger()
    holding.plan("pending", 9)
    holding.add_locks("pending", [lock(1)], lock_s=60, now_s=100)
    (renewal,) = holding.due(130)
    holding.plan(ORDER, 1)
    assert holding.move("pending", ORDER)
    assert holding.renewed(renewal, [], began_s=130) == 0
    assert due(holding, 160) == {ORDER: [lock(1)]}


@pytest.mark.parametrize(("count", "messages_max"), [(1, 10), (3, 10), (10, 10), (64, 7), (3, 1)])
def test_shares_add_up_to_the_limit_and_nobody_has_none(count: int, messages_max: int) -> None:
    found = shares(count, BatchLimit(messages_max, 1_000))
    assert sum(each.messages_max for each in found) == messages_max
    assert len(found) == min(count, messages_max)
    assert min(each.messages_max for each in found) >= 1
    assert sum(each.bytes_max for each in found) <= 1_000


def test_every_queue_has_a_reader_before_one_has_two() -> None:
    assert places(["a", "b"], 2) == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
