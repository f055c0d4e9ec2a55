"""A story: which steps happen, in which order, from one seed.

Each step is one thing that one party does. ``tell()`` strings them together; a property test may
choose them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.support.queue_simulation.book import Phase
from tests.support.queue_simulation.shadow import insist
from tests.support.queue_simulation.world import Delivery, World
from twinbus.broker.engine.outcomes import (
    ABANDON,
    COMPLETE,
    DEFER,
    RELEASE,
    DeadLetter,
    SettlementOutcome,
)
from twinbus.broker.engine.queue import Queue

STEPS_MAX = 240
DEAD = DeadLetter("bad", "why")
OUTCOMES: list[SettlementOutcome] = [COMPLETE, COMPLETE, ABANDON, DEFER, DEFER, RELEASE, DEAD]

Step = Callable[[World, Random], None]


def send(world: World, random: Random) -> None:
    ttl_ms = random.choice((None, None, None, 500, 4_000, 60_000))
    world.send(random.choice((1, 1, 1, 2, 5, 9)), ttl_ms=ttl_ms)


def schedule(world: World, random: Random) -> None:
    due_ms = world.now().wall_ms + random.choice((0, 200, 500, 2_000, 2_000, 90_000))
    ttl_ms = random.choice((None, None, 500))
    world.send(random.choice((1, 1, 2, 3)), ttl_ms=ttl_ms, due_ms=due_ms)


def attach(world: World, random: Random) -> None:
    if len(world.clients) < 4:
        world.attach(
            _queue(world, random),
            deletes=random.random() < 0.15,
            unsettled_max=random.choice((1, 3, 50)),
            credit=random.choice((0, 1, 1, 4, 100)),
        )


def detach(world: World, random: Random) -> None:
    if world.clients:
        world.detach(random.choice(world.clients))


def credit(world: World, random: Random) -> None:
    if world.clients:
        world.grant_credit(random.choice(world.clients), random.choice((0, 1, 3, 100)))


def pause(world: World, random: Random) -> None:
    if world.clients:
        world.set_paused(random.choice(world.clients), random.random() < 0.4)


def drain(world: World, random: Random) -> None:
    if world.clients:
        world.drain(random.choice(world.clients))


def settle(world: World, random: Random) -> None:
    delivery = _delivery(world, random)
    if delivery is None:
        return
    chosen = [i for i in delivery.entries if random.random() < 0.7] or list(delivery.entries)
    outcome = random.choice(OUTCOMES)
    if isinstance(outcome, DeadLetter) and delivery.queue is world.dead:
        outcome = COMPLETE
    mask = sum(1 << index for index in chosen)
    world.settle(delivery, mask, outcome, answered=random.random() < 0.8)


def renew(world: World, random: Random) -> None:
    """Often halfway through the lock, and then until the first one would have ended."""
    delivery = _delivery(world, random)
    if delivery is None:
        return
    index = random.choice(list(delivery.entries))
    most_of_a_lock_s = 0.6 * world.description.lock_duration_ms / 1_000
    if random.random() < 0.5:
        world.advance(most_of_a_lock_s)
    world.renew(delivery, index)
    if random.random() < 0.5:
        world.advance(most_of_a_lock_s)


def take_deferred(world: World, random: Random) -> None:
    queue = _queue(world, random)
    is_dead = queue is world.dead
    phases = (Phase.DEFERRED,) if random.random() < 0.9 else (Phase.FREE, Phase.LOCKED)
    entries = [e for e in world.book.of(*phases, is_dead=is_dead) if e.seq is not None]
    if entries:
        chosen = random.sample(entries, min(len(entries), random.choice((1, 1, 1, 3))))
        world.take_deferred(queue, chosen, deletes=random.random() < 0.2)


def cancel(world: World, random: Random) -> None:
    entries = [e for e in world.book.of(Phase.SCHEDULED) if e.seq is not None]
    if entries:
        world.cancel(random.sample(entries, min(len(entries), random.choice((1, 1, 2)))))


def peek(world: World, random: Random) -> None:
    world.peek()


def turn(world: World, random: Random) -> None:
    world.loop.turn()
    world.book.at(world.now())


def write(world: World, random: Random) -> None:
    if world.writer.has_jobs:
        world.writer.run()


def hear_of_write(world: World, random: Random) -> None:
    if world.writer.has_answers:
        world.writer.tell()


def read(world: World, random: Random) -> None:
    if world.reader.has_jobs:
        world.reader.run()


def hear_of_read(world: World, random: Random) -> None:
    if world.reader.has_answers:
        world.reader.tell()


def wait(world: World, random: Random) -> None:
    world.note("wait")
    lock_s = world.description.lock_duration_ms / 1_000
    seconds = random.choice((0.001, 0.2, 0.5, 2.0, lock_s / 2, lock_s, lock_s + 0.2))
    world.advance(seconds, late=random.random() < 0.4)


def turn_the_wall_clock(world: World, random: Random) -> None:
    world.note("clock")
    world.loop.skew_ms += random.choice((-3_000, -200, 400, 5_000))
    world.book.at(world.now())


def fill_or_free_the_disk(world: World, random: Random) -> None:
    world.note("disk")
    world.store.is_full = not world.store.is_full
    # Whatever somebody wants right now is refused, or is the first to be stored again.
    settle(world, random)


def crash(world: World, random: Random) -> None:
    world.crash()


def rest(world: World, random: Random) -> None:
    world.note("rest")
    world.rest()


# What clients do, and what the machine room does.
DOINGS: dict[Step, int] = {
    send: 8, schedule: 3, attach: 5, detach: 2, credit: 5, pause: 1, drain: 1,
    settle: 16, renew: 4, take_deferred: 9, cancel: 4, peek: 1,
    wait: 4, turn_the_wall_clock: 1, fill_or_free_the_disk: 2, crash: 2, rest: 2,
}  # fmt: skip
WORKINGS: dict[Step, int] = {
    turn: 30, write: 12, hear_of_write: 12, read: 10, hear_of_read: 8,
}  # fmt: skip
STEPS: tuple[Step, ...] = (*DOINGS, *WORKINGS)
# Every story has its mood: some doings are frequent in it, some hardly ever happen, and one
# thread or another is slow.
DOING_MOODS = (0.1, 1, 1, 4)
WORKING_MOODS = (0.4, 1, 1, 2)


def tell(world: World, steps: int = STEPS_MAX) -> None:
    """Run a story to its end and check that nothing was lost."""
    random = world.random
    weights = [weight * random.choice(DOING_MOODS) for weight in DOINGS.values()]
    weights += [weight * random.choice(WORKING_MOODS) for weight in WORKINGS.values()]
    for step in random.choices(STEPS, weights, k=random.randint(steps // 4, steps)):
        step(world, random)
    finish(world)


def finish(world: World) -> None:
    """Everybody comes back and takes what is left: then only the future may remain."""
    world.note("finish")
    world.rest()
    for client in list(world.clients):
        world.detach(client)
    # Every lock runs out, and then every lock of those that were returned at that moment.
    world.advance(40.0)
    world.rest()
    for _ in range(40):
        if not _take_everything(world):
            break
    left = [e for e in world.book.entries.values() if e.phase not in _ENDS]
    insist(not left, "could not be received:", left)


_ENDS = (Phase.GONE, Phase.REFUSED, Phase.SCHEDULED)


def _take_everything(world: World) -> bool:
    """Receive and complete what can be received; whether there was anything."""
    clients = []
    for queue in (world.queue, world.dead):
        clients.append(world.attach(queue, deletes=False, unsettled_max=1_000, credit=1_000))
        deferred = list(world.book.of(Phase.DEFERRED, is_dead=queue is world.dead))
        if deferred:
            world.take_deferred(queue, deferred, deletes=False)
    world.deliveries.clear()
    world.rest()
    taken = list(world.deliveries)
    for delivery in taken:
        _complete(world, delivery)
    for client in clients:
        world.detach(client)
    world.rest()
    return bool(taken)


def _complete(world: World, delivery: Delivery) -> None:
    mask = sum(1 << index for index in delivery.entries)
    world.settle(delivery, mask, COMPLETE, answered=True)


def _delivery(world: World, random: Random) -> Delivery | None:
    """Mostly one that still holds something."""
    holding = [each for each in world.deliveries if each.held(-1)]
    if holding and random.random() < 0.85:
        return random.choice(holding)
    return random.choice(world.deliveries[-8:]) if world.deliveries else None


def _queue(world: World, random: Random) -> Queue:
    return world.dead if random.random() < 0.25 else world.queue
