"""A planted bug: a checker that does not see it is blind, and its silence is worth nothing."""

from __future__ import annotations

from unittest.mock import patch

from twinbus.broker.storage import sqlite_connection
from verification.crash_consistency.power import cut_power
from verification.crash_consistency.tally import Tally, Wrong

PART = "control"
STATES = 200


def lose_commits(seed: int) -> Tally:
    """A store with synchronous=NORMAL: it leaves syncing to the checkpoint."""
    with patch.object(sqlite_connection, "SYNCHRONOUS", "NORMAL"):
        tally = cut_power(seed, STATES)
    tally.part = PART
    return tally


def verdict(tally: Tally) -> str:
    lost = tally.count(Wrong.LOST)
    caught = f"caught in {lost} of {tally.points} states" if lost else "NOT CAUGHT"
    return f"control: synchronous=NORMAL {caught}"
