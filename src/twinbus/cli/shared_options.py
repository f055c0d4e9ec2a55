"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["CaFile", "ManagementPort"]

CaFile = Annotated[
    Path | None, typer.Option(help="Trust the certificates in this file (PEM).", metavar="FILE")
]
ManagementPort = Annotated[
    int | None, typer.Option(help="The port for HTTP, for the official emulator (5300).")
]
