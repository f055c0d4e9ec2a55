"""``python -m verification.fault_campaign``: where runs leave their journals, and when many of them
are enough."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verification.fault_campaign import __main__ as command
from verification.fault_campaign.checker import Verdict
from verification.fault_campaign.plan import Plan


class Played:
    """A run that takes no time."""

    verdict = Verdict()
    error: Exception | None = None
    runs = 0

    def __init__(self, plan: Plan, directory: Path, **_facts: Any) -> None:
        assert list(directory.iterdir()) == []
        assert directory.is_absolute()
        self._directory = directory
        self.events: list[Any] = []

    async def run(self) -> Verdict:
        Played.runs += 1
        (self._directory / "controller.jsonl").write_text("new")
        if self.error is not None:
            raise self.error
        return self.verdict


@pytest.fixture(autouse=True)
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where journals are, with those of an earlier run of seed 5."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "Campaign", Played)
    monkeypatch.setattr(Played, "error", None)
    monkeypatch.setattr(Played, "runs", 0)
    monkeypatch.setattr(Played, "verdict", Verdict(acknowledged=10, faults=Counter(kill=1)))
    old = tmp_path / "build" / "campaign" / "5" / "primary.data" / "old"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    return tmp_path / "build" / "campaign"


def test_a_kept_promise_leaves_a_picture_only(build: Path) -> None:
    assert command.main(["--seed", "5"]) == 0
    assert [each.name for each in build.iterdir()] == ["5.svg"]


def test_a_kept_promise_leaves_its_journals_where_they_are_asked_for(tmp_path: Path) -> None:
    assert command.main(["--seed", "5", "--keep", "there"]) == 0
    assert (tmp_path / "there" / "5" / "controller.jsonl").read_text() == "new"


def test_a_broken_promise_leaves_its_journals_and_says_where(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Played, "verdict", Verdict(lost=["sender-1.0-1 in orders"]))
    assert command.main(["--seed", "5"]) == 1
    assert [each.name for each in (build / "5").iterdir()] == ["controller.jsonl"]
    assert f"journals: {build / '5'}" in capsys.readouterr().out


def test_a_run_that_could_not_go_on_leaves_its_journals_and_says_where(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Played, "error", RuntimeError("primary did not end"))
    with pytest.raises(RuntimeError, match="primary did not end"):
        command.main(["--seed", "5"])
    assert (build / "5" / "controller.jsonl").exists()
    assert f"journals: {build / '5'}" in capsys.readouterr().out


# -- many runs ------------------------------------------------------------------------------------


def test_a_full_one_ends_when_there_were_enough_messages_and_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Played, "verdict", Verdict(acknowledged=70_000, faults=Counter(kill=80)))
    assert command.main(["--full"]) == 0
    assert "3 runs in" in capsys.readouterr().out


def test_a_full_one_that_takes_too_long_fails_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given runs of a quarter of an hour
    clock = SimpleNamespace(monotonic=lambda: Played.runs * 15 * 60.0)
    monkeypatch.setattr(command, "time", clock)

    # Then the third one is the last, whether there was enough of everything or not
    for enough in (Verdict(acknowledged=10), Verdict(acknowledged=70_000, faults=Counter(kill=80))):
        monkeypatch.setattr(Played, "runs", 0)
        monkeypatch.setattr(Played, "verdict", enough)
        assert command.main(["--full"]) == 1
        told = capsys.readouterr().out
        assert "That is more than the 40 minutes that it may take." in told
        assert "3 runs in" in told
