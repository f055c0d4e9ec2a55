"""Tables for people. The library behind them is imported when there is one to show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    numbers_from: int | None = None,
    totals: Iterable[Sequence[str]] = (),
) -> None:
    """Print rows under their columns, as wide as the terminal.

    Columns from ``numbers_from`` on hold numbers and stand to the right; ``totals`` are rows below
    a line.
    """
    # 60 ms that a broker's start should not pay.
    from rich.console import Console
    from rich.table import Column, Table

    # What stands in a table may have to be typed again, so it is folded and never cut off.
    table = Table(
        *(
            Column(
                name,
                overflow="fold",
                justify="right" if numbers_from is not None and at >= numbers_from else "left",
            )
            for at, name in enumerate(columns)
        ),
        title=title or None,
        title_justify="left",
        title_style="bold",
    )
    for row in rows:
        table.add_row(*row)
    table.add_section()
    for row in totals:
        table.add_row(*row, style="bold")
    Console().print(table)
