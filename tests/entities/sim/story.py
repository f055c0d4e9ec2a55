"""A story: which steps happen, in which order, from one seed.

Each step is one thing that one party does. ``tell()`` strings them together; a property test may
choose them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.entities.sim.book import Phase
from tests.entities.sim.shadow import insist
from tests.entities.sim.world import Client, Delivery, World
from twinbus.broker.entities.outcome import ABANDON, COMPLETE, DEFER, RELEASE, DeadLetter, Outcome
from twinbus.broker.entities.queue import Queue

STEPS_MAX = 120
OUTCOMES: list[Outcome] = [COMPLETE, COMPLETE, ABANDON, DEFER, RELEASE, DeadLetter("bad", "why")]

Step = Callable[[World, Random], None]


def send(world: World, random: Random) -> None:
    ttl_ms = random.choice((None, None, None, 500, 4_000, 60_000))
    world.send(random.choice((1, 1, 1, 2, 5, 9)), ttl_ms=ttl_ms)


def schedule(world: World, random: Random) -> None:
    due_ms = world.now().wall_ms + random.choice((0, 200, 2_000, 2_000, 90_000))
    ttl_ms = random.choice((None, None, 500))
    world.send(random.choice((1, 1, 2, 3)), ttl_ms=ttl_ms, due_ms=due_ms)


def attach(world: World, random: Random) -> None:
    if len(world.clients) < 4:
        world.attach(
            _queue(world, random),
            deletes=random.random() < 0.15,
            unsettled_max=random.choice((1, 3, 50)),
            credit=random.choice((0, 1, 4, 100)),
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
    if not world.deliveries:
        return
    delivery = random.choice(world.deliveries[-8:])
    chosen = [i for i in delivery.entries if random.random() < 0.7] or list(delivery.entries)
    outcome = random.choice(OUTCOMES)
    if isinstance(outcome, DeadLetter) and delivery.queue is world.dead:
        outcome = COMPLETE
    mask = sum(1 << index for index in chosen)
    world.settle(delivery, mask, outcome, answered=random.random() < 0.8)


def renew(world: World, random: Random) -> None:
    if world.deliveries:
        delivery = random.choice(world.deliveries[-8:])
        world.renew(delivery, random.choice(list(delivery.entries.values())))


def take_deferred(world: World, random: Random) -> None:
    queue = _queue(world, random)
    is_dead = queue is world.dead
    entries = [e for e in world.book.of(Phase.DEFERRED, is_dead=is_dead) if e.seq is not None]
    if random.random() < 0.1:
        entries = [e for e in world.book.of(Phase.FREE, Phase.LOCKED) if e.seq is not None]
    if entries:
        chosen = random.sample(entries, min(len(entries), random.choice((1, 1, 2, 4))))
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
    seconds = random.choice((0.001, 0.2, 0.9, 2.0, 6.0, 40.0))
    world.advance(seconds, late=random.random() < 0.3)


def turn_the_wall_clock(world: World, random: Random) -> None:
    world.note("clock")
    world.loop.skew_ms += random.choice((-3_000, -200, 400, 5_000))
    world.book.at(world.now())


def fill_or_free_the_disk(world: World, random: Random) -> None:
    world.note("disk")
    world.store.is_full = not world.store.is_full


def crash(world: World, random: Random) -> None:
    world.crash()


def rest(world: World, random: Random) -> None:
    world.note("rest")
    world.rest()


WEIGHTS: dict[Step, int] = {
    send: 10, schedule: 2, attach: 4, detach: 2, credit: 5, pause: 2, drain: 1,
    settle: 14, renew: 2, take_deferred: 4, cancel: 2, peek: 1,
    turn: 24, write: 10, hear_of_write: 10, read: 8, hear_of_read: 8,
    wait: 5, turn_the_wall_clock: 1, fill_or_free_the_disk: 2, crash: 1, rest: 1,
}  # fmt: skip


def tell(world: World, steps: int = STEPS_MAX) -> None:
    """Run a story to its end and check that nothing was lost."""
    random = world.random
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    for step in random.choices(names, weights, k=random.randint(steps // 4, steps)):
        step(world, random)
    finish(world)


def finish(world: World) -> None:
    """Everybody comes back and takes what is left: then only the future may remain."""
    world.note("finish")
    world.rest()
    for client in list(world.clients):
        world.detach(client)
    # Every lock runs out, and then every lock of those that were returned at that moment.
    world.advance(40.0, late=False)
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


def _queue(world: World, random: Random) -> Queue:
    return world.dead if random.random() < 0.25 else world.queue


__all__ = ["STEPS_MAX", "WEIGHTS", "Client", "finish", "tell"]
