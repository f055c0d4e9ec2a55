"""One request to a service and what becomes of it: taken, refused, lost, late, answered twice.

    ask --> travels --> arrives: the service acts or not --> answer travels --> reply
                                                         '-> no answer ------> reply: timeout

Rule 1: ``reply`` is called once, by the answer or by the timeout, whichever is first; what comes
        later belongs to nobody, except where somebody ``hears_late``: late and repeated answers
        of pings reach the core.
Rule 2: what was done and what was answered are two things, and only the checks see both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twinbus.errors import OperationTimeout, ServiceError
from verification.simulation.services import BREAKS, MUTE, REFUSALS, SILENT, SLOW, WELL, Service
from verification.simulation.world import Process, World

TRAVEL_S: Final = 0.05
# One packet in twenty meets a traffic jam: longer than the shortest timeouts.
JAM_SHARE: Final = 0.05
JAM_S: Final = 2.5
SLOW_ANSWER_S: Final = 9.0
# A request that nobody answered may still be carried out after everybody gave up on it.
LATE_ACT_S: Final = 25.0
REPEAT_SHARE: Final = 0.03


class Request:
    """One request under way. ``act`` runs at the service and may return an error as its answer."""

    __slots__ = (
        "_act",
        "_owner",
        "_reply",
        "_world",
        "answers",
        "error",
        "facts",
        "hears_late",
        "is_over",
        "result",
        "service",
        "was_done",
    )

    def __init__(
        self,
        world: World,
        owner: Process,
        service: Service,
        act: Callable[[Request], ServiceError | None],
        reply: Callable[[Request], None],
        *,
        timeout_s: float,
        facts: Any = None,
        hears_late: bool = False,
    ) -> None:
        self._world, self._owner, self._act, self._reply = world, owner, act, reply
        self.service, self.facts = service, facts
        self.hears_late = hears_late
        self.is_over = False
        self.was_done = False
        """Whether the service carried it out, told or not."""
        self.answers = 0
        self.error: ServiceError | None = None
        self.result: Any = None
        now_s = world.now_s
        world.at(now_s + self._travel_s(), None, self._arrive)
        world.at(now_s + timeout_s, owner, self._time_is_up)

    @property
    def is_unclear(self) -> bool:
        """Whether whoever asked cannot know if it was carried out."""
        return not self.is_over or (self.error is not None and self.error.is_ambiguous)

    def give_up(self) -> None:
        """Whoever asked went away: the answer is for nobody."""
        self.is_over = True
        self.error = OperationTimeout("nobody waits for this any more")

    def _travel_s(self) -> float:
        chance = self._world.network_chance
        if self._world.is_healed or chance.random() >= JAM_SHARE:
            return chance.random() * TRAVEL_S
        return chance.random() * JAM_S

    def _arrive(self) -> None:
        mode, chance = self.service.mode, self._world.network_chance
        if mode is WELL:
            self._answer(self._carry_out())
        elif mode in REFUSALS:
            self._answer(REFUSALS[mode](f"{self.service.name} is {mode}"))
        elif mode in BREAKS:
            if chance.random() < 0.5:
                self._carry_out()
            self._answer(BREAKS[mode](f"{self.service.name} is {mode}"))
        elif mode is SLOW:
            self._answer(self._carry_out(), after_s=chance.random() * SLOW_ANSWER_S)
        elif mode is MUTE:
            self._carry_out()
        elif mode is SILENT and chance.random() < 0.3:
            self._world.at(
                self._world.now_s + chance.random() * LATE_ACT_S, None, self._carry_out_late
            )

    def _carry_out_late(self) -> None:
        if self.service.mode is WELL:
            self._carry_out()

    def _carry_out(self) -> ServiceError | None:
        error = self._act(self)
        self.was_done = error is None
        return error

    def _answer(self, error: ServiceError | None, after_s: float = 0.0) -> None:
        arrives_s = self._world.now_s + self._travel_s() + after_s
        self._world.at(arrives_s, self._owner, self._replied, error)
        if self._world.network_chance.random() < REPEAT_SHARE:
            self._world.at(arrives_s + self._travel_s(), self._owner, self._replied, error)

    def _replied(self, error: ServiceError | None) -> None:
        self.answers += 1
        if not self.is_over or self.hears_late:
            self._end(error)

    def _time_is_up(self) -> None:
        if not self.is_over:
            self._end(OperationTimeout(f"no answer from {self.service.name} in time"))

    def _end(self, error: ServiceError | None) -> None:
        self.is_over, self.error = True, error
        self._reply(self)
