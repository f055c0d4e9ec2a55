"""``twinbus serve``: run the broker in this process until Ctrl-C."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from twinbus.broker.broker import LOOPBACK_NAMES, Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions, Thresholds
from twinbus.cli.output import check_output
from twinbus.cli.wanted import namespace_specs, parse_port
from twinbus.clock import AdjustableClock, Clock, SystemClock
from twinbus.errors import ConfigurationError

TLS_PORT = 5671
ADMIN_PORT = 5300
"""The official emulator's port for HTTP."""

SWITCH_INTERVAL_S = 0.0005
GC_THRESHOLD = 50_000
# Parameters of mallopt() in glibc's malloc.h. Ordinary reads and chunks stay below the size.
MALLOC_TRIM_THRESHOLD = -1
MALLOC_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES_MIN = 512 << 10


def serve(
    data: Annotated[
        Path, typer.Option(help="Directory for messages and keys.", metavar="DIR")
    ] = Path("twinbus-data"),
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
            metavar="[NAMESPACE:]TOPIC/NAME",
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
    output: Annotated[str, typer.Option(help="How to say what is served: text or json.")] = "text",
    metering: Annotated[
        Path | None,
        typer.Option(help="Directory for the operations log [DATA/metering].", metavar="DIR"),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Also log what happens to each message, by its id.")
    ] = False,
    adjustable_clock: Annotated[
        bool,
        typer.Option("--adjustable-clock", help="Let tests move the broker's clock over HTTP."),
    ] = False,
    disk_free_mb: Annotated[
        int, typer.Option(help="Refuse sends (server busy) below this much free disk.", min=0)
    ] = 256,
    entity_rate: Annotated[
        float | None,
        typer.Option(help="Messages a second into one queue; beyond it, server busy."),
    ] = None,
    namespace_rate: Annotated[
        float | None,
        typer.Option(help="Messages a second into one namespace; beyond it, server busy."),
    ] = None,
) -> None:
    """Run a durable Service Bus broker that the stock Azure SDKs can use."""
    check_output(output, "text")
    _check_metering(metering)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    specs = namespace_specs(namespace or [], queue or [], topic or [], subscription or [], config)
    specs = _with_tls_ports(specs, tls_port or [])
    options = BrokerOptions(
        data_directory=None if memory else data,
        host=host,
        admin_port=admin_port,
        tls_certificate=tls_cert,
        tls_key=tls_key,
        tls_names=tuple(tls_name or ()),
        tls_only=tls_only,
        metering_directory=metering,
        audit=audit,
        thresholds=Thresholds(
            disk_free_bytes_min=disk_free_mb << 20,
            entity_messages_per_s_max=entity_rate,
            namespace_messages_per_s_max=namespace_rate,
        ),
    )
    clock = AdjustableClock() if adjustable_clock else SystemClock()
    _run(_serve(options, specs, output, clock))


def _check_metering(directory: Path | None) -> None:
    """Trouble with a log stops nothing later on, so a wrong option has to be told now."""
    try:
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"--metering {str(directory)!r} cannot be used: {error.strerror}",
            hint="Choose a directory in which you may write",
        ) from error


def _run(main: Any) -> None:
    _tune_interpreter()
    try:
        import uvloop
    except ImportError:  # Windows has no uvloop
        asyncio.run(main)
    else:
        uvloop.run(main)


def _tune_interpreter() -> None:
    """Settings of the whole process, so they belong here and not into the library.

    The writer thread gives the interpreter lock up for each call into SQLite. To get it back it
    waits one switch interval: with the usual 5 ms a commit of six calls took 30 ms of waiting
    under load. What a broker allocates lives for milliseconds and holds no cycles, so the
    collector need not look at it every 700 objects.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_THRESHOLD, 20, 100)
    if sys.platform == "linux":
        _give_large_blocks_back()


def _give_large_blocks_back() -> None:
    """Have glibc return large blocks when they are freed.

    It raises the size from which on it does that with every such block, up to 32 MB, and then
    keeps what a burst of large replies or batches has left behind: 30 MB after eight replies.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none, and needs none
        mallopt(MALLOC_MMAP_THRESHOLD, LARGE_BLOCK_BYTES_MIN)
        mallopt(MALLOC_TRIM_THRESHOLD, 2 * LARGE_BLOCK_BYTES_MIN)


def _with_tls_ports(specs: list[NamespaceSpec], wanted: list[str]) -> list[NamespaceSpec]:
    ports: dict[str, int] = {}
    for text in wanted:
        label, colon, port = text.rpartition(":")
        if not colon and len(specs) > 1:
            raise ConfigurationError(
                "--tls-port does not say which namespace it is for",
                hint=f"Write --tls-port {specs[0].name}:{text}",
            )
        name = label if colon else specs[0].name
        if name not in [spec.name for spec in specs]:
            raise ConfigurationError(
                f"--tls-port names the namespace {name!r}, which is not served",
                hint="Add it with --namespace",
            )
        ports[name] = parse_port(port, TLS_PORT)
    return [replace(spec, tls_port=ports.get(spec.name)) for spec in specs]


async def _serve(
    options: BrokerOptions, specs: list[NamespaceSpec], output: str, clock: Clock
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Broker(options, clock=clock) as broker:
        # On the first start there is a certificate to be made, while the disk is waited for.
        certificate = asyncio.create_task(asyncio.to_thread(broker.tls.prepare))
        try:
            for spec in specs:
                await broker.add_namespace(spec)
            administration = await broker.open_administration()
        finally:
            await asyncio.gather(certificate, return_exceptions=True)
        certificate.result()
        _announce(broker, options, output)
        # The HTTP stack takes a third of the start-up time: AMQP clients need not wait for it.
        if administration is not None:
            await administration.reception.http.serving()
        await stop.wait()


def _announce(broker: Broker, options: BrokerOptions, output: str) -> None:
    """Say what is served; these lines hold keys, and go to standard output only."""
    running = broker.namespaces.values()
    admin_port = None if broker.administration is None else broker.administration.port
    ca_path = broker.ca_path
    if output == "json":
        ready = {
            "admin_port": admin_port,
            "ca": None if ca_path is None else str(ca_path),
            "namespaces": {
                each.name: {
                    "port": each.port,
                    "connection_string": each.connection_string,
                    "tls_port": each.tls_port,
                    "tls_connection_string": each.tls_connection_string,
                }
                for each in running
            },
        }
        typer.echo(json.dumps(ready))
        return
    for each in running:
        typer.echo(f"{each.name}: {each.connection_string}")
    where = "memory" if options.data_directory is None else str(options.data_directory)
    typer.echo(f"http://{options.host}:{admin_port}/health · messages in {where} · Ctrl-C stops")
    if ca_path is not None:
        typer.echo(f"TLS on the same ports, for clients that trust {ca_path}")
    if options.host not in LOOPBACK_NAMES and not options.tls_only:
        typer.echo(
            f"twinbus: listening on {options.host} for plain text too: keys and messages of "
            "clients that do not use TLS can be read on the way. Refuse them with --tls-only.",
            err=True,
        )
