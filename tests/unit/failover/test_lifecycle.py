"""Close and fault of the two factories of a pair."""

from __future__ import annotations

import pytest

from twinbus.failover.pair_lifecycle import (
    CloseFactory,
    FactoryState,
    FaultFactory,
    PairLifecycle,
    Side,
    StopPings,
    StopSyphon,
)

PRIMARY, SECONDARY = Side.PRIMARY, Side.SECONDARY


@pytest.mark.parametrize("side", Side)
def test_when_one_faults_the_other_is_faulted_at_once(side: Side) -> None:
    """L1: in an application that hosts the syphon."""
    pair = PairLifecycle(hosts_syphon=True)
    effects = pair.faulted(side, 100, "the disk broke")
    faults = [each for each in effects if isinstance(each, FaultFactory)]
    assert [each.side for each in faults] == [side.other]
    assert effects[0] is faults[0], "before the syphon, which may need 5 s to stop"
    assert "the disk broke" in faults[0].reason
    assert StopSyphon(5.0) in effects


@pytest.mark.parametrize("side", Side)
def test_when_one_is_closed_the_other_has_five_seconds(side: Side) -> None:
    """L1: not closed within 5 s, it is faulted."""
    pair = PairLifecycle(hosts_syphon=True)
    pair.closed(side, 100)
    assert pair.next_timer() == 105
    assert pair.handle_timer(104.9) == []
    (fault,) = pair.handle_timer(105)
    assert isinstance(fault, FaultFactory)
    assert fault.side is side.other
    assert pair.next_timer() is None


@pytest.mark.parametrize("side", Side)
def test_a_partner_that_closes_in_time_is_not_faulted(side: Side) -> None:
    """L1: within the window."""
    pair = PairLifecycle(hosts_syphon=True)
    pair.closed(side, 100)
    pair.closed(side.other, 104)
    assert pair.next_timer() is None
    assert pair.handle_timer(105) == []
    assert set(pair.states.values()) == {FactoryState.CLOSED}


def test_closing_the_primary_stops_pings_and_syphon_and_closes_the_secondary() -> None:
    """L2: the query is stopped after the current chunk, at most 5 s."""
    pair = PairLifecycle(hosts_syphon=True)
    assert pair.closed(PRIMARY, 100) == [StopPings(), StopSyphon(5.0), CloseFactory(SECONDARY)]


def test_closing_the_secondary_leaves_closing_the_primary_to_its_owner() -> None:
    """L1: it is told by the fault if it does not."""
    pair = PairLifecycle(hosts_syphon=True)
    assert pair.closed(SECONDARY, 100) == [StopSyphon(5.0)]


def test_without_the_syphon_each_factory_goes_its_own_way() -> None:
    """L2: closing the primary of a pair stops pings."""
    pair = PairLifecycle(hosts_syphon=False)
    assert pair.closed(PRIMARY, 100) == [StopPings()]
    assert pair.next_timer() is None
    assert pair.faulted(SECONDARY, 101, "gone") == []


def test_the_first_end_of_a_side_counts() -> None:
    pair = PairLifecycle(hosts_syphon=True)
    pair.closed(PRIMARY, 100)
    assert pair.faulted(PRIMARY, 101, "too late") == []
    assert pair.closed(PRIMARY, 102) == []
    assert pair.states[PRIMARY] is FactoryState.CLOSED
    assert pair.next_timer() == 105


def test_a_fault_in_the_window_ends_the_window() -> None:
    pair = PairLifecycle(hosts_syphon=True)
    pair.closed(PRIMARY, 100)
    assert pair.faulted(SECONDARY, 102, "gone") == []
    assert pair.next_timer() is None
