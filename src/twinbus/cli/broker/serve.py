"""``twinbus serve``: run the broker in this process until Ctrl-C."""

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
"""The official emulator's port for HTTP."""
KEEP_DAYS = 400
# Those of BrokerOptions, which would take long to import here.
CONNECTIONS_MAX = 5_000
STRANGERS_MAX = 512


def serve(
    data: Annotated[
        Path | None,
        typer.Option(help="Directory for messages and keys [twinbus-data].", metavar="DIR"),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep everything in memory instead.")
    ] = False,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Namespace to serve, with its port; repeatable. Port 0 takes a free one.",
            metavar="NAME[:PORT]",
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            help="Queue to create if missing, in every namespace or in one; repeatable.",
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
            help="Subscription to create if missing, for every message; repeatable.",
            metavar="[NAMESPACE:]TOPIC/subscriptions/NAME",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Config.json of the official emulator.", metavar="FILE"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    tls_port: Annotated[
        list[str] | None,
        typer.Option(
            help="One more port of a namespace, for TLS alone (5671 is what clients expect).",
            metavar="[NAMESPACE:]PORT",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate (PEM) to show instead of our own.", metavar="FILE"),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The key of that certificate (PEM).", metavar="FILE")
    ] = None,
    tls_name: Annotated[
        list[str] | None,
        typer.Option(help="One more name in our own certificate; repeatable.", metavar="NAME"),
    ] = None,
    tls_only: Annotated[
        bool, typer.Option("--tls-only", help="Refuse plain AMQP and plain HTTP on every port.")
    ] = False,
    admin_port: Annotated[
        int, typer.Option(help="Port for HTTP (health, administration); 0 takes a free one.")
    ] = ADMIN_PORT,
    output: Annotated[
        str, typer.Option(help="How to say what is served: table (plain lines), json or jsonl.")
    ] = "table",
    metering: Annotated[
        Path | None,
        typer.Option(help="Directory for the operations log [DATA/metering].", metavar="DIR"),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Also log what happens to each message, by its id.")
    ] = False,
    keep_days: Annotated[
        int,
        typer.Option(
            help="Days to keep files of the operations and audit logs; 0 keeps all. 400 "
            "days include the same month of last year.",
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
        typer.Option(help="Maximum number of connections to each namespace with a token.", min=1),
    ] = CONNECTIONS_MAX,
    strangers: Annotated[
        int,
        typer.Option(
            help="Maximum number of connections to each port without a token; a new one "
            "replaces the oldest.",
            min=1,
        ),
    ] = STRANGERS_MAX,
    idle_detach: Annotated[
        str | None,
        typer.Option(
            help="Detach links that are idle for this long, as Azure does after 10m [never].",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    adjustable_clock: Annotated[
        bool,
        typer.Option("--adjustable-clock", help="Let tests move the broker's clock over HTTP."),
    ] = False,
    disk_free_mb: Annotated[
        int, typer.Option(help="Refuse sends (server busy) below this much free disk.", min=0)
    ] = 256,
    entity_rate: Annotated[
        str | None,
        typer.Option(
            help="Most messages into one queue, as 500/s; beyond it, server busy.", metavar="RATE"
        ),
    ] = None,
    namespace_rate: Annotated[
        str | None,
        typer.Option(
            help="Most messages into one namespace, as 5k/s; beyond it, server busy.",
            metavar="RATE",
        ),
    ] = None,
) -> None:
    """Run a durable Service Bus broker that the stock Azure SDKs can use."""
    check_output_format(output)
    if memory and data is not None:
        raise ConfigurationError(
            "--memory keeps everything in memory, and --data names a directory for it",
            hint="Leave one of them out",
        )
    if metering is not None:
        check_directory(metering, "--metering")
    # The broker takes 0.4 s to load, which other commands and a wrong usage need not wait for.
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
