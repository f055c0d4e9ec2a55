"""``twinbus serve``: runs the broker in this process until Ctrl-C."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from twinbus.cli.shared.output import check_output_format
from twinbus.cli.shared.values import rate_per_s
from twinbus.common.clock import AdjustableClock, SystemClock
from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError
from twinbus.metering.json_lines import check_directory

ADMIN_PORT = 5300
"""The HTTP port of the official emulator."""
KEEP_DAYS = 400
# The defaults of BrokerOptions, which takes long to import.
CONNECTIONS_MAX = 5_000
STRANGERS_MAX = 512


def serve(
    data: Annotated[
        Path | None,
        typer.Option(help="Directory for messages and keys [twinbus-data].", metavar="DIR"),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory", help="Keep messages and keys in memory, without a data directory."
        ),
    ] = False,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Namespace to serve and its port; repeatable. Port 0 selects a free port.",
            metavar="NAME[:PORT]",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            help="Queue to create if missing, in one namespace or in all; repeatable.",
            metavar="[NAMESPACE:]NAME",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Topic to create if missing; repeatable.", metavar="[NAMESPACE:]NAME"),
    ] = None,
    subscription: Annotated[
        list[str] | None,
        typer.Option(
            help="Subscription to create if missing, without a filter; repeatable.",
            metavar="[NAMESPACE:]TOPIC/subscriptions/NAME",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Path of a Config.json of the official emulator.", metavar="FILE"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    tls_port: Annotated[
        list[str] | None,
        typer.Option(
            help="Additional port of a namespace, for TLS only; Azure uses 5671.",
            metavar="[NAMESPACE:]PORT",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate (PEM) to use instead of a generated one.", metavar="FILE"),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key of --tls-cert (PEM).", metavar="FILE")
    ] = None,
    tls_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Additional name in the generated certificate; repeatable.", metavar="NAME"
        ),
    ] = None,
    tls_only: Annotated[
        bool, typer.Option("--tls-only", help="Refuse AMQP and HTTP without TLS on every port.")
    ] = False,
    admin_port: Annotated[
        int, typer.Option(help="Port for HTTP (health, administration); 0 selects a free port.")
    ] = ADMIN_PORT,
    output: Annotated[
        str, typer.Option(help="Format of the start-up lines: table (plain lines), json or jsonl.")
    ] = "table",
    metering: Annotated[
        Path | None,
        typer.Option(help="Directory for the operations log [DATA/metering].", metavar="DIR"),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Also write an audit log of each message, by its id.")
    ] = False,
    keep_days: Annotated[
        int,
        typer.Option(
            help="Days to keep files of the operations and audit logs; 0 keeps all files. 400 "
            "days include the same month of the previous year.",
            min=0,
        ),
    ] = KEEP_DAYS,
    faults: Annotated[
        bool | None,
        typer.Option(
            "--faults/--no-faults",
            help="Allow faults, stops and clock changes over HTTP [only on loopback].",
            show_default=False,
        ),
    ] = None,
    connections: Annotated[
        int,
        typer.Option(help="Maximum number of connections with a token, per namespace.", min=1),
    ] = CONNECTIONS_MAX,
    strangers: Annotated[
        int,
        typer.Option(
            help="Maximum number of connections without a token, per port; a new connection "
            "replaces one that made no progress for the longest time.",
            min=1,
        ),
    ] = STRANGERS_MAX,
    idle_detach: Annotated[
        str | None,
        typer.Option(
            help="Idle time after which links are detached; Azure uses 10m [never].",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    adjustable_clock: Annotated[
        bool,
        typer.Option("--adjustable-clock", help="Allow clock changes over HTTP, for tests."),
    ] = False,
    disk_free_mb: Annotated[
        int, typer.Option(help="Free disk space in MB below which sends get ServerBusy.", min=0)
    ] = 256,
    entity_rate: Annotated[
        str | None,
        typer.Option(
            help="Maximum message rate of an entity, for example 500/s; above it, ServerBusy.",
            metavar="RATE",
        ),
    ] = None,
    namespace_rate: Annotated[
        str | None,
        typer.Option(
            help="Maximum message rate of a namespace, for example 5k/s; above it, ServerBusy.",
            metavar="RATE",
        ),
    ] = None,
) -> None:
    """Run a durable Service Bus broker that the Azure SDKs can use unchanged."""
    check_output_format(output)
    if memory and data is not None:
        raise ConfigurationError(
            "--memory and --data exclude each other", hint="Remove --memory or --data"
        )
    if metering is not None:
        check_directory(metering, "--metering")
    # Imported late: the broker takes 0.4 s to load.
    from twinbus.broker.options import BrokerOptions, ThrottleThresholds
    from twinbus.cli.broker.run import namespace_specs, run_broker, with_tls_ports

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    specs = namespace_specs(namespace or [], queue or [], topic or [], subscription or [], config)
    specs = with_tls_ports(specs, tls_port or [])
    options = BrokerOptions(
        data_directory=None if memory else data or Path("twinbus-data"),
        host=host,
        admin_port=admin_port,
        tls_certificate=tls_cert,
        tls_key=tls_key,
        tls_names=tuple(tls_name or ()),
        tls_only=tls_only,
        metering_directory=metering,
        audit=audit,
        keep_days=keep_days or None,
        faults=faults,
        connections_max=connections,
        strangers_max=strangers,
        idle_detach_s=None if idle_detach is None else seconds(idle_detach),
        thresholds=ThrottleThresholds(
            disk_free_bytes_min=disk_free_mb << 20,
            entity_messages_per_s_max=_rate(entity_rate),
            namespace_messages_per_s_max=_rate(namespace_rate),
        ),
    )
    clock = AdjustableClock() if adjustable_clock else SystemClock()
    run_broker(options, specs, output, clock)


def _rate(text: str | None) -> float | None:
    return None if text is None else float(rate_per_s(text))
