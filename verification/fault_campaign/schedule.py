"""Which fault happens when: a deck of cards, shuffled and dealt over time by a seed.

Rule 1: every deck holds every kind of fault, and kills of every role, so that each run sees all.
Rule 2: time is dealt in periods. A quarter of them is calm: bugs of recovery need a recovery to
        show. In the others one to four things go wrong, and end in them if they can.
Rule 3: same seed, same schedule; it is dealt before anything starts.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from verification.fault_campaign.cards import Fault, deck
from verification.fault_campaign.plan import Plan

__all__ = ["Fault", "schedule"]

CALM_SHARE: Final = 0.25
AT_ONCE_MAX: Final = 4
# A short deck has two dozen cards or so. The full one has twice as many, and stops of its
# processes outlast a lock of ten seconds.
DECK_S: Final = 40.0
FULL_DECK_S: Final = 280.0


def schedule(plan: Plan) -> list[Fault]:
    """The faults of a run, in their order: one deck after the other."""
    rng = Random(f"schedule-{plan.seed}")
    decks = max(1, round(plan.fault_s / (FULL_DECK_S if plan.has_spark else DECK_S)))
    length_s = plan.fault_s / decks
    return [
        fault for number in range(decks) for fault in _dealt(plan, rng, number * length_s, length_s)
    ]


def _dealt(plan: Plan, rng: Random, begin_s: float, length_s: float) -> list[Fault]:
    cards = deck(plan, rng)
    rng.shuffle(cards)
    periods: list[list[Fault]] = []
    while cards:
        count = min(rng.randint(1, AT_ONCE_MAX), len(cards))
        periods.append([cards.pop() for _ in range(count)])
    periods += [[] for _ in range(round(len(periods) * CALM_SHARE / (1 - CALM_SHARE)))]
    rng.shuffle(periods)
    period_s = length_s / len(periods)
    dealt = [
        fault
        for number, period in enumerate(periods)
        for fault in _timed(period, rng, begin_s + number * period_s, period_s)
    ]
    return sorted(dealt, key=lambda fault: fault.at_s)


def _timed(cards: list[Fault], rng: Random, begin_s: float, period_s: float) -> list[Fault]:
    """At once: the others happen while the longest one lasts."""
    longest_s = max((card.lasts_s for card in cards), default=0.0)
    begin_s += rng.uniform(0, max(0.0, period_s - longest_s))
    return [
        replace(card, at_s=begin_s + rng.uniform(0, longest_s - card.lasts_s)) for card in cards
    ]
