"""A planted bug reaches processes that are started with it."""

from __future__ import annotations

import os
import subprocess
import sys

from verification.mutation.planting import ROOT, VARIABLE, hand_on
from verification.mutation.registry import BUGS

SAYS_SYNCHRONOUS = (
    "from twinbus.broker.storage import sqlite_connection as connection; "
    "print(connection.SYNCHRONOUS)"
)


def test_a_bug_is_handed_on_to_processes() -> None:
    """Whatever is started with its environment has it, and says so."""
    (bug,) = (each for each in BUGS if each.name == "synchronous=NORMAL")
    environment = dict(os.environ)
    hand_on(bug.plant, environment)
    assert (
        environment[VARIABLE] == "verification.mutation.bugs.store:leave_syncing_to_the_checkpoint"
    )
    told = subprocess.run(
        [sys.executable, "-c", SAYS_SYNCHRONOUS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert told.stdout == "NORMAL\n"
    assert told.stderr == f"planted here: {environment[VARIABLE]}\n"
