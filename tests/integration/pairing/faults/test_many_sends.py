"""A failover does not get slower with the load (P25): 1, 50 and 500 sends at once, through both
drivers and the drop-in, for every fault that ends the sends to an entity."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.faults.switchboard import Switchboard
from tests.integration.pairing.faults.drop_in import DropInScene
from tests.integration.pairing.faults.scene import AWAY, HOME, SEND_TIMEOUT_S, Scene
from tests.support.broker_process import BrokerProcess
from twinbus.failover.events import Diverted, Suspected

# What the rule allows from the first error to the diversion, what a send to the backlog takes after
# it, and what a machine may add that runs three other tests, too: 500 sends are half a second of
# work. Without the rule it is seven to thirty seconds. The 0.3 s themselves are measured by
# `make bench ONLY=failover_many_sends`.
DIVERTED_S_MAX = 0.3
BACKLOG_SEND_S_MAX = 0.3
BUSY_S = 1.5
COUNTS = (1, 50, 500)
# For sends that wait in vain: all but a quarter of it are the primary's.
SILENT_S = 8.0
SHARE_S = 6.0

OpenScene = Callable[..., Any]


def busy_s() -> float:
    """More where more processes wait for each of its processors."""
    return BUSY_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.fixture(params=["amqp", "servicebus", "drop-in"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def open_scene(broker: BrokerProcess, driver: str) -> AsyncIterator[OpenScene]:
    """Opens applications that divert at the first failure and have sent one message."""
    async with AsyncExitStack() as stack:

        async def open_one(primary: BrokerProcess = broker) -> Scene:
            away = broker.connection_strings[AWAY]
            made = (
                DropInScene(primary, "", secondary=away)
                if driver == "drop-in"
                else Scene(primary, driver, secondary=away)
            )
            await made.open()
            stack.push_async_callback(made.close)
            assert await made.send("before") is None
            return made

        yield open_one


def scope(kind: str, scene: Scene) -> str:
    return scene.queue if kind == "cannot-send" else ""


async def send_many(scene: Scene, count: int, timeout_s: float = SEND_TIMEOUT_S) -> float:
    """Send so many at once, of which none may fail; when the last of them was acknowledged."""
    sent = await asyncio.gather(
        *(scene.send(f"during-{number}", timeout_s=timeout_s) for number in range(count))
    )
    ended_s = time.monotonic()
    assert sent == [None] * count, [each for each in sent if each is not None][:3]
    return ended_s


def check_last(scene: Scene, ended_s: float, what: str) -> None:
    """After the diversion no caller waits for longer than a send to the backlog."""
    last_s = ended_s - scene.seen(Diverted, scene.queue)[0].at_s
    print(f"{what}: the last one {last_s:.3f} s after the diversion")
    assert last_s < BACKLOG_SEND_S_MAX + busy_s()


def check_diverted(scene: Scene, what: str) -> None:
    """The first error diverts."""
    suspected, diverted = scene.seen(Suspected, scene.queue), scene.seen(Diverted, scene.queue)
    took_s = diverted[0].at_s - suspected[0].at_s
    print(f"{what}: diverted {took_s:.3f} s after the first error")
    assert took_s < DIVERTED_S_MAX + busy_s()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("cannot-send", "error"),
        ("cannot-send", "detach"),
        ("cannot-contact", "refuse"),
        ("cannot-contact", "reset"),
    ],
)
async def test_the_first_error_diverts_however_many_sends_wait(
    open_scene: OpenScene, faults: Switchboard, kind: str, how: str, count: int
) -> None:
    """P25: within 0.3 s; no send fails, and none waits for longer than a send to the backlog."""
    scene = await open_scene()
    with faults.on(kind, entity=scope(kind, scene), how=how):
        ended_s = await send_many(scene, count)
    check_diverted(scene, f"{kind} {how}, {count}")
    check_last(scene, ended_s, f"{kind} {how}, {count}")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("cannot-send", {"how": "timeout"}),
        ("cannot-contact", {"how": "black-hole"}),
        ("cannot-contact", {"how": "half-open", "direction": "to-client"}),
        ("cannot-contact", {"how": "half-open", "direction": "from-client"}),
    ],
    ids=["timeout", "black-hole", "half-open-to-client", "half-open-from-client"],
)
async def test_silence_diverts_after_the_first_attempts_share_however_many_sends_wait(
    open_scene: OpenScene, faults: Switchboard, kind: str, options: dict[str, str]
) -> None:
    """P25 and P22: the first send whose share of the deadline is over wakes all the others. The
    counts are applications that wait side by side, because waiting takes long."""
    scenes: Sequence[Scene] = [await open_scene() for _ in COUNTS]
    with ExitStack() as stack:
        for entity in {scope(kind, scene) for scene in scenes}:
            stack.enter_context(faults.on(kind, entity=entity, **options))
        began_s = time.monotonic()
        ended_s = await asyncio.gather(*map(send_many, scenes, COUNTS, [SILENT_S] * len(COUNTS)))
    for scene, count, each_s in zip(scenes, COUNTS, ended_s, strict=True):
        diverted_s = scene.seen(Diverted, scene.queue)[0].at_s - began_s
        assert diverted_s < SHARE_S + DIVERTED_S_MAX + busy_s(), count
        check_last(scene, each_s, f"{options}, {count}")


@pytest.mark.parametrize("how", ["slow", "gateway-error"])
async def test_what_ends_no_send_diverts_nothing(
    open_scene: OpenScene, faults: Switchboard, how: str
) -> None:
    """P6: a slow network, and a management that fails, are no outage for 50 sends either."""
    scene = await open_scene()
    with faults.on("cannot-contact", how=how, **({"latency_ms": 20} if how == "slow" else {})):
        await send_many(scene, 50)
    assert scene.seen(Diverted) == [] and scene.seen(Suspected) == []


async def test_a_killed_primary_fails_no_send_however_many_are_under_way(
    open_scene: OpenScene, tmp_path: Path
) -> None:
    """P25, P10: kill -9 with sends under way, and as many again that find it dead."""
    with BrokerProcess(tmp_path / "primary", namespace=HOME) as primary:
        scenes: Sequence[Scene] = [await open_scene(primary) for _ in COUNTS]
        under_way = [
            asyncio.create_task(send_many(scene, count))
            for scene, count in zip(scenes, COUNTS, strict=True)
        ]
        await asyncio.sleep(0)
        await asyncio.to_thread(primary.kill)
        later_s = await asyncio.gather(*map(send_many, scenes, COUNTS))
        earlier_s = await asyncio.gather(*under_way)
    for scene, count, *ended_s in zip(scenes, COUNTS, earlier_s, later_s, strict=True):
        check_diverted(scene, f"kill -9, {count}")
        # Those that were sent last may have begun after the diversion.
        check_last(scene, max(ended_s), f"kill -9, {count}")
