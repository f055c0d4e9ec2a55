"""kill -9 of the primary, under load and on the documented timeline, through both drivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.pairing.faults.scene import AWAY, HOME, Scene
from tests.support.broker_process import BrokerProcess
from twinbus.drivers.amqp import AmqpDriver
from twinbus.failover.events import Diverted, PingSent, PossibleDuplicate, Suspected
from twinbus.mover.mover import Mover, MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules

LANES = 8
LOAD_S = 2.0
KILL_AFTER_S = 0.7
INTERVAL_S = 2.0
AT_ONCE_S = 0.5


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A primary in a process of its own, to be killed."""
    with BrokerProcess(tmp_path / "primary", namespace=HOME) as running:
        yield running


@pytest.fixture
def secondary(broker: BrokerProcess) -> str:
    return broker.connection_strings[AWAY]


async def bring_home(scene: Scene, primary: BrokerProcess, secondary: str) -> None:
    """Move the whole backlog, once."""
    drivers = [
        AmqpDriver.from_connection_string(each) for each in (secondary, primary.connection_string)
    ]
    options = MoverOptions(rules=DeliveryRules(primary_name=scene.name))
    await Mover(*drivers, scene.backlog, options).run(once=True)
    for driver in drivers:
        await driver.close()


async def test_no_send_fails_when_the_primary_is_killed_under_load(
    primary: BrokerProcess, secondary: str, driver: str
) -> None:
    """P6, P10 and Y1: interval 0: every send is acknowledged, and all that was is found."""
    scene = Scene(primary, driver, secondary=secondary)
    await scene.open()
    end_s = time.monotonic() + LOAD_S

    async def lane(name: str) -> None:
        number = 0
        while time.monotonic() < end_s:
            number += 1
            await scene.send(f"{name}-{number}")
            await asyncio.sleep(0.005)

    # Given a load, when the primary is killed in the middle of it
    lanes = [asyncio.create_task(lane(f"lane-{number}")) for number in range(LANES)]
    await asyncio.sleep(KILL_AFTER_S)
    await asyncio.to_thread(primary.kill)
    await asyncio.gather(*lanes)
    assert scene.failed == []
    assert scene.is_diverted

    # When it is back, and the backlog has come home
    await asyncio.to_thread(primary.restart)
    await scene.until_restored()
    await bring_home(scene, primary, secondary)

    # Then everything is there, and twice only what was announced
    found = await scene.at_home()
    assert set(found) == set(scene.acknowledged)
    announced = {each for event in scene.seen(PossibleDuplicate) for each in event.message_ids}
    assert {value for value, count in found.items() if count > 1} <= announced
    await scene.close()


async def test_with_an_interval_errors_surface_until_it_has_passed(
    primary: BrokerProcess, secondary: str, driver: str
) -> None:
    """P6 and P11: the timeline of the default interval, with 2 s in the place of a minute."""
    scene = Scene(
        primary,
        driver,
        secondary=secondary,
        failover_interval=INTERVAL_S,
        factory={"retry_total": 1, "retry_backoff_factor": 0.05},
    )
    await scene.open()
    assert await scene.send("before") is None
    await asyncio.to_thread(primary.kill)

    # When sends go on, one after the other, until one is acknowledged
    errors = []
    while (error := await scene.send(f"value-{len(errors)}")) is not None:
        errors.append(error)
        await asyncio.sleep(0.1)

    # Then errors surfaced for the whole interval from the first failure on, and not longer
    assert len(errors) > 1
    (suspected,), (diverted,) = scene.seen(Suspected), scene.seen(Diverted)
    assert diverted.at_s - suspected.at_s >= INTERVAL_S
    assert scene.seen(PingSent)[0].at_s - diverted.at_s < AT_ONCE_S
    assert set(await scene.in_backlog()) == {f"value-{len(errors)}"}

    # And it is as it was once the primary answers a ping
    await asyncio.to_thread(primary.restart)
    await scene.until_restored()
    assert await scene.send("after") is None
    assert {"before", "after"} <= set(await scene.at_home())
    await scene.close()


@pytest.fixture(autouse=True)
async def nothing_is_left_running() -> AsyncIterator[None]:
    """A pair that was closed leaves no task behind."""
    yield
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert [task for task in others if "twinbus" in task.get_name()] == []
