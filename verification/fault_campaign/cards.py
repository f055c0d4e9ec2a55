"""The faults that there are: a card for each, with whom it strikes and for how long.

    kill, end, stop   kill -9, SIGTERM, SIGSTOP for a while; then it is started again, or goes on
    line              the weather between a role and a broker
    disk, sync        a broker's disk is full or slow, or fails at one sync
    clock             a wall clock jumps, and back
    backlog           a backlog queue is deleted, disabled or full, or all but one are disabled
    destination       a queue of the primary is deleted, and made again
    key               an access key is replaced, and those who used it get the new one
    syphon            a second one for a while; the checkpoint of the one on Spark is wiped

Rule 1: the short deck needs neither Spark nor a compiler; the full one has everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from verification.fault_campaign.plan import (
    BROKERS,
    CLAIMS,
    DOOMED,
    LOCK_S,
    MOVING,
    PRIMARY,
    SECOND_SYPHON,
    SECONDARY,
    Plan,
    kind_of,
)
from verification.fault_campaign.proxy import BOTH, Direction, Weather

FAULT_S_MIN, FAULT_S_MAX = 0.5, 3.0
# A full run has minutes: there the same faults last longer.
FULL_STRETCH: Final = 2.5
# Of a send's timeout: a hole is shorter sometimes and longer at other times.
HOLE_SHARE_MAX: Final = 1.2
ONE_LEFT_S: Final = (4.0, 8.0)
# Beyond the lock of whatever it had in hand.
LONG_STOP_S: Final = (LOCK_S + 0.5, LOCK_S + 1.5)
SECOND_SYPHON_S: Final = (6.0, 10.0)
SLOW_SYNC_S: Final = (0.05, 0.3)
SYNC_FAILS_IN_MAX: Final = 20
SYNC_ERROR: Final = "sync: I/O error"
ONE_LEFT: Final = "backlog: all but one disabled"
# Longer than any run, so that a time tells by which clock it was read; a token lives for an hour.
BROKER_JUMPS_S: Final = (-7_200.0, -3_600.0, 3_600.0, 7_200.0)
CLIENT_JUMPS_S: Final = (-1_800.0, 1_800.0)

JVM, WORKER, SOURCE = "jvm", "worker", "source"
SPARK_PARTS: Final = (JVM, WORKER, SOURCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, and for how long."""

    at_s: float = 0.0
    name: str
    """What the table calls it; the first word decides what is done."""
    process: str
    """Who is killed or stopped, whose line, disk, clock or key it is, who has the queue."""
    broker: str = ""
    """The other end of the line, or where the key is for; empty for what happens to a process."""
    weather: Weather | None = None
    """None resets the line once."""
    lasts_s: float = 0.0
    part: str = ""
    """Which of a syphon's processes on Spark; the program itself unless told."""
    place: str = ""
    """The queue."""
    amount: float = 0.0
    """How slow, how far, how many."""

    @property
    def verb(self) -> str:
        return self.name.split()[0].rstrip(":")


def deck(plan: Plan, rng: Random) -> list[Fault]:
    """One card for everything that a run can meet, in no order."""
    cards = [*_kills(plan, rng), *_stops(plan, rng), *_lines(plan, rng), *_entities(plan, rng)]
    if not plan.has_spark:
        return cards
    return [*map(_stretched, [*cards, *_full(plan, rng)])]


def _stretched(card: Fault) -> Fault:
    is_brief = card.lasts_s <= FAULT_S_MAX
    return replace(card, lasts_s=card.lasts_s * FULL_STRETCH) if is_brief else card


def _one_of(plan: Plan, rng: Random, *kinds: str) -> str:
    return rng.choice([role for role in plan.roles if kind_of(role) in kinds])


def _one_of_each(plan: Plan, rng: Random, *kinds: str) -> list[str]:
    """Of those kinds that take part."""
    there = {kind_of(role) for role in plan.roles}
    return [_one_of(plan, rng, kind) for kind in kinds if kind in there]


def _kills(plan: Plan, rng: Random) -> list[Fault]:
    chosen = [*BROKERS, *_one_of_each(plan, rng, "sender", "receiver")]
    chosen += [role for role in plan.roles if kind_of(role) in MOVING]
    kills = [_card(f"kill {kind_of(name)}", name, rng) for name in chosen]
    if not plan.has_spark:  # A run of half a minute has time for a few more of the quick ones.
        kills += [_card("kill primary", PRIMARY, rng), rng.choice(_ends(plan, rng))]
    return kills


def _stops(plan: Plan, rng: Random) -> list[Fault]:
    if plan.has_spark:
        chosen = [*BROKERS, *_one_of_each(plan, rng, "sender", "receiver", "syphon")]
        long = [_card(f"stop {kind_of(name)}", name, rng, LONG_STOP_S) for name in chosen]
        return [*long, *_ends(plan, rng)]
    chosen = [_one_of(plan, rng, "sender", "receiver", *MOVING), rng.choice(BROKERS)]
    return [_card(f"stop {kind_of(name)}", name, rng) for name in chosen]


def _ends(plan: Plan, rng: Random) -> list[Fault]:
    chosen = [*BROKERS, *_one_of_each(plan, rng, "sender", "receiver", "syphon")]
    return [_card(f"end {kind_of(name)}", name, rng) for name in chosen]


# -- lines ----------------------------------------------------------------------------------------


def _lines(plan: Plan, rng: Random) -> list[Fault]:
    hole_s_max = plan.send_timeout_s * HOLE_SHARE_MAX
    weathers: list[tuple[str, Weather | None, float]] = [
        ("reset", None, 0.0),
        ("reset", None, 0.0),
        ("black hole", Weather(black_holes=BOTH), hole_s_max),
        ("black hole up", Weather(black_holes=frozenset({Direction.UP})), hole_s_max),
        ("black hole down", Weather(black_holes=frozenset({Direction.DOWN})), hole_s_max),
        ("half-open", Weather(is_half_open=True), FAULT_S_MAX),
        ("refused", Weather(refuses=True), FAULT_S_MAX),
        ("latency", Weather(latency_s=rng.uniform(0.05, 0.5), jitter_s=0.2), FAULT_S_MAX),
        ("narrow", Weather(bytes_per_s=rng.uniform(5_000, 50_000)), FAULT_S_MAX),
        ("single bytes", Weather(slice_bytes=1), FAULT_S_MAX),
        ("cut", Weather(cut_after_bytes=rng.randrange(1, 5_000)), FAULT_S_MAX),
        ("cut", Weather(cut_after_bytes=rng.randrange(1, 5_000)), FAULT_S_MAX),
    ]
    lines = [
        (role, broker)
        for role in plan.roles
        for broker in CLAIMS[kind_of(role)]
        if kind_of(role) != "prober"
    ]
    return [
        _line_card(f"line: {name}", lines, rng, weather, lasts_s_max)
        for name, weather, lasts_s_max in weathers
    ]


def _line_card(
    name: str,
    lines: Sequence[tuple[str, str]],
    rng: Random,
    weather: Weather | None,
    lasts_s_max: float,
) -> Fault:
    role, broker = rng.choice(lines)
    lasts_s = rng.uniform(min(FAULT_S_MIN, lasts_s_max), lasts_s_max)
    return Fault(name=name, process=role, broker=broker, weather=weather, lasts_s=lasts_s)


# -- what an operator does ------------------------------------------------------------------------


def _entities(plan: Plan, rng: Random) -> list[Fault]:
    # The first one is spared: sends go on as long as one lives.
    backlog = [
        _card(f"backlog: {what}", SECONDARY, rng, place=rng.choice(plan.backlog[1:]))
        for what in ("deleted", "disabled", "full")
    ]
    kind, broker = rng.choice(
        [(kind, broker) for kind in _holders(plan) for broker in CLAIMS[kind]]
    )
    return [
        *backlog,
        _card("destination: deleted", PRIMARY, rng, place=DOOMED),
        _card("key: rotated", kind, rng, broker=broker),
    ]


def _holders(plan: Plan) -> list[str]:
    """Kinds of processes whose keys may change; the prober's is none of anybody's business."""
    return sorted({kind_of(role) for role in plan.roles} - {"prober"})


# -- the full deck --------------------------------------------------------------------------------


def _full(plan: Plan, rng: Random) -> list[Fault]:
    syphon = _one_of(plan, rng, "syphon")
    parts = [_card(f"kill syphon's {part}", syphon, rng, part=part) for part in SPARK_PARTS]
    clients = ("sender", "receiver", "syphon")
    jumps = [
        *((name, rng.choice(BROKER_JUMPS_S)) for name in BROKERS),
        *((_one_of(plan, rng, kind), rng.choice(CLIENT_JUMPS_S)) for kind in clients),
    ]
    return [
        *parts,
        *(_card("disk: full", name, rng) for name in BROKERS),
        *(_card("sync: slow", name, rng, amount=rng.uniform(*SLOW_SYNC_S)) for name in BROKERS),
        *(
            _card(SYNC_ERROR, name, rng, amount=rng.randint(1, SYNC_FAILS_IN_MAX))
            for name in BROKERS
        ),
        *(
            _card(f"clock: {kind_of(name)} jumps", name, rng, amount=jump_s)
            for name, jump_s in jumps
        ),
        _card(ONE_LEFT, SECONDARY, rng, ONE_LEFT_S, place=plan.backlog[0]),
        _card("syphon: a second one", SECOND_SYPHON, rng, SECOND_SYPHON_S),
        _card("syphon: checkpoint wiped", syphon, rng),
    ]


def _card(
    name: str,
    process: str,
    rng: Random,
    lasts_s: tuple[float, float] = (FAULT_S_MIN, FAULT_S_MAX),
    *,
    broker: str = "",
    part: str = "",
    place: str = "",
    amount: float = 0.0,
) -> Fault:
    return Fault(
        name=name,
        process=process,
        broker=broker,
        lasts_s=rng.uniform(*lasts_s),
        part=part,
        place=place,
        amount=amount,
    )
