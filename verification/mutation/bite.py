"""One harness with one bug, or without any:
``python -m verification.mutation.bite NAME [--control ROUNDS]``.

In a process of its own, because a bug stays planted. The last line of its output is the result.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, TextIO

from verification.mutation.bug import Harness
from verification.mutation.planting import plant
from verification.mutation.registry import BUGS

COMPLAINTS_KEPT_MAX: Final = 20
COMPLAINT_LENGTH_MAX: Final = 300


@dataclass(slots=True)
class Watched:
    """What a harness had to say."""

    round_count: int = 0
    seconds: float = 0.0
    caught: str | None = None
    """The complaint of the check that was waited for."""
    others: list[str] = field(default_factory=list)
    """The first ones of those before it."""


def watch(harness: Harness, directory: Path, *, check: str | None, rounds_max: int) -> Watched:
    """Run rounds until ``check`` complains; without one, all of them."""
    watched, began_s = Watched(), time.monotonic()
    for complaints in islice(harness.rounds(directory), rounds_max):
        watched.round_count += 1
        named = [each for each in complaints if check is not None and check in each]
        others = [each[:COMPLAINT_LENGTH_MAX] for each in complaints if each not in named]
        watched.others = [*watched.others, *others][:COMPLAINTS_KEPT_MAX]
        if named:
            watched.caught = named[0][:COMPLAINT_LENGTH_MAX]
            break
    watched.seconds = time.monotonic() - began_s
    return watched


@contextmanager
def only_the_result() -> Iterator[TextIO]:
    """Standard output for the result; whatever else is printed goes to standard error."""
    with os.fdopen(os.dup(1), "w") as result:
        os.dup2(2, 1)
        yield result


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m verification.mutation.bite", description=__doc__
    )
    parser.add_argument("name", help="of a bug")
    parser.add_argument("--control", type=int, help="so many rounds without the bug")
    options = parser.parse_args(arguments)
    # Whoever ends this ends what it has started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    (bug,) = (each for each in BUGS if each.name == options.name)
    with only_the_result() as result, tempfile.TemporaryDirectory(prefix="teeth-") as directory:
        check, rounds_max = bug.check, bug.harness.rounds_max
        if options.control is None:
            plant(bug.plant)
        else:
            check, rounds_max = None, options.control
        watched = watch(bug.harness, Path(directory), check=check, rounds_max=rounds_max)
        print(json.dumps(asdict(watched)), file=result)


if __name__ == "__main__":
    main(sys.argv[1:])
