"""The whole of it: real processes, kills and bad lines for a minute, and nothing is lost.

CAMPAIGN_SEED   which faults, and when; a failure prints the command that repeats the run
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from campaign.controller import Campaign
from campaign.plan import Plan
from campaign.report import report

SEED = int(os.environ.get("CAMPAIGN_SEED", "1"))
# The mover has to be in the middle of something when it, or the primary, is killed.
HASTY_RUNS_MAX = 3


@pytest.mark.timeout(400)
async def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    """P10, Y1, Y5, M7 and M8: 10,000 messages, every role and line in trouble: lost 0, unexpected
    0, pings seen 0, every duplicate explained, and nothing left behind."""
    plan = Plan(seed=SEED)
    verdict = await Campaign(plan, tmp_path).run()
    print(report(plan, verdict))

    assert verdict.complaints == {}, report(plan, verdict)
    assert verdict.acknowledged >= 10_000
    assert verdict.faults.total() >= 10
    for role in ("primary", "secondary", "sender", "mover"):
        assert verdict.faults[f"kill {role}"] >= 1
    assert verdict.moved > 0, "nothing went round: the run has proven nothing"


@pytest.mark.timeout(400)
async def test_a_mover_that_completes_too_early_is_caught(tmp_path: Path) -> None:
    """Y1: the bug is planted, and a short run finds lost messages, and nothing but lost ones."""
    for attempt in range(HASTY_RUNS_MAX):
        plan = Plan(seed=SEED + attempt, messages=500, fault_s=8.0, drain_s_max=20.0)
        directory = tmp_path / str(attempt)
        directory.mkdir()
        verdict = await Campaign(plan, directory, roles="tests.campaign.hasty_roles").run()
        if verdict.complaints:
            assert list(verdict.complaints) == ["lost"], report(plan, verdict)
            return
    pytest.fail("nothing was lost")
