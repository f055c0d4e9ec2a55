"""Whoever ends without being told is noticed once, and a syphon on Spark is started again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verification.fault_campaign import site as sites
from verification.fault_campaign.history import Journal, read
from verification.fault_campaign.plan import PRIMARY, Plan
from verification.fault_campaign.processes import LAUNCHERS, Child
from verification.fault_campaign.site import Site
from verification.fault_campaign.syphon import SparkChild


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """One in which nothing runs."""
    monkeypatch.setattr(sites, "LOOK_S", 0.01)
    journal = Journal(tmp_path / "controller.jsonl", "controller")
    yield Site(Plan(), tmp_path, journal, LAUNCHERS)
    journal.close()


def ended(child: Child, code: int = 3) -> Child:
    """A process that is gone."""

    async def wait() -> int:
        return code

    process: Any = SimpleNamespace(returncode=code, wait=wait, pid=0)
    child._process = process
    return child


async def watched(site: Site) -> None:
    watch = asyncio.create_task(site._watch())
    await asyncio.sleep(0.1)
    assert not watch.done()
    watch.cancel()


def written(tmp_path: Path) -> list[tuple[str, str, str]]:
    return [(each.what, each.process, each.detail) for each in read(tmp_path / "controller.jsonl")]


async def test_a_role_and_a_broker_that_died_are_noticed_once(site: Site, tmp_path: Path) -> None:
    ended(site.brokers[PRIMARY])
    site.roles["sender-1"] = ended(Child("sender-1.0", tmp_path), -11)
    await watched(site)
    assert written(tmp_path) == [
        ("died", "primary", "exit code 3"),
        ("died", "sender-1.0", "exit code -11"),
    ]
    await site.end("sender")  # The verdict says it: it is no reason to stop everything else.
    assert len(written(tmp_path)) == 2


@pytest.mark.parametrize("told", ["kill", "end"])
async def test_whoever_was_told_to_end_has_not_died(site: Site, tmp_path: Path, told: str) -> None:
    site.roles["sender-1"] = child = Child("sender-1.0", tmp_path)
    await getattr(ended(child), told)()
    await watched(site)
    assert written(tmp_path) == []


async def test_one_that_is_dead_when_it_is_to_end_is_noticed(site: Site, tmp_path: Path) -> None:
    site.roles["sender-1"] = ended(Child("sender-1.0", tmp_path), 0)
    await site.end("sender")
    assert written(tmp_path) == [("died", "sender-1.0", "exit code 0")]


async def test_a_syphon_on_spark_is_noticed_and_started_again_when_it_is_its_turn(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    async def start(role: str) -> None:
        started.append(role)

    monkeypatch.setattr(site, "start", start)
    site.roles["syphon-1"] = ended(SparkChild("syphon-1.0", tmp_path))
    async with site.turn("syphon-1"):
        await watched(site)
        assert not started
    await watched(site)
    assert started == ["syphon-1"]
    assert written(tmp_path) == [
        ("died", "syphon-1.0", "exit code 3"),
        ("kill", "syphon-1.0", "by itself"),
    ]
