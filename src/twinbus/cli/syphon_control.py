"""``twinbus syphon pause|resume|rate|status``: tell a running syphon, or ask it; ``prepare``."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from twinbus.cli.quantities import RATE_PER_S_MIN, rate_between
from twinbus.cli.showing import DryRun, Output, check_output_format, print_result, show_json
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
def pause(state: State = None, dry_run: DryRun = False, output: Output = "table") -> None:
    """Receive nothing until resume; what is under way ends."""
    _change(state, dry_run, output, "paused", is_paused=True)


@syphon_app.command("resume")
def resume(state: State = None, dry_run: DryRun = False, output: Output = "table") -> None:
    """Go on after a pause."""
    _change(state, dry_run, output, "resumed", is_paused=False)


@syphon_app.command("rate")
def rate(
    per_second: Annotated[
        str | None,
        typer.Argument(help="As 500/s or 5k/h; none: as it was started.", metavar="[RATE]"),
    ] = None,
    state: State = None,
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Change how fast messages come home."""
    wanted = None if per_second is None else rate_between("rate", per_second, RATE_PER_S_MIN)
    told = "as it was started" if wanted is None else f"{wanted:g} messages a second"
    _change(state, dry_run, output, told, rate_per_s=wanted)


@syphon_app.command("prepare")
def prepare() -> None:
    """Make later starts on this machine faster: a minute, and 180 MB in the cache directory."""
    from twinbus.spark.session import require_pyspark

    require_pyspark()
    from twinbus.spark.preparing import prepare as make
    from twinbus.spark.troubles import translate_spark_errors

    typer.echo("preparing Spark's classes: about a minute", err=True)
    with translate_spark_errors():
        typer.echo(f"prepared: {make()}")


@syphon_app.command("status")
def status(
    state: State = None,
    output: Output = "table",
) -> None:
    """Show what the syphon does and has done."""
    check_output_format(output)
    directory = _directory(state)
    told = directory.status()
    if told is None:
        raise ConfigurationError(
            f"no syphon has told its status in {str(directory.path)!r}",
            hint="Start one with this --state, or give --state as it was given to it",
        )
    silent_s = time.time() - told.updated_ms / 1000
    if output != "table":
        show_json({**asdict(told), "silent_s": round(silent_s, 1)}, output)
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
    if (rate_per_s := directory.control().rate_per_s) is not None:
        rows.append(("told rate", f"{rate_per_s:g} messages a second"))
    show_table(("what", ""), rows)


def _change(state: Path | None, dry_run: bool, output: str, sentence: str, **changes: Any) -> None:
    """Write the wish down, where the syphon looks for it."""
    check_output_format(output)
    directory = _directory(state)
    wanted = replace(directory.control(), **changes)
    if dry_run:
        where = str(directory.path)
        print_result(
            output, {"would_set": asdict(wanted)}, f"{sentence}: would be asked for in {where!r}"
        )
        return
    directory.set_control(wanted)
    is_running = directory.is_taken
    later = "" if is_running else ": for the next syphon, because none runs with this directory now"
    print_result(output, {"set": asdict(wanted), "is_running": is_running}, f"{sentence}{later}")


def _directory(state: Path | None) -> Any:
    from twinbus.spark.syphon.state import StateDir

    path = state or default_state_dir()
    if not path.is_dir():
        raise ConfigurationError(
            f"there is no state directory {str(path)!r}",
            hint="Give --state as it was given to the syphon",
        )
    return StateDir(path)
