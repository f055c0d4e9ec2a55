"""A broker in this process, from the options of ``twinbus serve`` until Ctrl-C."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import signal
import sys
from collections.abc import Coroutine
from dataclasses import replace

import typer

from twinbus.broker.broker import LOOPBACK_NAMES, Broker, NamespaceSpec
from twinbus.broker.options import BrokerOptions
from twinbus.cli.wanted import parse_port
from twinbus.clock import Clock
from twinbus.errors import ConfigurationError

__all__ = ["run_broker", "with_tls_ports"]

TLS_PORT = 5671

SWITCH_INTERVAL_S = 0.0005
GC_THRESHOLD = 50_000
# Parameters of mallopt() in glibc's malloc.h. Ordinary reads and chunks stay below the size.
MALLOC_TRIM_THRESHOLD = -1
MALLOC_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES_MIN = 512 << 10


def run_broker(
    options: BrokerOptions, specs: list[NamespaceSpec], output: str, clock: Clock
) -> None:
    """Serve until SIGINT or SIGTERM."""
    _run(_serve(options, specs, output, clock))


def _run(main: Coroutine[None, None, None]) -> None:
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


def with_tls_ports(specs: list[NamespaceSpec], wanted: list[str]) -> list[NamespaceSpec]:
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
    if output != "table":
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
