"""One seed, many seeds, many processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from verification.simulation import coverage
from verification.simulation.application import Factory, Namespaces, Parts
from verification.simulation.books import check_backlog, check_factory, check_mails
from verification.simulation.coverage import Visits
from verification.simulation.mover import Mover
from verification.simulation.plan import ACTIVE_S, FAULT_S_MAX, Deed, Fault, Letter, Plan
from verification.simulation.services import SILENT, WELL, Home, Mail, Service
from verification.simulation.watch import Watch, check_mail_over
from verification.simulation.world import Broken, World

# The last fault, then the longest send and the longest sleep.
HEALED_S: Final = ACTIVE_S + FAULT_S_MAX + 45.0
# After that: intervals, pings and the mover's pauses.
END_S: Final = HEALED_S + 120.0


class Simulation:
    """One schedule."""

    def __init__(self, seed: int, parts: Parts | None = None, *, keeps_trace: bool = False) -> None:
        self.world = World(seed, keeps_trace=keeps_trace)
        self.parts = parts or Parts()
        self.plan = Plan(self.world.plan_chance)
        self.namespaces = Namespaces(self.plan)
        self.watch = Watch(self.world, self.plan)
        self.mails: list[Mail] = []
        self.factories = [self._factory(index) for index in range(self.plan.factories)]
        self._schedule()
        self.by_id = {mail.message_id: mail for mail in self.mails}
        self.movers = [self._mover(index) for index in range(self.plan.movers)]

    def run(self) -> World:
        """Live through it; Broken when a promise was not kept."""
        world = self.world
        world.run(HEALED_S)
        self._heal()
        world.run(END_S)
        for mail in self.mails:
            if mail.is_submitted:
                check_mail_over(world, mail)
        for factory in self.factories:
            check_factory(world, factory)
        check_backlog(world, self.namespaces)
        check_mails(world, self.mails, self.namespaces)
        return world

    def _factory(self, index: int) -> Factory:
        return Factory(
            self.world, self.plan, self.parts, self.namespaces, self.watch, f"factory {index}"
        )

    def _mover(self, index: int) -> Mover:
        return self.parts.mover(
            self.world,
            self.namespaces.homes,
            self.namespaces.backlogs,
            self.by_id,
            self.parts.ledger,
            f"mover {index}",
        )

    # -- what happens -------------------------------------------------------------------------

    def _schedule(self) -> None:
        at, plan, chance = self.world.at, self.plan, self.world.plan_chance
        for number, letter in enumerate(plan.letters):
            mail = Mail(number, letter.path)
            mail.is_too_large = chance.random() < 0.02
            mail.is_unwanted = chance.random() < 0.02
            self.mails.append(mail)
            at(letter.at_s, None, self._submit, mail, letter)
        for fault in plan.faults:
            at(fault.at_s, None, self._fault, fault, fault.mode)
            at(fault.ends_s, None, self._fault, fault, WELL)
        for deed in plan.deeds:
            at(deed.at_s, None, self._do, deed)
        if chance.random() < 0.2:
            at(0.0, None, self._refuse, chance.choice(plan.queues), True)
            at(chance.uniform(0.0, 600.0), None, self._refuse, None, False)
        if plan.close is not None:
            at_s, how, which = plan.close
            at(at_s, None, self._end_factory, how, which)

    def _submit(self, mail: Mail, letter: Letter) -> None:
        factory = self.factories[letter.factory]
        if factory.is_alive and factory.is_open:
            # A sleeping process is called when it wakes up.
            self.world.at(self.world.now_s, factory, factory.submit, mail, letter)
        self.watch.disagreement(mail.path)

    def _refuse(self, queue: str | None, refuses: bool) -> None:
        """A backlog queue is made with another configuration, or they are all mended."""
        for name, backlog in self.namespaces.backlogs.items():
            if queue in (None, name):
                backlog.refuses = refuses

    def _fault(self, fault: Fault, mode: str) -> None:
        for service in self._targets(fault):
            service.mode = mode
            if mode == "gone" and isinstance(service, Home) and service.gone_s is None:
                service.gone_s = self.world.now_s
            self.world.note("{} is {}", service.name, mode)

    def _targets(self, fault: Fault) -> list[Service]:
        side = self.namespaces.homes if fault.is_primary else self.namespaces.backlogs
        services: list[Service] = list(side.values())
        return services if fault.which < 0 else [services[fault.which]]

    def _do(self, deed: Deed) -> None:
        what, world = deed.what, self.world
        world.note("{} {} ({})", what, deed.which, deed.amount)
        if what in ("force", "mark", "hold"):
            for factory in self.factories:
                world.at(world.now_s, factory, factory.command, what, self.plan.paths[deed.which])
        elif what == "jump":
            world.wall_offset_ms += int(deed.amount * 1000)
        elif what == "restart broker":
            self._restart_broker(deed.amount)
        elif what == "forge":
            self._forge(deed.which)
        elif what == "crash":
            self._crash(deed.which, deed.amount)
        elif what == "pause":
            self.factories[deed.which].sleep(world.now_s + deed.amount)
        elif what == "crash mover":
            self._crash_mover(deed.which, deed.amount)
        elif what == "pause mover":
            self.movers[deed.which].sleep(world.now_s + deed.amount)
        elif what == "cancel":
            self.factories[deed.which].cancel_one()

    def _restart_broker(self, for_s: float) -> None:
        """The secondary comes back with everything it held and without its locks."""
        for backlog in self.namespaces.backlogs.values():
            backlog.void_locks()
            backlog.mode = "unreachable"
            self.world.at(self.world.now_s + for_s, None, _mend, backlog)

    def _forge(self, which: int) -> None:
        """Somebody else writes into a backlog queue."""
        mail = Mail(len(self.mails), self.plan.paths[0])
        mail.is_forged = True
        self.mails.append(mail)
        self.namespaces.backlogs[self.plan.queues[which]].store(mail, self.world.now_s)

    def _crash(self, index: int, for_s: float) -> None:
        self.factories[index].kill()
        self.world.at(self.world.now_s + for_s, None, self._start_again, index)

    def _start_again(self, index: int) -> None:
        if not self.factories[index].is_alive:
            factory = self.factories[index] = self._factory(index)
            for path, home in self.namespaces.homes.items():
                if home.mode in (SILENT, "unreachable"):
                    factory.command("start", path)
                    self.world.seen.add("a process started during an outage")

    def _crash_mover(self, index: int, for_s: float) -> None:
        self.movers[index].kill()
        self.world.at(self.world.now_s + for_s, None, self._start_mover, index)

    def _start_mover(self, index: int) -> None:
        if not self.movers[index].is_alive:
            self.movers[index] = self._mover(index)

    def _end_factory(self, how: str, which: int) -> None:
        factory = self.factories[which]
        self.world.at(self.world.now_s, factory, factory.end, how)

    def _heal(self) -> None:
        """The faults are over, and somebody has looked after what was held."""
        self.world.is_healed = True
        for service in (*self.namespaces.homes.values(), *self.namespaces.backlogs.values()):
            service.mode = WELL
        for factory in self.factories:
            for path in self.plan.paths:
                if factory.failovers[path].health.value.startswith("held"):
                    factory.command("mark", path)


def _mend(service: Service) -> None:
    service.mode = WELL


@dataclass(slots=True)
class Outcome:
    """What a batch of seeds has shown."""

    schedules: int = 0
    events: int = 0
    simulated_s: float = 0.0
    visits: Visits = field(default_factory=Visits)
    broken: list[Broken] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.simulated_s += other.simulated_s
        self.visits.add(other.visits)
        self.broken += other.broken


def run_seeds(
    seeds: Iterable[int],
    parts: Parts | None = None,
    *,
    stops: Callable[[Outcome], bool] = lambda outcome: bool(outcome.broken),
) -> Outcome:
    """Run them one after the other, until ``stops`` has seen enough."""
    outcome = Outcome()
    coverage.CURRENT = outcome.visits
    for seed in seeds:
        simulation = Simulation(seed, parts)
        try:
            simulation.run()
        except Broken as broken:
            outcome.broken.append(broken)
        world = simulation.world
        outcome.events += world.events
        outcome.simulated_s += world.now_s
        outcome.visits.happened.update(world.seen)
        outcome.schedules += 1
        if stops(outcome):
            break
    return outcome
