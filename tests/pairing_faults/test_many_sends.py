"""A failover does not get slower with the load (P25): 1, 50 and 500 sends at once, both drivers."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.faults.switchboard import Switchboard
from tests.pairing_faults.scene import SEND_TIMEOUT_S, Scene
from twinbus.core.events import Diverted, Suspected

# What the rule allows from the first error to the diversion, and what a machine may add that does
# something else, too.
DIVERTED_S_MAX = 0.3
BUSY_S = 0.3
COUNTS = (1, 50, 500)
# For sends that wait in vain: three quarters of it are the primary's.
SILENT_S = 6.0


def busy_s() -> float:
    """More where more processes wait for each of its processors."""
    return BUSY_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


async def fail_over(scene: Scene, count: int, timeout_s: float) -> float:
    """Send so many at once; how long the last of them took after the diversion."""
    sent = await asyncio.gather(
        *(scene.send(f"during-{number}", timeout_s=timeout_s) for number in range(count))
    )
    ended_s = time.monotonic()
    assert sent == [None] * count, [each for each in sent if each is not None][:3]
    return ended_s - scene.seen(Diverted, scene.queue)[0].at_s


def first_error_to_diversion_s(scene: Scene) -> float:
    suspected, diverted = scene.seen(Suspected, scene.queue), scene.seen(Diverted, scene.queue)
    return diverted[0].at_s - suspected[0].at_s


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
    scene: Scene, faults: Switchboard, kind: str, how: str, count: int
) -> None:
    """P25: within 0.3 s; no send fails, and none waits for longer than a send to the backlog."""
    assert await scene.send("before") is None
    entity = scene.queue if kind == "cannot-send" else ""
    with faults.on(kind, entity=entity, how=how):
        last_s = await fail_over(scene, count, SEND_TIMEOUT_S)
    took_s = first_error_to_diversion_s(scene)
    print(
        f"{kind} {how}, {count}: diverted after {took_s:.3f} s, the last one {last_s:.3f} s later"
    )
    assert took_s < DIVERTED_S_MAX + busy_s()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("kind", "how"), [("cannot-send", "timeout"), ("cannot-contact", "black-hole")]
)
async def test_silence_diverts_after_the_first_attempts_share_however_many_sends_wait(
    scene: Scene, faults: Switchboard, kind: str, how: str, count: int
) -> None:
    """P25 and P22: the first send whose share of the deadline is over wakes all the others."""
    assert await scene.send("before") is None
    entity = scene.queue if kind == "cannot-send" else ""
    began_s = time.monotonic()
    with faults.on(kind, entity=entity, how=how):
        last_s = await fail_over(scene, count, SILENT_S)
    diverted_s = scene.seen(Diverted, scene.queue)[0].at_s - began_s
    print(
        f"{kind} {how}, {count}: diverted after {diverted_s:.3f} s, the last {last_s:.3f} s later"
    )
    assert diverted_s < 0.75 * SILENT_S + DIVERTED_S_MAX + busy_s()
