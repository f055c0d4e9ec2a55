"""Which pair a backlog message belongs to."""

from __future__ import annotations

import pytest

from twinbus.drivers.interface import NamespaceAddress
from twinbus.encoding.pair_mark import address_in, is_accepted, pair_mark, shared_scan_s
from twinbus.pairing.backlog_queues import backlog_queue, drift_of, owner_address, owner_mark


def mark(host: str, port: int = 5671, name: str = "contoso") -> str:
    return owner_mark(NamespaceAddress(host, port), name)


@pytest.mark.parametrize(
    "other",
    [
        mark("Contoso.ServiceBus.Windows.NET"),
        mark("contoso.servicebus.windows.net", 443),
        mark("contoso.servicebus.windows.net", 5672, "Contoso"),
    ],
)
def test_a_primary_has_one_mark_through_all_its_usual_doors(other: str) -> None:
    """P21: every process of an application writes the same one."""
    assert mark("contoso.servicebus.windows.net") == other


def test_all_names_of_the_loopback_are_one() -> None:
    """P21: localhost here and 127.0.0.1 there is one broker; another port is another one."""
    marks = {mark(host, 5700) for host in ("localhost", "127.0.0.1", "::1", "LOCALHOST")}
    assert len(marks) == 1
    assert mark("localhost", 5701) not in marks
    assert owner_address(NamespaceAddress("127.0.0.1", 5672)) == "localhost"


@pytest.mark.parametrize(
    "other",
    [
        mark("contoso.servicebus.chinacloudapi.cn"),
        mark("contoso.servicebus.windows.net", 5700),
        mark("contoso.servicebus.windows.net", name="fabrikam"),
        mark("10.0.0.4"),
    ],
)
def test_another_address_or_name_is_another_pair(other: str) -> None:
    """P21."""
    own = mark("contoso.servicebus.windows.net")
    assert own != other and not is_accepted(other, own, ())


def test_a_mark_shows_the_address_and_has_a_bound() -> None:
    """P13, P21: two addresses that are cut alike have different ids."""
    assert address_in(pair_mark("contoso.example", "contoso")) == "contoso.example"
    long, longer = (pair_mark("h" * length, "contoso") for length in (200, 201))
    assert len(long) == len(longer) == 113 and long != longer


def test_who_may_be_accepted() -> None:
    """P21: by its address, its id, its whole mark, or everybody; without a mark it is moved."""
    own, other = mark("new.example"), mark("old.example")
    assert is_accepted("", own, ()) and is_accepted(own, own, ())
    assert not is_accepted(other, own, ("another.example",))
    for accepted in ("old.example", "OLD.example", other, other[:12], "*"):
        assert is_accepted(other, own, ("another.example", accepted))
    assert is_accepted(other, "", ()), "a syphon that does not know its pair moves everything"


def test_a_queue_carries_the_mark_of_who_made_it() -> None:
    """P21: another pair that finds it is told; a queue without a mark is anybody's."""
    own, other = mark("new.example"), mark("old.example")
    made = backlog_queue("contoso/x-servicebus-transfer/0", own)
    assert own in made.user_metadata
    assert drift_of(made, own) == () == drift_of(made)
    (drift,) = drift_of(made, other)
    assert str(drift).endswith("owner is new.example, not old.example")
    assert drift_of(backlog_queue("contoso/x-servicebus-transfer/0"), own) == ()


def test_a_shared_queue_is_looked_through_more_often_the_less_it_shows() -> None:
    """P21, C2: a look is charged for the messages that it shows."""
    assert shared_scan_s(3_600, 1) == 60
    assert shared_scan_s(3_600, 100) == 360
    assert shared_scan_s(3_600, 10_000) == 36_000
    assert shared_scan_s(10, 1) == 10
