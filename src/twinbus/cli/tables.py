"""Tables for people. The library behind them is imported when there is one to show."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

import typer


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    numbers_from: int | None = None,
    totals: Iterable[Sequence[str]] = (),
) -> None:
    """Print rows under their columns, as wide as the terminal.

    Columns from ``numbers_from`` on hold numbers: they stand to the right and are never broken.
    ``totals`` are rows below a line.
    """
    # 60 ms that a broker's start should not pay.
    from rich.console import Console
    from rich.table import Table

    body, foot = list(rows), list(totals)
    first_number = len(columns) if numbers_from is None else numbers_from
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for at, name in enumerate(columns):
        # What stands in a table may have to be typed again, so it is folded and never cut off.
        if at < first_number:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in body:
        table.add_row(*row)
    table.add_section()
    for row in foot:
        table.add_row(*row, style="bold")
    width = Console().width
    least = _width_min([columns, *body, *foot], first_number)
    if first_number < len(columns):
        # Half a number is a wrong one: better a table that the terminal breaks.
        width = max(width, least)
    # A name with brackets in it is a name, not a colour.
    Console(width=width, markup=False, emoji=False).print(table)


def show_block(word: str, lines: Iterable[str], *, indent: int = 9) -> None:
    """Print a word with lines beside it, as wide as the terminal: for texts that are too long for
    columns. Words are never broken, because they may have to be typed again."""
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


def _width_min(rows: Sequence[Sequence[str]], first_number: int) -> int:
    """The least width at which words and numbers stay whole."""
    width = 1
    for at, cells in enumerate(zip(*rows, strict=True)):
        parts = [part for cell in cells for part in _unbroken(cell, at >= first_number)]
        # A line and a space on either side.
        width += max(map(len, parts), default=0) + 3
    return width


def _unbroken(cell: str, is_number: bool) -> list[str]:
    return cell.split("\n") if is_number else cell.split()
