"""``twinbus cost report`` refuses what it cannot do in one sentence, before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.errors import ConfigurationError


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        CliRunner().invoke(app, ["cost", "report", *arguments], catch_exceptions=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--by", "entity,colour"], "--by: 'colour'"),
        (["--by", ""], "--by: ''"),
        (["--output", "pdf"], "--output: 'pdf'"),
        (["--source", "rumour"], "--source: 'rumour'"),
        (["--used", "many"], "'many' is not a count"),
        (["--from", "yesterday"], "--from: 'yesterday'"),
        (["--from", "2026-11-16", "--to", "2026-11-16"], "--from is not earlier than --to"),
        (["--prices", "golden"], "'golden' not found"),
        ([], "operations log"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    """C3: bad input is one sentence and a hint."""
    assert sentence in refused(str(tmp_path), *arguments)


def test_a_missing_directory_and_a_missing_java_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twinbus.cli.cost import report_output

    assert "not a directory" in refused(str(tmp_path / "nowhere"))
    (tmp_path / "operations-2026-11-16.jsonl").write_text("")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    # Another test may have left a session here, which would be used as it is.
    monkeypatch.setattr(report_output.require_pyspark().SparkSession, "getActiveSession", _none)
    assert "JAVA_HOME" in refused(str(tmp_path))


def _none() -> None:
    return None
