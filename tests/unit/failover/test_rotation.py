"""Which backlog queue a diverted send uses."""

from __future__ import annotations

from random import Random

from twinbus.failover.backlog_rotation import (
    BacklogQueueChoice,
    BacklogRotation,
    QueueAffinity,
    RotationPolicy,
)
from twinbus.failover.events import BacklogQueueReinstated, BacklogQueueWithdrawn

QUEUES = ("east/x-servicebus-transfer/0", "east/x-servicebus-transfer/1")
FIRST, SECOND = QUEUES
POLICY = RotationPolicy(pause_s=2, pause_s_max=60, busy_s=10)


def rotation(*queues: str) -> BacklogRotation:
    return BacklogRotation(queues or QUEUES, POLICY)


def withdrawn(queue: str, at_s: float = 100) -> BacklogRotation:
    """Two queues, one of which failed at that moment."""
    made = rotation()
    made.failed(queue, at_s, "refused", is_probe=False)
    return made


def test_a_sender_picks_a_queue_at_random_and_keeps_it() -> None:
    """P8: chosen at random for each client, then kept by it."""
    made, rng = rotation(), Random(1)
    seats = [QueueAffinity() for _ in range(40)]
    first = [made.choose(affinity, 0, rng) for affinity in seats]
    again = [made.choose(affinity, 5, rng) for affinity in seats]
    assert first == again
    assert {choice.queue for choice in first if choice is not None} == set(QUEUES)


def test_a_failing_queue_leaves_the_rotation_for_all_senders() -> None:
    """P9: for every sender of the factory, at once."""
    made = rotation()
    assert made.failed(FIRST, 100, "refused", is_probe=False) == [
        BacklogQueueWithdrawn(FIRST, 100, "refused")
    ]
    assert made.withdrawn == (FIRST,)
    for seed in range(20):
        # Also for somebody who sat there.
        assert made.choose(QueueAffinity(FIRST), 100, Random(seed)) == BacklogQueueChoice(SECOND)


def test_a_withdrawn_queue_is_tried_by_one_send_after_a_pause() -> None:
    """P9: half-open."""
    made, rng = withdrawn(FIRST, at_s=100), Random(1)
    assert made.choose(QueueAffinity(SECOND), 101.9, rng) == BacklogQueueChoice(SECOND)
    assert made.choose(QueueAffinity(SECOND), 102, rng) == BacklogQueueChoice(FIRST, is_probe=True)
    # While that one asks, the others go on as before.
    assert made.choose(QueueAffinity(SECOND), 102, rng) == BacklogQueueChoice(SECOND)


def test_a_queue_whose_probe_succeeds_is_back() -> None:
    """P9: the rotation has it again."""
    made = withdrawn(FIRST, at_s=100)
    made.choose(QueueAffinity(), 102, Random(1))
    assert made.succeeded(FIRST, 103) == [BacklogQueueReinstated(FIRST, 103)]
    assert made.withdrawn == ()


def test_a_queue_whose_probe_fails_is_left_alone_for_longer() -> None:
    """P9: the pause doubles up to its limit, while another queue takes the messages."""
    made, rng = withdrawn(FIRST, at_s=0), Random(1)
    due_s = 2.0
    for pause_s in (4, 8, 16, 32, 60, 60, 60):
        assert made.choose(QueueAffinity(SECOND), due_s - 0.1, rng) == BacklogQueueChoice(SECOND)
        assert made.choose(QueueAffinity(SECOND), due_s, rng) == BacklogQueueChoice(
            FIRST, is_probe=True
        )
        assert made.failed(FIRST, due_s, "refused", is_probe=True) == []
        due_s += pause_s


def test_attempts_that_were_under_way_do_not_make_the_pause_longer() -> None:
    """P9: one withdrawal, however many sends met it."""
    made = withdrawn(FIRST, at_s=100)
    assert made.failed(FIRST, 101, "refused", is_probe=False) == []
    assert made.next_chance_s() is not None
    assert made.choose(QueueAffinity(), 102, Random(1)) == BacklogQueueChoice(FIRST, is_probe=True)


def test_a_late_success_proves_that_a_queue_lives() -> None:
    made = withdrawn(FIRST, at_s=100)
    assert made.succeeded(FIRST, 101) == [BacklogQueueReinstated(FIRST, 101)]


def test_a_cancelled_probe_lets_somebody_else_ask() -> None:
    """P9: otherwise the queue would be lost until the process ends."""
    made, rng = withdrawn(FIRST, at_s=100), Random(1)
    choice = made.choose(QueueAffinity(), 102, rng)
    assert choice == BacklogQueueChoice(FIRST, is_probe=True)
    made.release(choice)
    assert made.choose(QueueAffinity(), 102, rng) == BacklogQueueChoice(FIRST, is_probe=True)


def test_a_throttled_queue_is_passed_over_and_not_withdrawn() -> None:
    """F2: try another queue, do not withdraw this one."""
    made, rng = rotation(), Random(1)
    assert made.throttled(FIRST, 100, is_probe=False) == []
    assert made.withdrawn == ()
    assert made.choose(QueueAffinity(FIRST), 109, rng) == BacklogQueueChoice(SECOND)
    assert made.choose(QueueAffinity(FIRST), 110, rng) == BacklogQueueChoice(FIRST)


def test_a_probe_that_is_throttled_has_found_a_living_queue() -> None:
    """F2: it answers, so it returns, and is left in peace."""
    made = withdrawn(FIRST, at_s=100)
    made.choose(QueueAffinity(), 102, Random(1))
    assert made.throttled(FIRST, 103, is_probe=True) == [BacklogQueueReinstated(FIRST, 103)]
    assert made.choose(QueueAffinity(FIRST), 104, Random(1)) == BacklogQueueChoice(SECOND)


def test_what_a_send_has_tried_is_not_chosen_again() -> None:
    assert rotation().choose(
        QueueAffinity(FIRST), 0, Random(1), avoid={FIRST}
    ) == BacklogQueueChoice(SECOND)


def test_with_every_queue_withdrawn_there_is_no_choice_but_a_next_chance() -> None:
    """P9: the caller gets a typed error, or waits if it has the time."""
    made = withdrawn(FIRST, at_s=100)
    made.failed(SECOND, 101, "refused", is_probe=False)
    assert made.withdrawn == QUEUES
    assert made.choose(QueueAffinity(), 101, Random(1)) is None
    assert made.next_chance_s() == 102


def test_without_any_queue_in_the_rotation_pauses_do_not_grow() -> None:
    """P9: a secondary that was away for long is used again soon after it came back."""
    made, rng = rotation(), Random(1)
    for queue in QUEUES:
        made.failed(queue, 0, "refused", is_probe=False)
    due_s = 0.0
    for _ in range(20):
        chance_s = made.next_chance_s()
        assert chance_s is not None
        assert chance_s - due_s <= POLICY.pause_s, "nobody else takes the messages meanwhile"
        due_s = chance_s
        choice = made.choose(QueueAffinity(), due_s, rng)
        assert choice is not None
        assert choice.is_probe
        made.failed(choice.queue, due_s, "refused", is_probe=True)
    # The first that answers takes the messages, and the other is left alone for its long pause.
    choice = made.choose(QueueAffinity(), due_s + POLICY.pause_s, rng)
    assert choice is not None
    made.succeeded(choice.queue, due_s + POLICY.pause_s)
    assert made.choose(QueueAffinity(), due_s + 2 * POLICY.pause_s, rng) == BacklogQueueChoice(
        choice.queue
    )


def test_while_somebody_asks_after_the_last_queue_nobody_knows_the_next_chance() -> None:
    made = rotation(FIRST)
    made.failed(FIRST, 100, "refused", is_probe=False)
    made.choose(QueueAffinity(), 102, Random(1))
    assert made.next_chance_s() is None


def test_a_send_that_asked_in_vain_does_not_ask_the_next_while_another_is_well() -> None:
    """P9: its time would be gone before it came to the queue that answers."""
    made, rng = rotation("a", "b", "c"), Random(1)
    for queue in ("a", "b"):
        made.failed(queue, 100, "silent", is_probe=False)
    first = made.choose(QueueAffinity(), 110, rng)
    assert first is not None and first.is_probe
    made.failed(first.queue, 113, "silent", is_probe=True)
    assert made.choose(QueueAffinity(), 113, rng, avoid={first.queue}) == BacklogQueueChoice("c")
    # With none in use the others are asked, because there is nothing else.
    made.failed("c", 114, "silent", is_probe=False)
    second = made.choose(QueueAffinity(), 114, rng, avoid={first.queue, "c"})
    assert second is not None and second.is_probe


def test_the_queue_that_a_sender_will_use_is_known_before() -> None:
    """P25: the link that is opened ahead is the one that the next diverted send takes."""
    made, rng, affinity = rotation(), Random(1), QueueAffinity()
    queue = made.expect(affinity, 100, rng)
    assert queue in QUEUES and made.choose(affinity, 100, rng) == BacklogQueueChoice(queue)


def test_looking_ahead_asks_after_no_withdrawn_queue() -> None:
    """P9: the question after the pause belongs to a send."""
    made, rng = withdrawn(FIRST, at_s=100), Random(1)
    assert made.expect(QueueAffinity(FIRST), 102, rng) == SECOND
    assert made.choose(QueueAffinity(SECOND), 102, rng) == BacklogQueueChoice(FIRST, is_probe=True)
    made.failed(SECOND, 102, "refused", is_probe=False)
    assert made.expect(QueueAffinity(SECOND), 102, rng) is None
