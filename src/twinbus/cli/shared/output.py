"""Output as a table, as JSON or as JSON lines (``--output``); confirmations and progress.

    table    for people
    json     one document: a list for several records, an object for one
    jsonl    one object on each line

Rule 1: words and numbers are never broken, so that they can be copied.
Rule 2: a table that is too wide is printed row by row, with one name and value on each line.
Rule 3: table and JSON are made from the same record of plain values.
Rule 4: a table has selected columns, JSON has all fields.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import typer

from twinbus.common.durations import format_duration_us
from twinbus.errors import ConfigurationError

__all__ = [
    "FORMS",
    "DryRun",
    "Output",
    "Yes",
    "check_output_format",
    "confirm",
    "plain",
    "plural",
    "print_result",
    "show_block",
    "show_json",
    "show_progress",
    "show_record",
    "show_records",
    "show_spinner",
    "show_table",
]

# A line and a space on either side of each column, and a line at the end.
COLUMN_FRAME = 3


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    numbers_from: int | None = None,
    totals: Iterable[Sequence[str]] = (),
) -> None:
    """Print rows under their columns, as wide as the terminal.

    Columns from ``numbers_from`` on are numbers, aligned to the right. ``totals`` are rows below a
    line.
    """
    body, foot = list(rows), list(totals)
    first_number = len(columns) if numbers_from is None else numbers_from
    widths = _widths([columns, *body, *foot], first_number)
    if widths is None:
        _show_stacked(columns, [*body, *foot], title, first_number)
        return
    # Imported late: it would delay every start of the broker by 60 ms.
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold")
    for at, (name, width) in enumerate(zip(columns, widths, strict=True)):
        justify: Literal["left", "right"] = "left" if at < first_number else "right"
        table.add_column(name, justify=justify, width=width, overflow="fold")
    for row in body:
        table.add_row(*row)
    table.add_section()
    for row in foot:
        table.add_row(*row, style="bold")
    # Without markup: brackets in a name are not a colour.
    Console(markup=False, emoji=False).print(table)


def show_block(word: str, lines: Iterable[str], *, indent: int = 9) -> None:
    """Print a word with lines beside it, as wide as the terminal: for texts that are too long for
    columns. Words are never broken, so that they can be copied."""
    width = shutil.get_terminal_size().columns
    first = f"{word:<{indent}}"
    for line in filter(None, lines):
        wrapped = textwrap.wrap(
            line,
            width,
            initial_indent=first,
            subsequent_indent=" " * (indent + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        typer.echo("\n".join(wrapped))
        first = " " * indent


def _show_stacked(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str, first_number: int
) -> None:
    if title:
        typer.echo(title)
    indent = max(map(len, columns)) + 2
    for number, row in enumerate(rows):
        if number:
            typer.echo("")
        for at, (name, cell) in enumerate(zip(columns, row, strict=True)):
            lines = cell.split("\n") if cell else []
            if at < first_number:
                show_block(name, lines, indent=indent)
                continue
            for line in lines:  # A number stays on one line with its unit.
                typer.echo(f"{name:<{indent}}{line}")


def _widths(rows: Sequence[Sequence[str]], first_number: int) -> list[int] | None:
    """The width of each column, so that all of them fit; None if words would have to be broken.

    The widest are reduced first, and none becomes narrower than its longest word or number.
    """
    free = shutil.get_terminal_size().columns - 1
    least, widths = [], []
    for at, cells in enumerate(zip(*rows, strict=True)):
        lines = [line for cell in cells for line in cell.split("\n")]
        parts = lines if at >= first_number else [part for line in lines for part in line.split()]
        least.append(max(map(_cells, parts), default=1) + COLUMN_FRAME)
        widths.append(max(map(_cells, lines), default=1) + COLUMN_FRAME)
    if sum(least) > free:
        return None
    while sum(widths) > free:
        slack = [at for at in range(len(widths)) if widths[at] > least[at]]
        widths[max(slack, key=widths.__getitem__)] -= 1
    return [width - COLUMN_FRAME for width in widths]


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes; some letters take two."""
    from rich.cells import cell_len

    return cell_len(text)


FORMS: Final = ("table", "json", "jsonl")

Output = Annotated[str, typer.Option(help="Format: table, json or jsonl.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")
]

_MICROSECOND: Final = timedelta(microseconds=1)


def check_output_format(output: str) -> None:
    """Refuse an unknown format before the command does anything."""
    if output not in FORMS:
        raise ConfigurationError(
            f"Invalid value for --output: {output!r:.40}", hint="Use table, json or jsonl"
        )


def plural(count: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_json(value: Any, output: str) -> None:
    """One JSON document: indented with ``json``, on one line with ``jsonl``."""
    typer.echo(json.dumps(value, indent=2 if output == "json" else None))


def plain(value: Any) -> Any:
    """A value as JSON; durations in ISO 8601."""
    match value:
        case timedelta():
            return format_duration_us(value // _MICROSECOND)
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return _text_or_hex(bytes(value))
        case Mapping():
            return {str(plain(key)): plain(each) for key, each in value.items()}
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            # NaN and infinity are not valid JSON.
            return float(value) if value - value == 0 else str(value)
        case list() | tuple():
            return [plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return str(value)


def _text_or_hex(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def show_records(
    records: Iterable[Mapping[str, Any]],
    output: str,
    columns: Sequence[str],
    *,
    numbers_from: int | None = None,
) -> None:
    """Several records; ``columns`` are those of the table, from ``numbers_from`` on numbers."""
    found = [{name: plain(value) for name, value in each.items()} for each in records]
    if output == "json":
        show_json(found, output)
    elif output == "jsonl":
        for each in found:
            typer.echo(json.dumps(each))
    elif not found:
        typer.echo("none")
    else:
        rows = [[_cell(each.get(name)) for name in columns] for each in found]
        show_table([name.replace("_", " ") for name in columns], rows, numbers_from=numbers_from)


def show_record(record: Mapping[str, Any], output: str) -> None:
    """One record: one field per line."""
    found = {name: plain(value) for name, value in record.items()}
    if output == "table":
        show_table(
            ("property", "value"), [(name.replace("_", " "), _cell(found[name])) for name in found]
        )
    else:
        show_json(found, output)


def print_result(output: str, record: Mapping[str, Any], sentence: str) -> None:
    """The result of a command: a sentence for people, the record as JSON."""
    typer.echo(sentence if output == "table" else json.dumps(plain(record)))


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.1f}"
        case int():
            return f"{value:,}"
        case dict():
            return "\n".join(f"{name}: {_cell(each)}" for name, each in value.items())
        case list():
            return "\n".join(_cell(each) for each in value)
    # The content of a message may contain control characters of a terminal.
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in str(value))


def confirm(is_given: bool, question: str, loss: str) -> None:
    """Ask before a permanent change; ``loss`` names it."""
    if is_given:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"This command {loss} permanently, and cannot ask for confirmation without a terminal",
            hint="Add --yes, or --dry-run to show what would be done",
        )
    typer.confirm(question, abort=True)


@contextmanager
def show_spinner(what: str) -> Iterator[None]:
    """On a terminal, show what the command is waiting for."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


@contextmanager
def show_progress(doing: str, output: str) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of messages so far, which a terminal shows."""
    if output != "table" or not sys.stderr.isatty():
        yield lambda _count: None
        return
    try:
        yield lambda count: typer.echo(f"\r{doing}: {count:,}", nl=False, err=True)
    finally:
        typer.echo("\r\033[K", nl=False, err=True)
