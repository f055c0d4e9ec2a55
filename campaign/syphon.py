"""``twinbus syphon --local``, as users run it, ; its receipts as history."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from campaign.history import Event
from campaign.plan import PRIMARY, SECONDARY, Plan
from twinbus.core.receipts import Outcome

RECEIPTS_SUFFIX: Final = ".receipts"


def syphon_command(
    plan: Plan, addresses: Mapping[str, str], receipts: Path
) -> tuple[list[str], dict[str, str]]:
    """The arguments of the program, and the environment with the keys."""
    command = ["syphon", "--local", "--output", "json"]
    command += ["--primary-name", PRIMARY, "--backlog-queue-count", str(plan.backlog_queues)]
    command += ["--receipts", str(receipts)]
    return command, {
        "SERVICEBUS_CONNECTION_STRING": addresses[PRIMARY],
        "SERVICEBUS_SECONDARY_CONNECTION_STRING": addresses[SECONDARY],
    }


def receipts_in(path: Path, process: str) -> Iterator[Event]:
    """The receipts of one process, without a last line that was torn by a kill."""
    clock_s = time.time() - time.monotonic()
    for line in path.read_bytes().split(b"\n")[:-1]:
        receipt = json.loads(line)
        outcome = Outcome(receipt["outcome"])
        yield Event(
            what="move",
            type="info" if outcome.may_repeat else "ok",
            process=process,
            at_s=receipt["settled_ms"] / 1_000 - clock_s,
            values=(receipt["message_id"] or "",),
            place=receipt["queue"],
            detail=str(outcome),
        )
