"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["BACKLOG_QUEUE_COUNT_MAX", "AdministrationPort", "CaFile"]

# As the options of a pair have it.
BACKLOG_QUEUE_COUNT_MAX = 1_000

CaFile = Annotated[
    Path | None, typer.Option(help="Trust the certificates in this file (PEM).", metavar="FILE")
]
AdministrationPort = Annotated[
    int | None,
    typer.Option("--management-port", help="The port for HTTP, for the official emulator (5300)."),
]
