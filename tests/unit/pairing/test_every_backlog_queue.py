"""A syphon and a look find every backlog queue of their primary, whatever their own count (Y9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from tests.support.mover.fake_namespace import FakeNamespace
from tests.support.mover.messages import backlog
from tests.support.pairing.pairs import OpenPair, eventually
from twinbus.aio import BrokeredMessage, NamespaceManager
from twinbus.drivers.administration import MessageCounts, QueueProperties
from twinbus.errors import AccessRefused, CommunicationError
from twinbus.mover import backlog_search
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.mover import Mover
from twinbus.mover.options import MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.pairing.backlog_monitor import BacklogReader
from twinbus.pairing.client.factory_options import DriverName
from twinbus.testing import NamespacePairFixture

DRIVERS: list[DriverName] = ["amqp", "servicebus"]
PREFIX = "east/x-servicebus-transfer/"


async def diverted(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, *, queue_count: int
) -> None:
    """Forty messages of an application with more queues than others know of, which then ends."""
    pair = await open_pair(backlog_queue_count=queue_count)
    with servicebus_pair.outage("refused"):
        for number in range(40):
            client = pair.primary.create_queue_client("orders")
            await client.send(BrokeredMessage(b"%d" % number))
    await pair.primary.close()
    await pair.secondary.close()


@pytest.mark.parametrize("may_manage", [True, False], ids=["manage", "listen"])
@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_hosted_syphon_drains_queues_that_it_did_not_make(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, driver: DriverName, may_manage: bool
) -> None:
    """Y9: it has two queues, and the sender had eight."""
    orders = servicebus_pair.primary.queue("orders")
    await diverted(open_pair, servicebus_pair, queue_count=8)
    more = {} if may_manage else {"manager": None}
    await open_pair(driver, enable_syphon=True, backlog_queue_count=2, **more)
    await eventually(lambda: orders.active_message_count == 40, "forty messages")


@pytest.mark.parametrize("may_manage", [True, False], ids=["manage", "listen"])
async def test_a_look_shows_queues_that_this_application_did_not_make(
    open_pair: OpenPair, servicebus_pair: NamespacePairFixture, may_manage: bool
) -> None:
    """Y9, P16: those that hold messages; the empty ones of others are nothing to it."""
    servicebus_pair.primary.queue("orders")
    await diverted(open_pair, servicebus_pair, queue_count=8)
    more = {} if may_manage else {"manager": None}
    pair = await open_pair(backlog_queue_count=2, **more)
    found = await pair.primary.backlog()
    assert len(found) > 2 and len({each.queue for each in found}) == len(found)
    assert all(each.oldest_sequence_number is not None for each in found[2:])
    if may_manage:
        assert sum(each.messages or 0 for each in found) == 40


# -- the search, over a namespace in memory ---------------------------------------------------


class Listing:
    """The queues of a fake namespace, as its management lists them."""

    def __init__(self, namespace: FakeNamespace) -> None:
        self._namespace = namespace
        self.asked = 0
        self.error: Exception | None = None

    async def __call__(self, prefix: str) -> AsyncGenerator[QueueProperties, None]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        for path, queue in self._namespace.queues.items():
            if path.startswith(prefix):
                counts = MessageCounts(active=len(queue.messages))
                yield QueueProperties(path=path, counts=counts)


def namespace(*indices: int, holding: Sequence[int] = ()) -> FakeNamespace:
    made = FakeNamespace(*(f"{PREFIX}{index}" for index in indices))
    for index in holding:
        made.put(f"{PREFIX}{index}", backlog(f"m{index}"))
    return made


def paths(*indices: int) -> tuple[str, ...]:
    return tuple(f"{PREFIX}{index}" for index in indices)


async def test_a_listing_finds_every_queue_that_holds_messages() -> None:
    """Y9: also behind a gap, in the order of their numbers; one request."""
    far = namespace(0, 1, 2, 10, 50, holding=(0, 50, 10))
    listing = Listing(far)
    search = BacklogSearch(far.receiver, "east", listing)
    assert await search.find_holding(paths(0, 1)) == paths(10, 50)
    assert (listing.asked, far.peek_count) == (1, 0)


async def test_without_manage_it_looks_upwards_until_three_are_missing() -> None:
    """Y9: 2 and 3 are missing, 4 is there; behind 7 three are missing."""
    far = namespace(0, 1, 4, 5, 7, 11, holding=(1, 4, 7, 11))
    listing = Listing(far)
    listing.error = AccessRefused("the claim Manage is missing")
    search = BacklogSearch(far.receiver, "east", listing)
    assert await search.find_holding(paths(0, 1)) == paths(4, 7)
    assert await search.find_holding(paths(0, 1)) == paths(4, 7)
    assert listing.asked == 1, "a namespace that does not list is asked once"
    assert await BacklogSearch(far.receiver, "east").find_holding(paths(0, 1)) == paths(4, 7)


async def test_a_queue_that_was_left_out_is_found_below_the_count() -> None:
    """Y9, P20: the pair did not use number 1, and an older one did."""
    far = namespace(0, 1, 2, holding=(1,))
    assert await BacklogSearch(far.receiver, "east").find_holding(paths(0, 2)) == paths(1)


async def test_a_secondary_that_does_not_answer_ends_the_search() -> None:
    """Y9: the next one may succeed; nothing is raised."""
    far = namespace(0, 1, 2, holding=(2,))
    far.peek_error = CommunicationError("gone")
    assert await BacklogSearch(far.receiver, "east").find_holding(paths(0)) == ()
    far.peek_error = None
    assert await BacklogSearch(far.receiver, "east").find_holding(paths(0)) == paths(2)


async def test_a_namespace_without_an_end_is_not_searched_for_ever() -> None:
    """Y9: bounded, whatever a namespace claims to have."""
    far = namespace(*range(2_000))
    assert await BacklogSearch(far.receiver, "east").find_holding(paths(0)) == ()
    assert far.peek_count <= backlog_search.PROBES_MAX + 3


# -- a mover ------------------------------------------------------------------------------------


def options() -> MoverOptions:
    return MoverOptions(rules=DeliveryRules(primary_name="east"), poll_s=900.0)


@pytest.mark.parametrize("once", [True, False], ids=["once", "on and on"])
async def test_a_mover_empties_queues_that_it_was_not_given(once: bool) -> None:
    """Y9, Y1."""
    far, home = namespace(0, 5, holding=(0, 5)), FakeNamespace("orders")
    mover = Mover(
        far, home, paths(0), options(), search=BacklogSearch(far.receiver, "east", Listing(far))
    )
    running = asyncio.create_task(mover.run(once=once))
    await eventually(lambda: sorted(home.queues["orders"].ids()) == ["m0", "m5"], "both")
    mover.stop()
    await running


async def test_a_mover_finds_a_queue_that_is_made_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Y9: while nothing moves by peeks alone, which an idle backlog does not pay for (Y3)."""
    monkeypatch.setattr(backlog_search, "IDLE_S", 0.05)
    far, home = namespace(0), FakeNamespace("orders")
    listing = Listing(far)
    mover = Mover(
        far, home, paths(0), options(), search=BacklogSearch(far.receiver, "east", listing)
    )
    running = asyncio.create_task(mover.run())
    await asyncio.sleep(0.3)
    assert listing.asked == 1
    far.queues[f"{PREFIX}1"] = type(far.queues[f"{PREFIX}0"])()
    far.put(f"{PREFIX}1", backlog("late"))
    await eventually(lambda: home.queues["orders"].ids() == ["late"], "the late one")
    mover.stop()
    await running


async def test_messages_that_come_home_make_a_mover_look_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Y9: an outage is over, and others may have used more queues; not before a minute is over."""
    monkeypatch.setattr(backlog_search, "BUSY_S", 0.2)
    far, home = namespace(0, 40), FakeNamespace("orders")
    listing = Listing(far)
    mover = Mover(
        far, home, paths(0), options(), search=BacklogSearch(far.receiver, "east", listing)
    )
    running = asyncio.create_task(mover.run())
    await eventually(lambda: listing.asked == 1, "the first listing")
    far.put(f"{PREFIX}40", backlog("far"))
    far.put(f"{PREFIX}0", backlog("near"))
    await eventually(lambda: sorted(home.queues["orders"].ids()) == ["far", "near"], "both")
    mover.stop()
    await running


async def test_a_reader_shows_more_queues_without_one_more_request() -> None:
    """Y9, C2: the listing that counts its own queues shows the others."""
    far = namespace(0, 1, 2, 3, holding=(3,))
    listing = Listing(far)

    class Manager:
        def get_queues(self, prefix: str = "") -> AsyncGenerator[QueueProperties, None]:
            return listing(prefix)

    manager: NamespaceManager = Manager()  # type: ignore[assignment]
    reader = BacklogReader(far, manager, paths(0, 1), search=BacklogSearch(far.receiver, "east"))
    found = await reader.read()
    assert [each.queue for each in found] == [*paths(0, 1, 3)]
    assert [each.messages for each in found] == [0, 0, 1]
    assert listing.asked == 1


async def test_a_queue_of_another_pair_is_shown_once_more_when_it_is_empty() -> None:
    """Y9, P16: so that `drained` and a level that fell are true; then it is left out again."""
    far = namespace(0, 1, 3, holding=(3,))
    reader = BacklogReader(far, None, paths(0), search=BacklogSearch(far.receiver, "east"))
    assert [each.queue for each in await reader.read()] == [*paths(0, 3)]
    far.peek_error = CommunicationError("gone")
    [_, shown] = await reader.read()
    assert not shown.reading.is_known
    far.peek_error = None
    far.queues[f"{PREFIX}3"].messages.clear()
    [_, shown] = await reader.read()
    assert shown.reading.is_known and shown.oldest_sequence_number is None
    assert [each.queue for each in await reader.read()] == [*paths(0)]
