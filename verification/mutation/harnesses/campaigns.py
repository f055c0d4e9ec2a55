"""A short campaign: senders, two brokers, a mover and receivers as processes, with faults that are
always the same (``verification/fault_campaign/``), and the checker's verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verification.fault_campaign.controller import Campaign
from verification.fault_campaign.plan import PRIMARY, Plan
from verification.fault_campaign.proxy import Direction, Weather
from verification.fault_campaign.schedule import Fault

PLAN = Plan(seed=1, messages=2_000, movers=1, syphons=0, drain_s_max=25.0, send_timeout_s=3.0)
MOVER = "mover-1"
# Longer than a send may take, so that whoever waits gives up.
HOLE_S = 5.0


def _hole(at_s: float, direction: Direction, process: str) -> Fault:
    return Fault(
        at_s=at_s,
        name=f"line: black hole {direction.name.lower()}",
        process=process,
        broker=PRIMARY,
        weather=Weather(black_holes=frozenset({direction})),
        lasts_s=HOLE_S,
    )


FAULTS = (
    # What the primary has not stored is gone.
    Fault(at_s=1.0, name="kill primary", process=PRIMARY, lasts_s=1.0),
    # What the mover sends does not arrive, and it cannot know.
    _hole(5.0, Direction.UP, MOVER),
    # What it sends arrives, and it cannot know. By then it must be at work again.
    _hole(13.0, Direction.DOWN, MOVER),
)


@dataclass(frozen=True, slots=True)
class ShortCampaign:
    """One run, and a second chance."""

    name: str = "campaign"
    unit: str = "runs"
    rounds_max: int = 4
    has_processes: bool = True

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        for number in range(self.rounds_max):
            home = directory / str(number)
            home.mkdir()
            verdict = asyncio.run(Campaign(PLAN, home, faults=FAULTS).run())
            yield [
                f"{kind}: {value}"
                for kind, values in verdict.complaints.items()
                for value in values
            ]
