"""Entities beside their models: whatever clients do, both must say the same
(``tests/unit/broker/model``).

A comparison has the name of what was compared: the step of the client, the counts (an
invariant), or what is left at the end.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb

from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.broker.model.machine import WITHOUT_SHRINKING, Machine
from tests.unit.broker.model.test_queue import QueueAndModel
from tests.unit.broker.model.test_session_queue import SessionsAndModel
from tests.unit.broker.model.test_topic import TopicAndModel

MACHINES: dict[str, type[Machine]] = {
    "queue": QueueAndModel,
    "sessions": SessionsAndModel,
    "topic": TopicAndModel,
}
EXAMPLES = 25


@dataclass(frozen=True, slots=True)
class Model:
    """Some examples of what clients do, then some more."""

    entity: str
    unit: str = f"times {EXAMPLES} examples"
    rounds_max: int = 40
    has_processes: bool = False

    @property
    def name(self) -> str:
        return f"model of a {self.entity}" if self.entity != "sessions" else "model of sessions"

    def rounds(self, directory: Path) -> Iterator[list[str]]:
        machine = MACHINES[self.entity]
        options = settings(WITHOUT_SHRINKING, max_examples=EXAMPLES, report_multiple_bugs=False)
        for number in range(self.rounds_max):
            seeded = seed(number)(type(machine.__name__, (machine,), {}))
            try:
                # Hypothesis prints the steps that lead there.
                with contextlib.redirect_stdout(io.StringIO()):
                    run_state_machine_as_test(seeded, settings=options)
            except Exception as error:
                yield [
                    f"{_comparison(each)}: {type(each).__name__}: {each}"
                    for each in _one_after_the_other(error)
                ]
            else:
                yield []


def _one_after_the_other(error: BaseException | None) -> Iterator[BaseException]:
    """A step that failed, and then what was left at the end."""
    if error is not None:
        yield from _one_after_the_other(error.__context__)
        yield error


def _comparison(error: BaseException) -> str:
    """The method of the machine that found a difference."""
    methods = {name for machine in MACHINES.values() for name in dir(machine)}
    names = [frame.name for frame in extract_tb(error.__traceback__) if _is_ours(frame.filename)]
    return next((name for name in reversed(names) if name in methods), "elsewhere")


def _is_ours(filename: str) -> bool:
    return "/tests/unit/broker/model/" in filename
