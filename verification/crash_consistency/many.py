"""The parts of a run in pieces, on all cores.

In a module of its own: a spawned process cannot find what stands in ``__main__``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.pool import Pool
from random import Random
from typing import Any, NamedTuple, TypeVar

from verification.crash_consistency import disk_errors, kills, power, recovery, rot
from verification.crash_consistency.tally import Tally

PIECE_POINTS = 200
_Point = TypeVar("_Point")


class Piece(NamedTuple):
    """Work for one core: some seconds of it."""

    points: int
    work: Callable[..., Tally]
    arguments: tuple[Any, ...]


class Part(NamedTuple):
    name: str
    pieces: list[Piece]


def power_part(states: int, seed: int) -> Part:
    pieces = []
    for first in range(0, states, power.STATES_PER_RUN):
        count = min(power.STATES_PER_RUN, states - first)
        pieces.append(Piece(count, power.cut_power, (seed + len(pieces), count)))
    return Part(power.PART, pieces)


def kill_part(stories: Sequence[str], every: int, seed: int) -> Part:
    return _over_stories(kills.PART, kills.kill, kills.points_of, stories, every, seed)


def error_part(stories: Sequence[str], every: int, seed: int) -> Part:
    part, work = disk_errors.PART, disk_errors.fail
    return _over_stories(part, work, disk_errors.faults_of, stories, every, seed)


def rot_part(every: int, seed: int) -> Part:
    places = _sample(rot.image(seed).places(), every, seed)
    size = 10 * PIECE_POINTS
    slices = [places[at : at + size] for at in range(0, len(places), size)]
    return Part(rot.PART, [Piece(len(some), rot.flip, (some, seed)) for some in slices])


# The doctor reads a store three times and writes it once: one in so many is enough.
DOCTOR_STATES_EVERY = 100
DOCTOR_FLIPS_EVERY = 50
DOCTOR_KILLS_EVERY = 25
DOCTOR_ERRORS_EVERY = 50


def doctor_part(states: int, stories: Sequence[str], every: int, seed: int) -> Part:
    pieces = []
    for work, points_of, one_in in (
        (recovery.look_after_kills, kills.points_of, DOCTOR_KILLS_EVERY),
        (recovery.look_after_errors, disk_errors.faults_of, DOCTOR_ERRORS_EVERY),
    ):
        part = _over_stories(recovery.PART, work, points_of, stories, every * one_in, seed)
        pieces += part.pieces
    count = -(-states // DOCTOR_STATES_EVERY)
    for first in range(0, count, PIECE_POINTS):
        some = min(PIECE_POINTS, count - first)
        arguments = (seed + first // PIECE_POINTS, some)
        pieces.append(Piece(some, recovery.look_after_crashes, arguments))
    places = _sample(rot.image(seed).places(), every * DOCTOR_FLIPS_EVERY, seed)
    for at in range(0, len(places), PIECE_POINTS):
        chosen = places[at : at + PIECE_POINTS]
        pieces.append(Piece(len(chosen), recovery.look_after_flips, (chosen, seed)))
    return Part(recovery.PART, pieces)


def _over_stories(
    part: str,
    work: Callable[..., Tally],
    points_of: Callable[[str], list[Any]],
    stories: Sequence[str],
    every: int,
    seed: int,
) -> Part:
    pieces = []
    for name in stories:
        points = _sample(points_of(name), every, seed)
        # Later points take longer: each piece gets some of all.
        count = -(-len(points) // PIECE_POINTS)
        for at in range(count):
            some = points[at::count]
            pieces.append(Piece(len(some), work, (name, some, seed)))
    return Part(part, pieces)


def _sample(points: list[_Point], every: int, seed: int) -> list[_Point]:
    """All of them, or one in so many, the same ones for a seed."""
    if every == 1:
        return points
    chosen = Random(f"sample {seed}").sample(range(len(points)), -(-len(points) // every))
    return [points[at] for at in sorted(chosen)]


def _run(piece: Piece) -> Tally:
    return piece.work(*piece.arguments)


@contextmanager
def cores(workers: int) -> Iterator[Pool | None]:
    """Processes of their own, or none for one worker. They are spawned: a fork of a process with
    threads may never end."""
    if workers == 1:
        yield None
        return
    with get_context("spawn").Pool(workers) as pool:
        yield pool


def run_part(part: Part, pool: Pool | None) -> Tally:
    """Run all pieces, and say now and then how far that is."""
    tally, began_s = Tally(part.name), time.monotonic()
    total = sum(piece.points for piece in part.pieces)
    told = 0
    results = map(_run, part.pieces) if pool is None else pool.imap_unordered(_run, part.pieces)
    for done, result in enumerate(results, start=1):
        tally.add(result)
        for complaint in result.complaints:
            print(f"{complaint}\n    REPLAY: {complaint.replay}", flush=True)
        if tally.points >= told + total / 10 or done == len(part.pieces):
            told = tally.points
            rate = told / (time.monotonic() - began_s)
            print(f"{part.name:<14}{told:>10,} points  {rate:,.0f} a second", flush=True)
    return tally
