"""One subsystem of the primary crashes: only its entities go round, and doubt is announced."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.faults.switchboard import Switchboard
from tests.integration.pairing.faults.scene import HOME, Scene
from tests.support.broker_process import BrokerProcess
from twinbus.failover.events import Diverted, PossibleDuplicate

SENDS = 10
# Three quarters for the primary, which is down for all of them.
TIMEOUT_S, DOWN_S = 4.0, 3.5


@pytest.mark.parametrize("links", ["detach", "hang"])
async def test_only_the_entities_of_a_crashed_subsystem_are_diverted(
    scene: Scene, faults: Switchboard, broker: BrokerProcess, links: str
) -> None:
    """F4 and P6: its entities fail, the others notice nothing; a send in doubt may come twice."""
    other = broker.fresh_queue()
    broker.admin("PUT", f"/namespaces/{HOME}/subsystems", {scene.queue: "failing", other: "steady"})
    await scene.send("before")

    # When the subsystem crashes under sends, and what it was asked is done all the same
    sends = asyncio.gather(
        *(scene.send(f"value-{number}", timeout_s=TIMEOUT_S) for number in range(SENDS)),
        *(scene.send(f"other-{number}", queue=other) for number in range(SENDS)),
    )
    faults.add(
        "crash-subsystem",
        scope={"subsystem": "failing"},
        links=links,
        applied_probability=1.0,
        down_s=DOWN_S,
        slow_s=0.0,
    )
    assert await sends == [None] * 2 * SENDS
    assert await scene.send("during") is None
    await scene.until_restored()

    # Then only its entity went round, and whatever is there twice was announced by its id
    assert {event.path for event in scene.seen(Diverted)} == {scene.queue}
    copies = await scene.at_home() + await scene.in_backlog()
    assert set(copies) == {"before", "during", *(f"value-{number}" for number in range(SENDS))}
    announced = {each for event in scene.seen(PossibleDuplicate) for each in event.message_ids}
    assert {value for value, count in copies.items() if count > 1} <= announced
    assert set(copies.values()) <= {1, 2}
    assert set((await scene.at_home(other)).values()) == {1}
