"""What a seed chooses: how the pair is set up, what is sent when, and what goes wrong.

Rule 1: numbers are small: a short schedule with a few faults finds what a long one finds, and
        thousands of short ones fit into a minute.
Rule 2: a quarter of all days is calm; each other day has a theme, so that rare things meet.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from twinbus.failover.backoff import RetryPolicy
from twinbus.failover.state_machine import FailoverPolicy
from verification.simulation.services import BREAKS, MUTE, REFUSALS, SILENT, SLOW

PATHS: Final = ("orders", "invoices")
ACTIVE_S: Final = 45.0
"""How long messages are sent and faults begin."""
FAULT_S_MAX: Final = 30.0

OUTAGES: Final = (SILENT, SILENT, MUTE, "unreachable", "unreachable", "locked out", *BREAKS)
OTHER_TROUBLE: Final = (
    "busy",
    "busy",
    SLOW,
    SLOW,
    "locked out",
    "full",
    "disabled",
    "gone",
    "not allowed",
)
ALL_TROUBLE: Final = (*OUTAGES, *OTHER_TROUBLE)
assert set(ALL_TROUBLE) == {SILENT, MUTE, SLOW, *BREAKS, *REFUSALS}

# Pings that succeed, and sends that give up on the same answer: commands can overtake both.
OVERTAKEN: Final = (SLOW, SLOW, SLOW, SILENT)

CALM, OUTAGE, FLAPPING, BACKLOG, THROTTLED, COMMANDS, PROCESSES, HOMELESS, STORM = range(9)
DAYS: Final = (
    *(CALM, CALM, CALM, OUTAGE, FLAPPING, BACKLOG, BACKLOG, THROTTLED),
    *(COMMANDS, COMMANDS, COMMANDS, PROCESSES, HOMELESS, STORM),
)


class Fault(NamedTuple):
    """One entity, or a whole namespace, in a mode for a while."""

    at_s: float
    ends_s: float
    is_primary: bool
    which: int
    """The entity's number; -1 for all of that namespace."""
    mode: str


class Deed(NamedTuple):
    """Something that happens at a moment to one process or one entity."""

    at_s: float
    what: str
    which: int
    """A process, or a path."""
    amount: float = 0.0


class Letter(NamedTuple):
    """A message to be sent."""

    at_s: float
    path: str
    factory: int
    sender: int
    timeout_s: float


class Plan:
    """The choices of one seed."""

    __slots__ = (
        "close",
        "day",
        "deeds",
        "detects_duplicates",
        "factories",
        "faults",
        "hosts_syphon",
        "letters",
        "movers",
        "paths",
        "policy",
        "queues",
        "retry",
        "senders",
    )

    def __init__(self, chance: Random) -> None:
        pick = chance.choice
        self.day = pick(DAYS)
        self.paths = PATHS[: pick((1, 1, 2))]
        self.queues = tuple(f"home/x-servicebus-transfer/{i}" for i in range(pick((1, 2, 2, 3, 4))))
        self.factories = pick((1, 1, 1, 2))
        self.senders = pick((1, 2, 3))
        self.movers = pick((1, 1, 2))
        self.detects_duplicates = chance.random() < 0.4
        self.hosts_syphon = chance.random() < 0.5
        self.policy = FailoverPolicy(
            failover_interval_s=pick((0.0, 0.0, 0.0, 1.5, 5.0, 12.0)),
            ping_interval_s=pick((1.0, 2.0, 4.0, 10.0)),
        )
        self.retry = RetryPolicy(
            retry_total=pick((0, 1, 3)), retry_backoff_factor=pick((0.05, 0.4, 0.8))
        )
        self.faults = sorted(self._faults(chance))
        self.deeds = self._deeds(chance)
        self.letters = self._letters(chance)
        self.close: tuple[float, str, int] | None = None
        if chance.random() < 0.12:
            how = pick(("close primary", "close secondary", "fault primary", "fault secondary"))
            self.close = (chance.uniform(5.0, ACTIVE_S), how, chance.randrange(self.factories))

    def _letters(self, chance: Random) -> list[Letter]:
        """Some at any time, most in bursts around the moments at which something changes."""
        moments = [fault.at_s for fault in self.faults] + [fault.ends_s for fault in self.faults]
        moments += [deed.at_s for deed in self.deeds if deed.what in ("force", "mark")]
        timeout_s = chance.choice((1.2, 1.2, 4.0, 4.0, 12.0, 35.0))
        if self.day == COMMANDS:
            timeout_s = min(timeout_s, 1.2 if chance.random() < 0.7 else 4.0)
        letters = []
        for _ in range(chance.randint(6, 24 if self.day == COMMANDS else 16)):
            at_s = chance.random() * ACTIVE_S
            if moments and chance.random() < 0.7:
                at_s = max(0.0, chance.choice(moments) + chance.uniform(-1.0, 4.0))
            letters.append(
                Letter(
                    at_s,
                    chance.choice(self.paths),
                    chance.randrange(self.factories),
                    chance.randrange(self.senders),
                    timeout_s,
                )
            )
        return letters

    # -- what goes wrong ----------------------------------------------------------------------

    def _faults(self, chance: Random) -> list[Fault]:
        day = self.day
        if day == CALM:
            return []
        if day == FLAPPING:
            return self._flapping(chance)
        if day == COMMANDS:
            begins_s = chance.random() * 10.0
            return [Fault(begins_s, begins_s + FAULT_S_MAX, True, -1, chance.choice(OVERTAKEN))]
        faults = [self._fault(chance, True, OUTAGES)]
        if day == THROTTLED:
            faults += [self._fault(chance, chance.random() < 0.5, ("busy",)) for _ in range(4)]
        if day == HOMELESS:
            begins_s = faults[0].at_s + chance.random()
            faults.append(Fault(begins_s, begins_s + FAULT_S_MAX, True, -1, "gone"))
        if day in (BACKLOG, STORM):
            faults += [self._fault(chance, False, ALL_TROUBLE) for _ in range(chance.randint(1, 4))]
        if day == STORM or chance.random() < 0.3:
            faults.append(self._fault(chance, chance.random() < 0.5, ALL_TROUBLE))
        return faults

    def _fault(self, chance: Random, is_primary: bool, modes: tuple[str, ...]) -> Fault:
        at_s = chance.random() * ACTIVE_S * 0.7
        count = len(self.paths) if is_primary else len(self.queues)
        which = -1 if chance.random() < 0.4 else chance.randrange(count)
        ends_s = at_s + chance.choice((1.0, 6.0, FAULT_S_MAX)) * chance.random()
        return Fault(at_s, ends_s, is_primary, which, chance.choice(modes))

    def _flapping(self, chance: Random) -> list[Fault]:
        """Down and up again, in the rhythm of the pings."""
        period_s = self.policy.ping_interval_s * chance.uniform(0.5, 2.5)
        mode = chance.choice(OUTAGES)
        starts = (chance.uniform(1.0, 5.0) + period_s * turn for turn in range(6))
        return [Fault(at_s, at_s + period_s / 2, True, -1, mode) for at_s in starts]

    # -- what people and machines do ----------------------------------------------------------

    def _deeds(self, chance: Random) -> list[Deed]:
        deeds: list[Deed] = []
        day = self.day

        def add(what: str, which: int, amount: float = 0.0) -> None:
            deeds.append(Deed(chance.random() * ACTIVE_S, what, which, amount))

        if day in (COMMANDS, STORM) or chance.random() < 0.1:
            # Somebody tries things out, one after the other.
            begins_s = chance.random() * ACTIVE_S / 3
            path = chance.randrange(len(self.paths))
            for _ in range(chance.randint(3, 14)):
                what = chance.choice(("force", "force", "mark", "mark", "mark", "hold"))
                begins_s += chance.random() * 4.0
                deeds.append(Deed(begins_s, what, path))
                if what == "force" and chance.random() < 0.5:
                    # In one breath, before sends that wait have heard of the first command.
                    deeds.append(Deed(begins_s + chance.random() * 0.01, "hold", path))
        if day in (PROCESSES, STORM) or chance.random() < 0.1:
            for _ in range(chance.randint(1, 3)):
                what = chance.choice(("crash", "pause", "pause", "restart broker"))
                add(what, chance.randrange(self.factories), chance.choice((0.5, 4.0, 40.0)))
        if day != CALM and chance.random() < 0.5:
            for _ in range(chance.randint(1, 4)):
                what = chance.choice(("crash mover", "crash mover", "pause mover"))
                add(what, chance.randrange(self.movers), chance.choice((0.5, 4.0, 40.0)))
        if chance.random() < 0.3:
            for _ in range(chance.randint(1, 4)):
                add("cancel", chance.randrange(self.factories))
        if chance.random() < 0.05:
            add("forge", chance.randrange(len(self.queues)))
        if chance.random() < 0.2:
            add("jump", 0, chance.choice((-7_200.0, -30.0, 3_600.0)))
        return deeds
