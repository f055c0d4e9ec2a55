"""Tables for people. The library behind them is imported when there is one to show.

Rule 1: words and numbers are never broken: they may have to be typed again.
Rule 2: what has no room as a table is shown row by row, each name with its value on a line.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Literal

import typer

__all__ = ["show_block", "show_table"]

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

    Columns from ``numbers_from`` on hold numbers: they stand to the right. ``totals`` are rows
    below a line.
    """
    body, foot = list(rows), list(totals)
    first_number = len(columns) if numbers_from is None else numbers_from
    widths = _widths([columns, *body, *foot], first_number)
    if widths is None:
        _show_stacked(columns, [*body, *foot], title, first_number)
        return
    # 60 ms that a broker's start should not pay.
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
    # A name with brackets in it is a name, not a colour.
    Console(markup=False, emoji=False).print(table)


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
    """How wide each column is, so that all of them fit; None if words would have to be broken.

    The widest give way first, and none becomes narrower than its longest word or number.
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
