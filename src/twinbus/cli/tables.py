"""Tables for people. The library behind them is imported when there is one to show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their columns, as wide as the terminal."""
    # 60 ms that a broker's start should not pay.
    from rich.console import Console
    from rich.table import Column, Table

    # What stands in a table may have to be typed again, so it is folded and never cut off.
    table = Table(*(Column(name, overflow="fold") for name in columns))
    for row in rows:
        table.add_row(*row)
    Console().print(table)
