"""The program as a whole: its page, its errors, completion."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from twinbus import cli

DOCS = Path(__file__).resolve().parents[3] / "docs"


def cli_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_pages", DOCS / "cli_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["twinbus", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_page_shows_every_command_as_it_is() -> None:
    page = (DOCS / "CLI.md").read_text(encoding="utf-8")
    assert page == cli_pages().page(), "run: python docs/cli_pages.py"


def test_every_command_says_what_it_does_and_every_option_too() -> None:
    import typer

    pages = cli_pages()
    for name, command in pages.commands(typer.main.get_command(cli.app), "twinbus"):
        assert command.help, name
        assert [each.name for each in command.params if not getattr(each, "help", "")] == [], name


VERBS = {
    **dict.fromkeys(("queue", "topic", "subscription", "rule"), "list show create delete purge"),
    "key": "list rotate create delete",
    "dlq": "list show resubmit drop",
    "pair": "plan apply status failover restore hold",
    "backlog": "list show cleanup",
    "syphon": "pause resume rate status prepare",
    "cost": "estimate report reconcile",
    "fault": "add list clear kinds stop start",
}
# Alone, and with nothing to choose: what they print is a page, a log or the demo itself.
WITHOUT_FORMS = {"twinbus demo", "twinbus syphon prepare"}
LOOKS = {
    "list", "show", "status", "kinds", "plan", "estimate", "report", "reconcile", "prepare",
    "peek", "preflight", "serve", "demo", "doctor",
}  # fmt: skip
# Its dry run is peek. That of a repair is the doctor without --repair.
TAKES = {"receive"}


def options_of(command: Any) -> set[str]:
    return {name for each in command.params for name in each.opts}


def test_every_noun_has_its_verbs() -> None:
    import typer

    commands = dict(cli_pages().commands(typer.main.get_command(cli.app), "twinbus"))
    wanted = {f"twinbus {noun} {verb}" for noun, verbs in VERBS.items() for verb in verbs.split()}
    alone = ["serve", "demo", "send", "receive", "peek", "preflight", "reset", "syphon"]
    alone.append("doctor")
    assert set(commands) == wanted | {f"twinbus {each}" for each in alone}


def test_every_answer_has_three_forms_and_every_change_a_dry_run() -> None:
    import typer

    for name, command in cli_pages().commands(typer.main.get_command(cli.app), "twinbus"):
        options, verb = options_of(command), name.split()[-1]
        if name not in WITHOUT_FORMS:
            (form,) = [each for each in command.params if "--output" in each.opts]
            assert form.default == "table" and "jsonl" in form.help, name
        assert ("--dry-run" in options) == (verb not in LOOKS | TAKES), name


def test_an_error_is_a_sentence_and_debug_shows_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ("demo", "--outage", "soon")
    assert run(monkeypatch, *wrong) == 2
    told = capsys.readouterr().err
    assert told == "twinbus: 'soon' is not a time. Use for example 30s, 5m or 1h.\n"
    assert run(monkeypatch, "--debug", *wrong) == 2
    told = capsys.readouterr().err
    assert "Traceback" in told and told.endswith("Use for example 30s, 5m or 1h.\n")


def test_what_nobody_thought_of_is_a_sentence_without_its_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> None:
        raise RuntimeError("SharedAccessKey=secret")

    monkeypatch.setattr(cli, "app", fails)
    assert run(monkeypatch) == 1
    told = capsys.readouterr().err
    assert "RuntimeError" in told and "--debug" in told
    assert "secret" not in told and "Traceback" not in told


def test_wrong_usage_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "serve", "--no-such-option") == 2


def test_a_shell_can_complete_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twinbus"],
        env={
            **os.environ,
            "_TWINBUS_COMPLETE": "complete_bash",
            "COMP_WORDS": "twinbus pre",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["preflight"], done.stderr
