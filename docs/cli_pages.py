"""Writes ``docs/CLI.md`` from the commands themselves.

``python docs/cli_pages.py`` writes the page anew; a test compares the two.
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

Made from the commands by `python docs/cli_pages.py`; `twinbus COMMAND --help` says the same.

Exit codes: 0 done, 1 the command failed (one sentence and a hint on standard error), 2 wrong usage
(an option that does not exist, a value or a setting that cannot be used); commands with more say so
below. `twinbus --debug COMMAND` shows where an error comes from.
`twinbus --install-completion` sets up completion for your shell.

Results go to standard output: tables for people, with `--output json` one document, with `--output
jsonl` one object on each line. Progress and errors go to standard error. What changes something has
`--dry-run`, and what removes something asks first unless `--yes` is given; for `receive` the look
without taking is `peek`. A dry run checks what was typed and whether a name is free or there; what
the namespace would say to the settings of a new entity only the namespace knows.
"""


def commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command that can be typed, with its whole name; groups that only group are left out."""
    inner = getattr(group, "commands", {})
    if not inner or group.invoke_without_command:
        yield name, group
    for word, command in inner.items():
        if not command.hidden:
            yield from commands(command, f"{name} {word}")


def told(command: Any, context: Any, kind: str) -> list[str]:
    """The arguments or options as a list, in the words of ``--help``."""
    shown = [each for each in command.params if each.param_type_name == kind]
    records = [each.get_help_record(context) for each in shown]
    return [f"- `{names}`: {' '.join(words.split())}" for names, words in filter(None, records)]


def section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"## {name}", f"    {name} {usage}", inspect.cleandoc(command.help or "")]
    parts += ["\n".join(told(command, context, kind)) for kind in ("argument", "option")]
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    root = typer.main.get_command(app)
    found = [section(name, each) for name, each in commands(root, "twinbus")]
    return "\n\n".join([BEGINNING.strip(), *found]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
