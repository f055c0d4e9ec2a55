"""The whole of it: real processes, kills and bad lines for a minute, and nothing is lost.

CAMPAIGN_SEED   which faults, and when; a failure prints the command that repeats the run
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from verification.fault_campaign.controller import Campaign
from verification.fault_campaign.plan import PRIMARY, Plan
from verification.fault_campaign.report import report
from verification.fault_campaign.schedule import Fault

SEED = int(os.environ.get("CAMPAIGN_SEED", "1"))


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
    for role in ("primary", "secondary", "sender", "mover", "syphon"):
        assert verdict.faults[f"kill {role}"] >= 1
    assert verdict.moved > 0, "nothing went round: the run has proven nothing"


@pytest.mark.timeout(400)
async def test_a_mover_that_completes_too_early_is_caught(tmp_path: Path) -> None:
    """Y1: the bug is planted, the primary is killed while messages are on their way home, and
    the checker says that some are lost."""
    plan = Plan(seed=SEED, messages=500, syphons=0)
    kill = Fault(at_s=1.0, name="kill primary", process=PRIMARY, lasts_s=1.0)
    launchers = {
        "mover": [sys.executable, "-m", "tests.integration.verification.fault_campaign.hasty_roles"]
    }
    verdict = await Campaign(plan, tmp_path, faults=[kill], launchers=launchers).run()
    assert list(verdict.complaints) == ["lost"], report(plan, verdict)
