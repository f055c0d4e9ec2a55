"""``twinbus syphon`` and its subcommands pause, resume, rate, status and prepare.

run_local.py and run_on_spark.py run the syphon and are imported late. The subcommands read and
write the state directory of a running syphon.
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
"""Messages were left or dead-lettered; the summary has their numbers."""

TTL_POLICIES = ("restart", "elapsed", "dead-letter")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOptions:
    """The options of the command."""

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
    """A path, or on a cluster a URL, which ``Path`` would damage."""
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
    """The data directory of the secondary, if it is a spool of this machine."""


def default_state_dir() -> Path:
    """The state directory of a syphon without --state."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "twinbus" / "syphon"


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
        bool, typer.Option("--dry-run", help="Show what would be moved, without moving it.")
    ] = False,
    primary_name: Annotated[
        str | None,
        typer.Option(help="Name of the primary in backlog queue paths [first label of its host]."),
    ] = None,
    backlog_queue_count: Annotated[
        int | None,
        typer.Option(
            help="Minimum number of backlog queues to poll [all existing queues].",
            min=1,
            max=BACKLOG_QUEUE_COUNT_MAX,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Pattern of allowed destinations, with * and ?; repeatable [all].",
            metavar="PATTERN",
        ),
    ] = None,
    accept_owner: Annotated[
        list[str] | None,
        typer.Option(
            help="Address of another primary whose messages are moved as well, for example the "
            "earlier address of this one; * for all; repeatable.",
            metavar="ADDRESS",
        ),
    ] = None,
    ttl_policy: Annotated[
        str,
        typer.Option(help="Time to live of moved messages: restart, elapsed or dead-letter."),
    ] = "restart",
    gone_grace: Annotated[
        float,
        typer.Option(help="Seconds before messages for a missing entity are dead-lettered.", min=0),
    ] = 600.0,
    rate: Annotated[
        str | None,
        typer.Option(help="Maximum message rate, for example 500/s.", metavar="RATE"),
    ] = None,
    chunk: Annotated[int, typer.Option(help="Messages per chunk.", min=1, max=1_000)] = 1_000,
    receipts: Annotated[
        str | None,
        typer.Option(
            help="Directory for Parquet receipts [in the state directory]; with --local a file "
            "with one JSON line for each message [none].",
            metavar="PATH",
        ),
    ] = None,
    receipts_days: Annotated[
        int | None,
        typer.Option(
            help="Days to keep receipts after the end of their run [all are kept].", min=1
        ),
    ] = None,
    metering: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the operations log, on every machine that moves messages [none].",
            metavar="DIR",
        ),
    ] = None,
    keep_days: Annotated[
        int | None,
        typer.Option(
            help="Days to keep files in --metering, including those of other clients [all].",
            min=1,
            max=KEEP_DAYS_MAX,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Directory for status, control and receipts [~/.local/state/twinbus/syphon].",
            metavar="DIR",
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark master or sc:// address [this machine].")
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(help="Checkpoint directory on a cluster, writable by all its machines."),
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(help="Number of parallel tasks [cores of Spark].", min=1)
    ] = None,
    driver: Annotated[
        str,
        typer.Option(help="Driver: amqp (twinbus client) or servicebus (official SDK)."),
    ] = "amqp",
    ca_file: CaFile = None,
    administration_port: AdministrationPort = None,
    spool: Annotated[
        Path | None,
        typer.Option(
            help="Data directory of an EmbeddedNamespace that is the secondary; its application "
            "may have ended.",
            metavar="DIR",
        ),
    ] = None,
    output: Output = "table",
) -> None:
    """Move messages from the backlog queues to the primary, on Spark.

    The namespaces come from the environment: SERVICEBUS_CONNECTION_STRING for the primary and
    SERVICEBUS_SECONDARY_CONNECTION_STRING for the secondary. With the Manage claim on the secondary
    the backlog queues are listed; without it they are searched by number.

    Requires the Listen claim on the backlog queues and the Send claim on the destinations.

    Exit codes: 0 all messages were moved, 1 the command failed or a backlog queue could not be
    read, 2 wrong usage, 3 messages were left or dead-lettered, or may have a duplicate, or --once
    was stopped before the backlog was empty.
    """
    if context.invoked_subcommand is not None:
        return
    check_output_format(output)
    if ttl_policy not in TTL_POLICIES:
        raise ConfigurationError(
            f"Invalid value for --ttl-policy: {ttl_policy!r}",
            hint="Use restart, elapsed or dead-letter",
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
            "--keep-days requires --metering", hint="Add --metering DIR, or remove --keep-days"
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
                "--spool and --master exclude each other: a cluster cannot reach a local spool",
                hint="Remove --master",
            )
        # Imported late: the broker takes 400 ms to load.
        from twinbus.cli.syphon.spool import serve_spool

        with serve_spool(spool):
            code = _run_here(options) if local else _run_on_spark(options)
    if code:
        raise typer.Exit(code)


def _check_local(spark_options: Mapping[str, object]) -> None:
    for name, value in spark_options.items():
        if value is not None:
            raise ConfigurationError(
                f"{name} requires Spark and cannot be used with --local",
                hint=f"Remove {name} or --local",
            )


# Imported late: the drivers and the pairing take 200 ms to load.


def _run_here(options: SyphonOptions) -> int:
    from twinbus.cli.syphon.run_local import run_syphon

    return run_syphon(options)


def _run_on_spark(options: SyphonOptions) -> int:
    from twinbus.cli.syphon.spark_session import PendingSparkSession
    from twinbus.cli.syphon.summary import resolve_namespace
    from twinbus.pairing.client.environment import ROLES

    # A missing connection string is reported before a JVM starts.
    for role in ROLES:
        resolve_namespace(role, options)
    session = PendingSparkSession(options.master, options.tasks)
    from twinbus.cli.syphon.run_on_spark import run_on_spark

    return run_on_spark(options, session)


State = Annotated[
    Path | None,
    typer.Option(
        help="State directory of the syphon [~/.local/state/twinbus/syphon].", metavar="DIR"
    ),
]

# A syphon writes its status twice a second.
SILENT_S_MAX: Final = 10.0


@syphon_app.command("pause")
def pause(state: State = None, dry_run: DryRun = False, output: Output = "table") -> None:
    """Pause a running syphon; messages that it has already received are still moved."""
    _change(state, dry_run, output, "Paused", is_paused=True)


@syphon_app.command("resume")
def resume(state: State = None, dry_run: DryRun = False, output: Output = "table") -> None:
    """Resume a paused syphon."""
    _change(state, dry_run, output, "Resumed", is_paused=False)


@syphon_app.command("rate")
def rate(
    per_second: Annotated[
        str | None,
        typer.Argument(
            help="Maximum rate, for example 500/s or 5k/h [the rate at its start].",
            metavar="[RATE]",
        ),
    ] = None,
    state: State = None,
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Change the maximum message rate of a running syphon."""
    wanted = None if per_second is None else rate_between("RATE", per_second, RATE_PER_S_MIN)
    target = "the rate at its start" if wanted is None else f"{wanted:g} messages/s"
    _change(state, dry_run, output, f"Rate set to {target}", rate_per_s=wanted)


@syphon_app.command("prepare")
def prepare() -> None:
    """Prepare faster starts of Spark on this machine.

    Takes about a minute, and 180 MB in the cache directory.
    """
    from twinbus.spark.runtime.session import require_pyspark

    require_pyspark()
    from twinbus.spark.errors import translate_spark_errors
    from twinbus.spark.runtime.prepare import prepare as make

    typer.echo("Preparing the classes of Spark: about a minute", err=True)
    with translate_spark_errors():
        typer.echo(f"Prepared: {make()}")


@syphon_app.command("status")
def status(
    state: State = None,
    output: Output = "table",
) -> None:
    """Show the status of a syphon."""
    check_output_format(output)
    directory = _directory(state)
    latest = directory.status()
    if latest is None:
        raise ConfigurationError(
            f"No syphon status found in {str(directory.path)!r}",
            hint="Use the --state of the syphon",
        )
    silent_s = time.time() - latest.updated_ms / 1000
    if output != "table":
        show_json({**asdict(latest), "silent_s": round(silent_s, 1)}, output)
        return
    doing = latest.doing
    if doing != "stopped" and silent_s > SILENT_S_MAX:
        doing = f"{doing}; no update for {silent_s:.0f} s: it may have been killed"
    rows = [("state", doing)]
    rows += [(outcome, f"{count:,}") for outcome, count in latest.counts.items()]
    rows += [(f"deferred for {path}", f"{n:,}") for path, n in latest.deferred_now.items()]
    rows += [(f"error of {queue}", sentence) for queue, sentence in latest.faults.items()]
    if latest.stalled:
        rows.append(("stalled", latest.stalled))
    if (rate_per_s := directory.control().rate_per_s) is not None:
        rows.append(("maximum rate", f"{rate_per_s:g} messages/s"))
    show_table(("status", "value"), rows)


def _change(state: Path | None, dry_run: bool, output: str, sentence: str, **changes: Any) -> None:
    """Write the control file, which the syphon reads."""
    check_output_format(output)
    directory = _directory(state)
    wanted = replace(directory.control(), **changes)
    if dry_run:
        where = str(directory.path)
        print_result(
            output, {"would_set": asdict(wanted)}, f"Would be written to {where!r}: {sentence}"
        )
        return
    directory.set_control(wanted)
    is_running = directory.is_taken
    later = "" if is_running else "; no syphon uses this directory now, so it applies to the next"
    print_result(output, {"set": asdict(wanted), "is_running": is_running}, f"{sentence}{later}")


def _directory(state: Path | None) -> Any:
    from twinbus.spark.syphon.state_directory import StateDir

    path = state or default_state_dir()
    if not path.is_dir():
        raise ConfigurationError(
            f"State directory {str(path)!r} not found",
            hint="Use the --state of the syphon",
        )
    return StateDir(path)
