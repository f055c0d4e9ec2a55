"""Throttling never diverts; trouble behind the primary hides messages and changes nothing."""

from __future__ import annotations

import asyncio
import time

from tests.integration.faults.switchboard import Switchboard
from tests.integration.pairing.faults.scene import BRIEF_S, Scene
from tests.support.broker_process import BrokerProcess
from twinbus.errors import ServerBusy
from twinbus.failover.events import BacklogQueueWithdrawn, Diverted, PingFailed, Restored

THROTTLE_WAIT_S = 10.0


async def test_a_throttled_send_that_cannot_wait_is_told_so(
    scene: Scene, faults: Switchboard
) -> None:
    """F2: the deadline does not allow the wait, so ServerBusy is raised; nothing is diverted."""
    with faults.on("throttle", scene.queue):
        error = await scene.send("value", timeout_s=BRIEF_S)
    assert isinstance(error, ServerBusy)
    assert scene.seen(Diverted) == []
    assert not await scene.at_home() and not await scene.in_backlog()


async def test_a_throttled_send_waits_ten_seconds_and_is_sent_once(
    broker: BrokerProcess, faults: Switchboard
) -> None:
    """F2: the client waits at least 10 s, and the message is where it belongs."""
    scenes = [Scene(broker, driver) for driver in ("amqp", "servicebus")]
    queue = broker.fresh_queue()
    for scene in scenes:
        await scene.open(queue)
    # The clock of the waits begins before the throttling ends.
    faults.add("throttle", queue, lasts_s=5.0)
    began_s = time.monotonic()
    errors = await asyncio.gather(
        *(scene.send(f"value-{n}", timeout_s=60.0) for n, scene in enumerate(scenes))
    )
    assert errors == [None, None]
    assert time.monotonic() - began_s >= THROTTLE_WAIT_S
    assert await scenes[0].at_home() == {"value-0": 1, "value-1": 1}
    for scene in scenes:
        assert scene.seen(Diverted) == []
        await scene.close()


async def test_another_queue_is_tried_when_a_backlog_queue_is_throttled(
    scene: Scene, faults_away: Switchboard
) -> None:
    """F2: from a backlog queue: try another one, and do not withdraw this one."""
    scene.primary.force_failover(scene.queue)
    scene.primary.hold(scene.queue)
    with faults_away.on("throttle", scene.backlog[0]):
        for number in range(8):
            await scene.change_senders()
            assert await scene.send(f"value-{number}") is None
    assert scene.seen(BacklogQueueWithdrawn) == []
    assert len(await scene.in_backlog()) == 8


async def test_a_throttled_ping_leaves_the_entity_diverted(
    scene: Scene, faults: Switchboard
) -> None:
    """F2 and P11: throttled on a ping: stay diverted."""
    scene.primary.force_failover(scene.queue)
    with faults.on("throttle", scene.queue):
        await scene.until(lambda: scene.seen(PingFailed))
        assert scene.seen(Restored) == []
    await scene.until_restored()


async def test_delayed_visibility_makes_one_copy_and_no_diversion(
    scene: Scene, faults: Switchboard
) -> None:
    """F3: acknowledged at once, visible later: no resend, no diversion; pings still succeed."""
    with faults.on("delayed-visibility", scene.queue, delay_s=1.0):
        for number in range(3):
            assert await scene.send(f"value-{number}") is None
        assert scene.seen(Diverted) == []
        scene.primary.force_failover(scene.queue)
        await scene.until_restored()
    await scene.until(lambda: scene.count_at_home() == 3)
    assert await scene.at_home() == {f"value-{number}": 1 for number in range(3)}
    assert not await scene.in_backlog()
