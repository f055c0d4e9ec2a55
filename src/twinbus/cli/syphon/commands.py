"""``twinbus syphon``: the commands.

``twinbus syphon``: bring the messages of the backlog queues home.

This module declares the command; run_local.py and run_on_spark.py do it, and are imported when
they are asked for.

``twinbus syphon pause|resume|rate|status``: tell a running syphon, or ask it; ``prepare``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from twinbus.cli.shared.namespace_options import BACKLOG_QUEUE_COUNT_MAX, AdministrationPort, CaFile
from twinbus.cli.shared.output import (
    DryRun,
    Output,
    check_output_format,
    print_result,
    show_json,
    show_table,
)
from twinbus.cli.shared.values import RATE_PER_S_MIN, rate_between
from twinbus.errors import ConfigurationError
from twinbus.metering.json_lines import check_directory
from twinbus.metering.log_retention import KEEP_DAYS_MAX
from twinbus.pairing.client.driver_name import DriverName, check_driver_name

__all__ = [
    "EXIT_LEFT",
    "TTL_POLICIES",
    "SyphonOptions",
    "default_state_dir",
    "syphon",
    "syphon_app",
]

EXIT_LEFT = 3
"""Messages were left for later or dead-lettered: the summary says which."""

TTL_POLICIES = ("restart", "elapsed", "dead-letter")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOptions:
    """What the command line said."""

    once: bool
    dry_run: bool
    primary_name: str | None
    backlog_queue_count: int | None
    allow: tuple[str, ...]
    accept_owners: tuple[str, ...] = ()
    ttl_policy: str
    gone_grace_s: float
    rate_per_s: float | None
    chunk_count: int
    receipts: str | None
    """A path; on a cluster perhaps an address, which a Path would damage."""
    receipts_days: int | None = None
    ca_file: Path | None
    administration_port: int | None
    output: str
    state: Path | None = None
    master: str | None = None
    checkpoints: str | None = None
    tasks: int | None = None
    driver: DriverName = "amqp"
    metering: Path | None = None
    keep_days: int | None = None
    spool: Path | None = None
    """The data directory of the secondary, where that is a spool of this machine."""


def default_state_dir() -> Path:
    """Where a syphon keeps what it tells and is told, unless --state says otherwise."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "twinbus" / "syphon"


syphon_app = typer.Typer(
    name="syphon", invoke_without_command=True, rich_markup_mode=None, no_args_is_help=False
)


@syphon_app.callback()
def syphon(
    context: typer.Context,
    local: Annotated[
        bool, typer.Option("--local", help="Run in this process, without Spark.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when the backlog queues are empty.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only look: show what would be moved.")
    ] = False,
    primary_name: Annotated[
        str | None,
        typer.Option(help="The primary's name in the backlog queues [its host's first label]."),
    ] = None,
    backlog_queue_count: Annotated[
        int | None,
        typer.Option(
            help="How many backlog queues to poll at least [all that there are].",
            min=1,
            max=BACKLOG_QUEUE_COUNT_MAX,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Deliver to these only; * and ? match; repeatable.", metavar="PATTERN"),
    ] = None,
    accept_owner: Annotated[
        list[str] | None,
        typer.Option(
            help="Address of a primary whose messages to move as well, for example the old address "
            "of this one; * for all; repeatable.",
            metavar="ADDRESS",
        ),
    ] = None,
    ttl_policy: Annotated[
        str, typer.Option(help="Time in the backlog: restart, elapsed or dead-letter.")
    ] = "restart",
    gone_grace: Annotated[
        float,
        typer.Option(help="Seconds before messages for a missing entity are dead-lettered.", min=0),
    ] = 600.0,
    rate: Annotated[
        str | None,
        typer.Option(help="Maximum rate, for example 500/s.", metavar="RATE"),
    ] = None,
    chunk: Annotated[int, typer.Option(help="Messages in one chunk.", min=1, max=1_000)] = 1_000,
    receipts: Annotated[
        str | None,
        typer.Option(
            help="Where receipts go: a directory for Parquet [in the state directory]; with "
            "--local a file, one line of JSON for each message.",
            metavar="PATH",
        ),
    ] = None,
    receipts_days: Annotated[
        int | None,
        typer.Option(help="Remove receipts of runs that ended so many days ago.", min=1),
    ] = None,
    metering: Annotated[
        Path | None,
        typer.Option(
            help="Count what the syphon does here, for cost reports; on every machine that moves.",
            metavar="DIR",
        ),
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option(
            help="Days to keep the files in --metering, those of other clients too [all are kept].",
            min=1,
            max=KEEP_DAYS_MAX,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="For status, control and receipts [~/.local/state/twinbus/syphon].",
            metavar="DIR",
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark's master or sc:// address [this machine].")
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(help="On a cluster: a directory that all its machines can write."),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(help="Tasks at once [as many as Spark has cores].", min=1)
    ] = None,
    driver: Annotated[
        str,
        typer.Option(help="What moves messages: amqp, our lean client, or servicebus, the SDK."),
    ] = "amqp",
    ca_file: CaFile = None,
    administration_port: AdministrationPort = None,
    spool: Annotated[
        Path | None,
        typer.Option(
            help="The secondary is the EmbeddedNamespace with this data directory; its application "
            "may have ended.",
            metavar="DIR",
        ),
    ] = None,
    output: Output = "table",
) -> None:
    """Bring the messages of the backlog queues home to the primary, on Spark.

    The namespaces come from the environment: SERVICEBUS_CONNECTION_STRING for the primary and
    SERVICEBUS_SECONDARY_CONNECTION_STRING for the secondary. Listen on the backlog queues and
    Send on the destinations are needed. With Manage on the secondary the backlog queues are
    listed, without it they are looked for by their numbers.

    Exit codes: 0 everything is home, 1 the command failed or a backlog queue could not be read,
    2 wrong usage, 3 messages were left for later or dead-lettered, or may have a second copy, or
    --once was stopped before the backlog was empty.
    """
    if context.invoked_subcommand is not None:
        return
    check_output_format(output)
    if ttl_policy not in TTL_POLICIES:
        raise ConfigurationError(
            f"--ttl-policy cannot be {ttl_policy!r}", hint=f"Use {', '.join(TTL_POLICIES)}"
        )
    check_driver_name(driver, "--driver")
    if local:
        _check_local(
            {
                "--state": state,
                "--master": master,
                "--checkpoints": checkpoints,
                "--tasks": tasks,
                "--receipts-days": receipts_days,
            }
        )
    if metering is not None:
        check_directory(metering, "--metering")
    elif keep_days is not None:
        raise ConfigurationError(
            "--keep-days is for the files of --metering", hint="Name a directory with --metering"
        )
    options = SyphonOptions(
        once=once,
        dry_run=dry_run,
        primary_name=primary_name,
        backlog_queue_count=backlog_queue_count,
        allow=tuple(allow or ["*"]),
        accept_owners=tuple(accept_owner or ()),
        ttl_policy=ttl_policy,
        gone_grace_s=gone_grace,
        rate_per_s=None if rate is None else rate_between("--rate", rate, RATE_PER_S_MIN),
        chunk_count=chunk,
        receipts=receipts,
        receipts_days=receipts_days,
        ca_file=ca_file,
        administration_port=administration_port,
        output=output,
        state=state,
        master=master,
        checkpoints=checkpoints,
        tasks=tasks,
        driver=cast("DriverName", driver),
        metering=metering,
        keep_days=keep_days,
        spool=spool,
    )
    if spool is None:
        code = _run_here(options) if local else _run_on_spark(options)
    else:
        if master is not None:
            raise ConfigurationError(
                "--spool is on this machine, where those of a cluster do not reach it",
                hint="Remove --master",
            )
        # The broker: 400 ms that nobody else should pay.
        from twinbus.cli.syphon.spool import spool_served

        with spool_served(spool):
            code = _run_here(options) if local else _run_on_spark(options)
    if code:
        raise typer.Exit(code)


def _check_local(of_spark: Mapping[str, object]) -> None:
    for name, value in of_spark.items():
        if value is not None:
            raise ConfigurationError(
                f"{name} is for a syphon on Spark, and --local runs without it",
                hint="Leave one of them out",
            )


# The drivers and the pairing are loaded here: 200 ms that other commands should not pay.


def _run_here(options: SyphonOptions) -> int:
    from twinbus.cli.syphon.run_local import run_syphon

    return run_syphon(options)


def _run_on_spark(options: SyphonOptions) -> int:
    from twinbus.cli.syphon.spark_session import PendingSparkSession
    from twinbus.cli.syphon.summary import named
    from twinbus.pairing.client.environment import ROLES

    # No JVM is started for somebody who has not said where the messages are.
    for role in ROLES:
        named(role, options)
    session = PendingSparkSession(options.master, options.tasks)
    from twinbus.cli.syphon.run_on_spark import run_on_spark

    return run_on_spark(options, session)


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
    from twinbus.spark.runtime.session import require_pyspark

    require_pyspark()
    from twinbus.spark.errors import translate_spark_errors
    from twinbus.spark.runtime.prepare import prepare as make

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
    from twinbus.spark.syphon.state_directory import StateDir

    path = state or default_state_dir()
    if not path.is_dir():
        raise ConfigurationError(
            f"there is no state directory {str(path)!r}",
            hint="Give --state as it was given to the syphon",
        )
    return StateDir(path)
