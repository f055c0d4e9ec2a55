"""Whose turn it is, by key and then by connection."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.broker.fairness.fair_queue import FairQueue, Flow

TURN = 3.0


def nothing() -> None:
    """A turn in which nothing happens."""


def serve(queue: FairQueue, cost: float, own_cost: float = 0.0, *, again: bool = True) -> Flow:
    """One turn, after which the flow wants the next one."""
    flow = queue.pop()
    assert flow is not None
    queue.charge(flow, cost, own_cost)
    if again:
        queue.push(flow)
    queue.served(flow.group)
    return flow


def test_a_quiet_key_is_next_however_many_connections_of_another_wait() -> None:
    """M13: it waits for one turn."""
    queue = FairQueue(TURN)
    loud = [queue.join(nothing, "loud") for _ in range(200)]
    quiet = queue.join(nothing, "quiet")
    for flow in loud:
        queue.push(flow)
    for _ in range(500):
        serve(queue, TURN)

    queue.push(quiet)

    assert quiet in (serve(queue, TURN, again=False), serve(queue, TURN, again=False))


def test_a_quiet_connection_is_next_beside_loud_ones_of_its_own_key() -> None:
    queue = FairQueue(TURN)
    for _ in range(40):
        queue.push(queue.join(nothing, "key"))
    for _ in range(500):
        serve(queue, TURN)
    quiet = queue.join(nothing, "key")

    queue.push(quiet)

    assert serve(queue, TURN) is quiet


def test_a_connection_that_asks_for_little_is_next_again_and_again() -> None:
    """M13: it has a turn's length in hand, and uses less than its share."""
    queue = FairQueue(TURN)
    for _ in range(40):
        queue.push(queue.join(nothing, "key"))
    for _ in range(200):
        serve(queue, TURN)
    quiet = queue.join(nothing, "key")
    for _ in range(100):
        for _ in range(4):
            serve(queue, TURN)
        queue.push(quiet)
        assert serve(queue, TURN / 60, again=False) is quiet


def test_small_requests_are_ahead_of_large_messages_whose_turns_are_shorter() -> None:
    """M13: a few turns for each commit, so the small ones use more time than each of the others."""
    queue = FairQueue(TURN)
    for _ in range(40):
        queue.push(queue.join(nothing, "key"))
    for _ in range(40):
        serve(queue, TURN / 30, 4 * TURN)
    quiet = queue.join(nothing, "key")
    for _ in range(1_000):
        for _ in range(8):
            serve(queue, TURN / 30, 4 * TURN)
        queue.push(quiet)
        assert serve(queue, TURN / 10, again=False) is quiet


def test_what_a_turn_took_beside_its_time_counts_within_a_key_only() -> None:
    queue = FairQueue(TURN)
    dear, cheap = queue.join(nothing, "key"), queue.join(nothing, "key")
    other = queue.join(nothing, "other")
    for flow in (dear, cheap, other):
        queue.push(flow)
    turns: Counter[Flow] = Counter()
    for _ in range(1_200):
        flow = queue.pop()
        assert flow is not None
        turns[flow] += 1
        queue.charge(flow, TURN, 2 * TURN if flow is dear else 0.0)
        queue.push(flow)
        queue.served(flow.group)

    assert abs(turns[other] - 600) <= 2
    assert abs(turns[cheap] - 3 * turns[dear]) <= 6


def test_who_was_quiet_for_long_has_saved_nothing_up() -> None:
    queue = FairQueue(TURN)
    loud, late = queue.join(nothing, "loud"), queue.join(nothing, "late")
    queue.push(loud)
    for _ in range(1_000):
        serve(queue, TURN)
    queue.push(late)

    turns = Counter(id(serve(queue, TURN)) for _ in range(100))

    assert abs(turns[id(loud)] - turns[id(late)]) <= 2


def test_work_that_was_done_at_once_counts_too_but_not_for_ever() -> None:
    """A connection that worked alone for an hour is not behind all others afterwards."""
    queue = FairQueue(TURN)
    old, new = queue.join(nothing, "key"), queue.join(nothing, "key")
    for _ in range(10_000):
        queue.charge(old, TURN)
    queue.push(new)
    queue.push(old)

    turns = Counter(id(serve(queue, TURN)) for _ in range(10))

    assert turns[id(old)] >= 4


def test_a_key_that_may_not_go_is_held_until_it_is_released() -> None:
    queue = FairQueue(TURN)
    may_go = False
    held = queue.join(nothing, "held", lambda: may_go)
    free = queue.join(nothing, "free")
    queue.push(held)
    queue.push(free)

    assert serve(queue, 1.0, again=False) is free
    assert queue.pop() is None
    assert not queue.has_ready
    queue.push(queue.join(nothing, "held", lambda: may_go))
    assert queue.pop() is None

    may_go = True
    assert queue.release()
    assert serve(queue, 1.0, again=False).group is held.group
    assert serve(queue, 1.0, again=False).group is held.group
    assert queue.pop() is None


def test_who_leaves_while_waiting_gets_no_turn() -> None:
    queue = FairQueue(TURN)
    flows = [queue.join(nothing, "key") for _ in range(5)]
    for flow in flows:
        queue.push(flow)
    queue.leave(flows[2])

    served = [serve(queue, 1.0, again=False) for _ in range(4)]

    assert flows[2] not in served
    assert queue.pop() is None
    for flow in served:
        queue.leave(flow)
    assert not queue._groups


def test_a_connection_that_shows_its_key_goes_on_waiting() -> None:
    queue = FairQueue(TURN)
    flow = queue.join(nothing)
    queue.push(flow)
    queue.move(flow, "key")
    assert serve(queue, 1.0, again=False) is flow


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 8))
def test_two_that_always_wait_get_the_same_time(seed: int, keys: int, connections: int) -> None:
    """M13, rule 1: their times differ by no more than two turns of each, at both levels."""
    chance = Random(seed)
    queue = FairQueue(TURN)
    for key in range(keys):
        for _ in range(chance.randint(1, connections)):
            queue.push(queue.join(nothing, key))
    by_key: Counter[object] = Counter()
    by_flow: Counter[Flow] = Counter()
    for _ in range(400):
        cost = chance.choice((0.1, 1.0, 3.0))
        flow = serve(queue, cost)
        by_key[flow.group.key] += int(cost * 10)
        by_flow[flow] += int(cost * 10)
    assert max(by_key.values()) - min(by_key[key] for key in range(keys)) <= 120
    for key in range(keys):
        times = [time for flow, time in by_flow.items() if flow.group.key == key]
        assert max(times) - min(times) <= 120
