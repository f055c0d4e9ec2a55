"""Slots of connections: who is evicted for whom, and who is counted where."""

from __future__ import annotations

import socket
from collections import Counter
from random import Random

import pytest

from twinbus.broker.fairness.connection_slots import (
    ASKED_MAX,
    LOOKED_AT_MAX,
    STEPS_MAX,
    ConnectionSlots,
    Slot,
    address_group,
)


class Entrance:
    """Slots whose evictions are written down."""

    def __init__(self, strangers_max: int, connections_max: int = 10) -> None:
        self.now_s = 0.0
        self.slots = ConnectionSlots(
            strangers_max=strangers_max,
            connections_max=connections_max,
            now_s=lambda: self.now_s,
        )
        self.evicted: list[str] = []

    def come(self, name: str, address: str = "10.0.0.1") -> Slot:
        return self.slots.admit(address, lambda: self.evicted.append(name))


def test_the_oldest_makes_room_for_a_newcomer() -> None:
    """M13: a newcomer always has a slot."""
    entrance = Entrance(2)
    for name in ("first", "second", "third", "fourth"):
        entrance.come(name)

    assert entrance.evicted == ["first", "second"]
    assert entrance.slots.stranger_count == 2


def test_the_address_with_the_most_strangers_loses_its_oldest() -> None:
    """M13: whoever floods evicts its own, however old the others are."""
    entrance = Entrance(5)
    entrance.come("honest", "10.0.0.2")
    for number in range(20):
        entrance.come(f"flood {number}", "10.0.0.1")

    assert entrance.evicted == [f"flood {number}" for number in range(16)]


def test_who_goes_on_outlives_those_who_wait() -> None:
    """M13: of one address, the one without a step for longest is evicted."""
    entrance = Entrance(3)
    slow = entrance.come("went on")
    entrance.come("waits")
    entrance.come("newer")
    slow.advanced()
    entrance.come("newest")

    assert entrance.evicted == ["waits"]


def test_steps_run_out() -> None:
    """M13: nobody stays by taking one step after the other."""
    entrance = Entrance(2)
    restless = entrance.come("restless")
    for number in range(STEPS_MAX + 1):
        restless.advanced()
        entrance.come(f"other {number}")
        assert ("restless" in entrance.evicted) is (number == STEPS_MAX)


def test_who_has_shown_a_token_is_not_evicted_and_takes_no_strangers_slot() -> None:
    """M13: the two are counted apart."""
    entrance = Entrance(1)
    trusted = entrance.come("trusted")
    assert trusted.authenticate()
    assert trusted.authenticate(), "a second token changes nothing"
    for name in ("one", "two"):
        entrance.come(name)

    assert entrance.evicted == ["one"]
    assert (entrance.slots.authenticated_count, entrance.slots.stranger_count) == (1, 1)
    trusted.leave()
    trusted.leave()
    assert entrance.slots.authenticated_count == 0


def test_one_authenticated_connection_too_many_stays_a_stranger() -> None:
    """M13: ``connections_max`` counts those with a token, and strangers cannot use it up."""
    entrance = Entrance(5, connections_max=1)
    first, second = entrance.come("first"), entrance.come("second")

    assert first.authenticate()
    assert not second.authenticate()
    first.leave()
    assert second.authenticate()


def test_who_was_evicted_cannot_come_back() -> None:
    entrance = Entrance(1)
    gone = entrance.come("gone")
    entrance.come("other")

    assert not gone.is_taken
    assert not gone.authenticate()
    gone.advanced()
    gone.leave()
    assert entrance.slots.stranger_count == 1


def test_who_is_evicted_for_a_newcomer_may_be_kept_open_before() -> None:
    """M13: not who is evicted because there is no descriptor left."""
    entrance = Entrance(1)
    kept: list[tuple[socket.socket, float]] = []
    entrance.slots.keep_open = lambda each, idle_s: kept.append((each, idle_s))
    with socket.socket() as connection:
        for name in ("first", "second", "third"):
            came = entrance.come(name)
            came.connection = connection
            entrance.now_s += 5
            if name == "second":
                came.advanced()
            entrance.now_s += 2
        # They went without a step for seven seconds, and for two
        assert (kept, entrance.evicted) == ([(connection, 7), (connection, 2)], ["first", "second"])
        entrance.come("without a connection")
        entrance.slots.evict_one()
        assert len(kept) == 3
        owed = entrance.come("owed")
        owed.connection, owed.is_owed = connection, lambda: True
        entrance.come("last")
        assert entrance.evicted[-1] == "owed" and len(kept) == 3


def test_who_waits_for_the_broker_outlives_who_does_not() -> None:
    """M13: on a busy machine a client is not evicted because the broker has not read it yet."""
    entrance = Entrance(3)
    waiting, unread, idle = [entrance.come(name) for name in ("waiting", "unread", "idle")]
    with socket.socket() as connection:
        waiting.is_owed = lambda: True
        unread.connection = connection
        entrance.slots.has_unread = lambda each: each is connection
        entrance.come("fourth")
        assert entrance.evicted == ["idle"]
        assert not idle.is_taken
        entrance.come("fifth")
        assert entrance.evicted == ["idle", "fourth"]


def test_who_is_about_to_show_its_token_outlives_who_is_not() -> None:
    """M13: also if it takes long; not at the expense of a newcomer."""
    entrance = Entrance(2)
    slow, idle = entrance.come("slow"), entrance.come("idle")
    slow.has_session = True
    idle.advanced()
    assert entrance.come("third").is_taken
    assert entrance.evicted == ["idle"]
    crowd = Entrance(LOOKED_AT_MAX + 4)
    for number in range(LOOKED_AT_MAX + 4):
        crowd.come(f"{number}").has_session = True
    assert crowd.come("newcomer").is_taken
    assert crowd.evicted == ["0"]


def test_a_newcomer_has_a_slot_also_if_all_others_wait_for_the_broker() -> None:
    """M13: the first of them goes."""
    entrance = Entrance(ASKED_MAX + 4)
    for number in range(ASKED_MAX + 4):
        entrance.come(f"{number}").is_owed = lambda: True
    assert entrance.come("newcomer").is_taken
    assert entrance.evicted == ["0"]


def test_the_broker_is_behind_when_all_who_could_go_wait_for_it() -> None:
    """M13: then newcomers wait, too, for a while (broker/listener/listeners.py)."""
    entrance = Entrance(2)
    first = entrance.come("first")
    assert not entrance.slots.is_behind, "there is room"
    first.is_owed = lambda: True
    second = entrance.come("second")
    assert not entrance.slots.is_behind, "the second waits for nothing"
    second.is_owed = lambda: True
    assert entrance.slots.is_behind


def test_nobody_is_evicted_where_nobody_is() -> None:
    slots = ConnectionSlots(strangers_max=1, connections_max=1)
    slots.evict_one()
    assert slots.evicted_count == 0


def test_pressure_begins_above_half() -> None:
    entrance = Entrance(4)
    first = entrance.come("one")
    entrance.come("two")
    assert not first.is_pressed
    entrance.come("three")
    assert first.is_pressed


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("", ""),
        ("not:an:address", "not:an:address"),
    ],
)
def test_an_ipv6_address_stands_for_its_network(address: str, group: str) -> None:
    """M13: a customer has 2**64 addresses there, and one place in the count."""
    assert address_group(address) == group


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_address_is_always_the_one_that_loses(seed: int) -> None:
    """M13: against a plain count of everybody, over random comings and goings."""
    chance = Random(seed)
    slots = ConnectionSlots(strangers_max=30, connections_max=10_000)
    inside: list[Slot] = []
    for _ in range(2_000):
        what = chance.random()
        if what < 0.6 or not inside:
            before = list(inside)
            new = slots.admit(f"10.0.0.{int(chance.expovariate(0.5))}", lambda: None)
            inside = [each for each in [*before, new] if each.is_taken]
            counts = [sum(other.group == each.group for other in inside) for each in inside]
            for gone in {*before, new} - {*inside}:
                assert sum(each.group == gone.group for each in inside) + 1 >= max(counts)
        elif what < 0.65:
            sizes = Counter(each.group for each in inside)
            slots.evict_one()
            (gone,) = (each for each in inside if not each.is_taken)
            inside.remove(gone)
            assert sizes[gone.group] == max(sizes.values())
        elif what < 0.7:
            inside.pop(chance.randrange(len(inside))).leave()
        elif what < 0.8:
            assert inside.pop(chance.randrange(len(inside))).authenticate()
        else:
            chance.choice(inside).advanced()
        assert slots.stranger_count == len(inside) <= 30


def test_a_key_with_all_connections_does_not_keep_another_one_out() -> None:
    """M13: connections are shared by key, and the first one has no more than it had."""
    entrance = Entrance(50, connections_max=4)
    for number in range(4):
        assert entrance.come(f"loud {number}").authenticate("loud")
    assert not entrance.come("one more").authenticate("loud")
    quiet = [entrance.come(f"quiet {number}") for number in range(3)]

    assert [each.authenticate("quiet") for each in quiet] == [True, True, False]
    assert entrance.slots.authenticated_count == 6
    assert not entrance.come("still too many").authenticate("loud")
