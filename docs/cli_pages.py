"""Writes ``docs/CLI.md`` from the commands themselves.

``python docs/cli_pages.py`` writes the page; a test compares both.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from twinbus.cli import app

PAGE = Path(__file__).with_name("CLI.md")

BEGINNING = """\
# The command line

Generated from the commands by `python docs/cli_pages.py`; `twinbus COMMAND --help` prints the same.

Exit codes: 0 done, 1 the command failed (one sentence and a hint on standard error), 2 wrong usage
(an unknown option, or a value or setting that cannot be used). Other exit codes are listed with
their commands. `twinbus --debug COMMAND` prints the traceback of an error.
`twinbus --install-completion` installs completion for your shell.

Results go to standard output: tables by default, one document with `--output json`, one object on
each line with `--output jsonl`. Progress and errors go to standard error. Commands that change
something have `--dry-run`; commands that remove something ask for confirmation unless `--yes` is
given. The dry run of `receive` is `peek`. A dry run checks the options, and whether a name is in
use or exists. It cannot check whether the namespace accepts the settings of a new entity.
"""


def commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, without groups that are not commands themselves."""
    inner = getattr(group, "commands", {})
    if not inner or group.invoke_without_command:
        yield name, group
    for word, command in inner.items():
        if not command.hidden:
            yield from commands(command, f"{name} {word}")


def describe(command: Any, context: Any, kind: str) -> list[str]:
    """The arguments or options as a list, in the words of ``--help``."""
    shown = [each for each in command.params if each.param_type_name == kind]
    records = [each.get_help_record(context) for each in shown]
    return [f"- `{names}`: {' '.join(words.split())}" for names, words in filter(None, records)]


def section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"## {name}", f"    {name} {usage}", inspect.cleandoc(command.help or "")]
    parts += ["\n".join(describe(command, context, kind)) for kind in ("argument", "option")]
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    root = typer.main.get_command(app)
    found = [section(name, each) for name, each in commands(root, "twinbus")]
    return "\n\n".join([BEGINNING.strip(), *found]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
