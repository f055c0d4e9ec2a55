"""What the command shows, and what it returns. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.cli.cost.reconcile_run import SHOWN_MAX, show_reconciliation
from twinbus.cost.reconciliation import (
    AvailableSources,
    Difference,
    DifferenceKind,
    EntityReconciliation,
    MessageStatus,
    Reconciliation,
    Trace,
    describe_trace,
)


def books(missing: int = 0, **more: Any) -> Reconciliation:
    fates = {MessageStatus.DELIVERED: 5, MessageStatus.EXPIRED: 1, MessageStatus.MISSING: missing}
    orders = EntityReconciliation(
        entity="orders", sent=6 + missing, statuses=fates, duplicates=3, duplicates_explained=1
    )
    differences = tuple(
        Difference(
            entity="orders",
            message_id=f"m{n}",
            kind=DifferenceKind.MISSING,
            count=1,
            trace="nothing",
        )
        for n in range(missing)
    )
    given = AvailableSources(client=True, primary=True)
    return Reconciliation(
        pair="home", sources=given, entities=(orders,), differences=differences, **more
    )


@pytest.mark.parametrize(("closes", "code"), [(True, 0), (False, 1), (None, 2)])
def test_the_exit_code_is_the_verdict(
    closes: bool | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: 0 the books close, 1 they do not, 2 nobody knows."""
    monkeypatch.setattr("twinbus.cli.cost.reconcile_run.run_reconcile", lambda _options: closes)
    given = ["--primary-logs", str(tmp_path)]
    assert CliRunner().invoke(app, ["cost", "reconcile", *given]).exit_code == code


def test_the_table_has_what_the_json_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: differences are listed, and what is not listed or not readable is said."""
    monkeypatch.setenv("COLUMNS", "200")
    answer = books(missing=SHOWN_MAX + 2, damaged_lines=1, lost_lines=2, notes=("A note.",))

    show_reconciliation(answer, "table")
    shown = capsys.readouterr().out

    assert "3 (2 unexplained)" in shown
    assert "expired" in shown
    assert "purged" not in shown
    assert f"m{SHOWN_MAX - 1}" in shown
    assert f"m{SHOWN_MAX}" not in shown
    for sentence in (
        "2 more differences in --output json.",
        "1 line of the logs could not be read.",
        "2 lines of the logs are missing.",
        "A note.",
        "home failed: of 58 sent, 52 missing, as far as the logs can be read.",
    ):
        assert sentence in shown

    show_reconciliation(answer, "json")
    told_to_scripts = json.loads(capsys.readouterr().out)
    assert told_to_scripts["closes"] is False
    assert len(told_to_scripts["differences"]) == SHOWN_MAX + 2
    assert (told_to_scripts["damaged_lines"], told_to_scripts["lost_lines"]) == (1, 2)


def test_the_verdict_goes_as_far_as_the_logs() -> None:
    """C3: what cannot be read proves nothing."""
    assert books().verdict == "Reconciliation of home succeeded: 6 sent, none missing."
    assert books(lost_lines=1).verdict == (
        "Reconciliation of home succeeded: 6 sent, none missing, as far as the logs can be read."
    )


def test_a_copy_that_never_came_can_be_told() -> None:
    """C3: each difference says what the logs say."""
    traces = [
        Trace(2_000, "stay", "news/subscriptions/a", 7, "primary", "stored", 2_000),
        Trace(1_999, "published", "news", 2, "primary"),
    ]
    assert describe_trace(traces, AvailableSources(primary=True)) == (
        "published in news at 1970-01-01T00:00:01.999Z with 2 copies; "
        "stored in news/subscriptions/a as 7 at 1970-01-01T00:00:02.000Z"
    )
