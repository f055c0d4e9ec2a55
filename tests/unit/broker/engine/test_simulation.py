"""Thousands of bad days of one queue, each from a seed, compared with a simple reference.

TWINBUS_STORIES      how many stories in all (2,000 unless told)
TWINBUS_STORY_SEED   the first seed; a failure prints the one to replay

The namespace, its queue machines and the management desk are the real ones; the loop, the
threads and the clock are simulated (tests/support/simulated_loop.py). What is promised stands in
sim/book.py and sim/shadow.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.queue_simulation import story
from tests.support.queue_simulation.mutants import PLANTS, Plant
from tests.support.queue_simulation.shadow import Broken
from tests.support.queue_simulation.world import World
from tests.support.simulated_loop import shortest_turns, without_turns
from twinbus.broker.engine import delivery_stream, queue, write_batch
from twinbus.broker.namespace import store_access
from twinbus.broker.storage.interface import Store
from twinbus.broker.storage.sqlite_store import SqliteStore

STORIES = int(os.environ.get("TWINBUS_STORIES", "2000"))
SEED = int(os.environ.get("TWINBUS_STORY_SEED", "1"))
STORIES_PER_TEST = 250
# A planted bug must show itself within so many stories.
STORIES_TO_SEE_A_BUG = 4_000

# What a story must have in it now and then; otherwise its checks check nothing.
SOMETIMES = (
    "cancelled", "crash", "crash between commit and acknowledgement", "deliver", "drain",
    "handed out again", "peek", "refused a send", "refused a settlement", "renewed",
    "settled without a lock", "took deferred", "took nothing",
)  # fmt: skip


@contextmanager
def small_limits() -> Iterator[None]:
    """Windows, chunks and turns so small that a story with twenty messages fills several."""
    with pytest.MonkeyPatch.context() as patch, without_turns():
        for module in (delivery_stream, store_access):
            patch.setattr(module, "READ_AHEAD_BYTES", 300)
            patch.setattr(module, "READ_AHEAD_CHUNKS", 3)
        patch.setattr(queue, "GRANT_COUNT_MAX", 4)
        patch.setattr(write_batch, "CHUNK_COUNT_MAX", 6)
        yield


@pytest.fixture(autouse=True)
def _small_and_quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    # A full disk is told to the log every time, which is right and would be a megabyte here.
    caplog.set_level("CRITICAL", "twinbus.broker")
    with small_limits():
        yield


def told(seed: int, store: Store | None = None) -> World:
    """The world after the story of a seed."""
    world = World(seed, store)
    try:
        story.tell(world)
    except BaseException:
        print("\n".join(world.trace))
        replay = f"TWINBUS_STORY_SEED={seed} TWINBUS_STORIES=1"
        print(
            f"SEED={seed} REPLAY: {replay} python -m pytest "
            "tests/unit/broker/engine/test_simulation.py"
        )
        raise
    return world


def tell_stories(count: int) -> None:
    for seed in range(count):
        story.tell(World(seed))


@pytest.mark.parametrize("first_seed", range(SEED, SEED + STORIES, STORIES_PER_TEST))
def test_nothing_is_lost_repeated_or_stranded_in_any_of_the_stories(first_seed: int) -> None:
    """M2 and M8: whatever happens when, the promises of the book are kept."""
    seen: Counter[str] = Counter()
    for seed in range(first_seed, min(first_seed + STORIES_PER_TEST, SEED + STORIES)):
        seen += told(seed).seen

    if STORIES >= STORIES_PER_TEST:
        assert [each for each in SOMETIMES if not seen[each]] == []


@pytest.mark.slow
def test_the_promises_hold_where_everything_is_done_in_the_smallest_steps() -> None:
    """M2, M8 and M13: whatever happens between two steps of a transaction or of a turn."""
    with shortest_turns():
        for seed in range(SEED, SEED + STORIES_PER_TEST):
            told(seed)


@pytest.mark.parametrize("seed", range(SEED, SEED + 24))
def test_the_promises_hold_on_a_real_disk(seed: int, tmp_path: Path) -> None:
    """M2 and M8: the same stories over SQLite, whose audit runs at every restart."""
    store = SqliteStore(tmp_path / "store.db")

    told(seed, store)

    store.verify_all()
    store.close()


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_one_seed_is_one_story(seed: int) -> None:
    assert told(seed).trace == told(seed).trace


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_seen(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """M2 and M8: the checks above can fail, and do for each of these mistakes."""
    plant(monkeypatch)

    with pytest.raises((Broken, ValueError, RuntimeError, AssertionError)):
        tell_stories(STORIES_TO_SEE_A_BUG)


class Improvised(RuleBasedStateMachine):
    """A story whose steps Hypothesis chooses, and shortens when one breaks a promise."""

    def __init__(self) -> None:
        super().__init__()
        self._limits = small_limits()
        self._limits.__enter__()
        self.world = World(SEED)

    def teardown(self) -> None:
        try:
            story.finish(self.world)
        finally:
            self._limits.__exit__(None, None, None)


def _as_rule(step: story.Step) -> Callable[..., None]:
    def play(self: Improvised, random: object) -> None:
        step(self.world, random)  # type: ignore[arg-type]

    play.__name__ = step.__name__
    return rule(random=st.randoms(use_true_random=False))(play)


for _step in story.STEPS:
    setattr(Improvised, _step.__name__, _as_rule(_step))

Improvised.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class TestImprovised(Improvised.TestCase):  # type: ignore[misc]
    """M2 and M8: also when the steps are chosen to be awkward."""
