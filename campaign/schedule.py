"""Which fault happens when: a deck of cards, shuffled and dealt over time by a seed.

Rule 1: every deck holds every kind of fault, and kills of every role, so that each run sees all.
Rule 2: a quarter of the time is calm: bugs of recovery need a recovery to show.
Rule 3: same seed, same schedule; it is dealt before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from campaign.plan import BROKERS, MOVING, PRIMARY, SECONDARY, Plan, kind_of
from campaign.proxy import BOTH, Direction, Weather

CALM_SHARE: Final = 0.25
# About two dozen cards: more than one fault at a time, and time to recover in between.
DECK_S: Final = 30.0
# Shorter than the checker's allowance for what hangs in the network.
FAULT_S_MIN, FAULT_S_MAX = 0.5, 3.0
# Less than a send's timeout sometimes and more at other times, without eating the whole run.
HOLE_S_MAX: Final = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, and for how long."""

    at_s: float
    name: str
    """What the table calls it."""
    process: str
    """Who is killed or stopped, or whose line it is."""
    broker: str = ""
    """The other end of the line; empty for what happens to a process."""
    weather: Weather | None = None
    """None resets the line once."""
    lasts_s: float = 0.0

    @property
    def is_kill(self) -> bool:
        return self.name.startswith("kill")

    @property
    def is_pause(self) -> bool:
        return self.name.startswith("stop")


def schedule(plan: Plan) -> list[Fault]:
    """The faults of a run, in their order: one deck after the other."""
    rng = Random(f"schedule-{plan.seed}")
    decks = max(1, round(plan.fault_s / DECK_S))
    length_s = plan.fault_s / decks
    return [
        fault for number in range(decks) for fault in _deck(plan, rng, number * length_s, length_s)
    ]


def _deck(plan: Plan, rng: Random, begin_s: float, length_s: float) -> list[Fault]:
    cards = [*_kills(plan, rng), *_pauses(plan, rng), *_lines(plan, rng)]
    # Every card has a slot, and some slots are empty.
    slots: list[Fault | None] = [*cards, *[None] * round(len(cards) * CALM_SHARE)]
    rng.shuffle(slots)
    step_s = length_s / len(slots)
    return [
        replace(card, at_s=begin_s + (number + rng.random()) * step_s)
        for number, card in enumerate(slots)
        if card is not None
    ]


def _kills(plan: Plan, rng: Random) -> list[Fault]:
    senders, receivers, movers = (
        [role for role in plan.roles if kind_of(role) in kinds]
        for kinds in (("sender",), ("receiver",), MOVING)
    )
    chosen = [
        *(PRIMARY, PRIMARY, SECONDARY),
        *(rng.choice(senders) for _ in range(2)),
        rng.choice(receivers),
        *movers,
    ]
    return [_card(f"kill {kind_of(name)}", name, rng) for name in chosen]


def _pauses(plan: Plan, rng: Random) -> list[Fault]:
    chosen = [rng.choice(plan.roles), rng.choice(BROKERS)]
    return [_card(f"stop {kind_of(name)} for a while", name, rng) for name in chosen]


def _lines(plan: Plan, rng: Random) -> list[Fault]:
    weathers: list[tuple[str, Weather | None, float]] = [
        ("reset", None, 0.0),
        ("reset", None, 0.0),
        ("black hole", Weather(black_holes=BOTH), HOLE_S_MAX),
        ("black hole up", Weather(black_holes=frozenset({Direction.UP})), HOLE_S_MAX),
        ("black hole down", Weather(black_holes=frozenset({Direction.DOWN})), HOLE_S_MAX),
        ("half-open", Weather(is_half_open=True), FAULT_S_MAX),
        ("refused", Weather(refuses=True), FAULT_S_MAX),
        ("latency", Weather(latency_s=rng.uniform(0.05, 0.5), jitter_s=0.2), FAULT_S_MAX),
        ("narrow", Weather(bytes_per_s=rng.uniform(5_000, 50_000)), FAULT_S_MAX),
        ("single bytes", Weather(slice_bytes=1), FAULT_S_MAX),
        ("cut", Weather(cut_after_bytes=rng.randrange(1, 5_000)), FAULT_S_MAX),
        ("cut", Weather(cut_after_bytes=rng.randrange(1, 5_000)), FAULT_S_MAX),
    ]
    return [
        _line_card(f"line: {name}", plan, rng, weather, lasts_s_max)
        for name, weather, lasts_s_max in weathers
    ]


def _line_card(
    name: str, plan: Plan, rng: Random, weather: Weather | None, lasts_s_max: float
) -> Fault:
    lines = [(role, broker) for role in plan.roles for broker in BROKERS if _talks(role, broker)]
    role, broker = rng.choice(lines)
    lasts_s = rng.uniform(min(FAULT_S_MIN, lasts_s_max), lasts_s_max)
    return Fault(at_s=0, name=name, process=role, broker=broker, weather=weather, lasts_s=lasts_s)


def _talks(role: str, broker: str) -> bool:
    """Receivers receive from the primary only."""
    return broker == PRIMARY or not role.startswith("receiver")


def _card(name: str, process: str, rng: Random) -> Fault:
    lasts_s = rng.uniform(FAULT_S_MIN, FAULT_S_MAX)
    return Fault(at_s=0, name=name, process=process, lasts_s=lasts_s)
