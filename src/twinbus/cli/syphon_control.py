"""``twinbus syphon pause|resume|rate|status``: tell a running syphon, or ask it; ``prepare``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from twinbus.cli.output import check_output
from twinbus.cli.syphon import default_state_dir, syphon_app
from twinbus.cli.tables import show_table
from twinbus.errors import ConfigurationError

__all__ = ["syphon_app"]

State = Annotated[
    Path | None, typer.Option(help="Its state directory, as it was given to it.", metavar="DIR")
]

# A syphon writes its status twice a second.
SILENT_S_MAX: Final = 10.0


@syphon_app.command("pause")
def pause(state: State = None) -> None:
    """Receive nothing until resume; what is under way ends."""
    _change(state, is_paused=True)
    typer.echo("paused")


@syphon_app.command("resume")
def resume(state: State = None) -> None:
    """Go on after a pause."""
    _change(state, is_paused=False)
    typer.echo("resumed")


@syphon_app.command("rate")
def rate(
    per_second: Annotated[
        float | None, typer.Argument(help="Messages a second; none: as it was started.", min=0.001)
    ] = None,
    state: State = None,
) -> None:
    """Change how fast messages come home."""
    _change(state, rate_per_s=per_second)
    typer.echo("as it was started" if per_second is None else f"{per_second:g} messages a second")


@syphon_app.command("prepare")
def prepare() -> None:
    """Make later starts on this machine faster: a minute, and 180 MB in the cache directory."""
    from twinbus.spark.session import require_pyspark

    require_pyspark()
    from twinbus.spark.preparing import prepare as make
    from twinbus.spark.troubles import told_by_spark

    typer.echo("preparing Spark's classes: about a minute", err=True)
    with told_by_spark():
        typer.echo(f"prepared: {make()}")


@syphon_app.command("status")
def status(
    state: State = None,
    output: Annotated[str, typer.Option(help="table or json.")] = "table",
) -> None:
    """Show what the syphon does and has done."""
    check_output(output, "table")
    directory = _directory(state)
    told = directory.status()
    if told is None:
        raise ConfigurationError(f"no syphon has told its status in {str(directory.path)!r}")
    silent_s = time.time() - told.updated_ms / 1000
    if output == "json":
        typer.echo(json.dumps({**asdict(told), "silent_s": round(silent_s, 1)}))
        return
    doing = told.doing
    if doing != "stopped" and silent_s > SILENT_S_MAX:
        doing = f"{doing}, and silent for {silent_s:.0f} s: it may have been killed"
    rows = [("doing", doing)]
    rows += [(outcome, f"{count:,}") for outcome, count in told.counts.items()]
    rows += [(f"set aside for {path}", f"{n:,}") for path, n in told.set_aside.items()]
    rows += [(f"trouble with {queue}", sentence) for queue, sentence in told.faults.items()]
    if told.stalled:
        rows.append(("stalled", told.stalled))
    show_table(("what", ""), rows)


def _change(state: Path | None, **changes: Any) -> None:
    directory = _directory(state)
    directory.set_control(replace(directory.control(), **changes))


def _directory(state: Path | None) -> Any:
    from twinbus.spark.syphon.state import StateDir

    path = state or default_state_dir()
    if not path.is_dir():
        raise ConfigurationError(
            f"there is no state directory {str(path)!r}",
            hint="Give --state as it was given to the syphon",
        )
    return StateDir(path)
