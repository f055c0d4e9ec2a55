"""How a capacity is shared by key and by connection."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.broker.fairness.shares import NO_TOKEN, SharedCapacity

CAPACITY = 1_000


def test_one_alone_may_use_everything() -> None:
    """M13: work-conserving."""
    shared = SharedCapacity(CAPACITY)
    loud = shared.join("loud")
    while shared.may_take(loud):
        shared.take(loud, 100)
    assert shared.used == CAPACITY


def test_a_quiet_key_is_admitted_although_a_loud_one_has_used_everything() -> None:
    """M13: who is below its share is never refused because of others."""
    shared = SharedCapacity(CAPACITY)
    loud, quiet = [shared.join("loud") for _ in range(40)], shared.join("quiet")
    for each in loud:
        shared.take(each, 50)
    assert not any(shared.may_take(each) for each in loud)
    assert shared.may_take(quiet)
    shared.take(quiet, 499)
    assert shared.may_take(quiet)
    shared.take(quiet, 1)
    assert not shared.may_take(quiet)


def test_a_quiet_connection_is_admitted_beside_loud_ones_of_its_own_key() -> None:
    shared = SharedCapacity(CAPACITY)
    loud, quiet = shared.join("key"), shared.join("key")
    shared.take(loud, 2_000)
    assert not shared.has_room(quiet.account)
    assert shared.may_take(quiet)
    assert not shared.may_take(loud)


def test_strangers_are_one_account_of_a_smaller_weight() -> None:
    shared = SharedCapacity(CAPACITY)
    strangers = [shared.join() for _ in range(100)]
    keyed = shared.join("key")
    shared.take(keyed, 1)
    for each in strangers:
        shared.take(each, 1)
    assert all(each.account.key is NO_TOKEN for each in strangers)
    assert shared.share(strangers[0].account) == CAPACITY / 5
    assert shared.share(keyed.account) == CAPACITY * 4 / 5


def test_what_a_connection_uses_moves_to_the_key_it_shows() -> None:
    shared = SharedCapacity(CAPACITY)
    holder = shared.join()
    shared.take(holder, 10)
    shared.move(holder, "key")
    assert (holder.account.key, holder.account.used, shared.used) == ("key", 10, 10)
    shared.give_back(holder, 10)
    shared.leave(holder)
    assert shared.used == 0
    assert not shared._accounts


OPERATIONS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 400), st.booleans()), max_size=200
)


@settings(deadline=None)
@given(OPERATIONS)
def test_nobody_below_its_share_is_refused_and_what_is_used_is_bounded(
    operations: list[tuple[int, int, bool]],
) -> None:
    """M13: whatever ten connections of four keys take and give back."""
    shared = SharedCapacity(CAPACITY)
    holders = [shared.join(f"key-{number % 4}") for number in range(10)]
    for number, amount, is_take in operations:
        holder = holders[number]
        if not is_take:
            shared.give_back(holder, min(amount, holder.used))
        elif shared.may_take(holder):
            shared.take(holder, amount)
        accounts = {each.account.key: each.account for each in holders}.values()
        # The sums are right, and so are the weights of those that use any.
        assert shared.used == sum(each.used for each in holders)
        assert all(
            account.used == sum(each.used for each in holders if each.account is account)
            for account in accounts
        )
        active = [account for account in accounts if account.used]
        assert shared._weight_in_use == len(active)
        for each in holders:
            account = each.account
            share = CAPACITY / (len(active) + (not account.used))
            # Rule 1 and rule 2, said in another way.
            if shared.used < CAPACITY or account.used < share:
                assert shared.may_take(each)
            connections = sum(1 for one in holders if one.account is account and one.used)
            if each.used < share / (connections + (not each.used)):
                assert shared.may_take(each)
        # Rule 3: the capacity, a share for each key, one for each connection, one amount each.
        assert shared.used <= 3 * CAPACITY + 400 * len(holders)


def test_a_key_does_not_escape_its_share_by_connecting_again() -> None:
    """M13: what gone connections still use counts for their key, and for one key only."""
    shared = SharedCapacity(4)
    quiet = shared.join("quiet")
    for _ in range(200):
        loud = shared.join("loud")
        if shared.has_room(loud.account):
            shared.take(loud, 1)
        shared.leave(loud)
    assert shared.used == 4
    assert shared.share(quiet.account) == 2


def test_an_account_that_is_not_used_any_more_is_forgotten() -> None:
    """M13: in whichever order its connection leaves and gives back."""
    shared = SharedCapacity(4)
    first, second = shared.join("first"), shared.join("second")
    for holder in (first, second):
        shared.take(holder, 1)
    shared.give_back(first, 1)
    shared.leave(first)
    shared.leave(second)
    shared.give_back(second, 1)
    assert shared.join("first").account is not first.account
    assert shared.join("second").account is not second.account
