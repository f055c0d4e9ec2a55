"""``twinbus serve``: run the broker in this process until Ctrl-C."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from twinbus.broker.broker import LOOPBACK_NAMES, Broker, NamespaceSpec
from twinbus.broker.config_json import parse_config_json
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.options import BrokerOptions, Thresholds
from twinbus.errors import ConfigurationError

DEFAULT_NAMESPACE = "twinbus"
AMQP_PORT = 5672
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
    config: Annotated[
        Path | None,
        typer.Option(help="Config.json of the official emulator.", metavar="FILE"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
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
    disk_free_mb: Annotated[
        int, typer.Option(help="Refuse sends (server busy) below this much free disk.")
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
    if output not in ("text", "json"):
        raise ConfigurationError(f"--output cannot be {output!r}", hint="Use text or json")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    specs = _specs(namespace or [], queue or [], config)
    options = BrokerOptions(
        data_directory=None if memory else data,
        host=host,
        admin_port=admin_port,
        metering_directory=metering,
        audit=audit,
        thresholds=Thresholds(
            disk_free_bytes_min=disk_free_mb << 20,
            entity_messages_per_s_max=entity_rate,
            namespace_messages_per_s_max=namespace_rate,
        ),
    )
    _run(_serve(options, specs, output))


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


def _specs(names: list[str], queues: list[str], config: Path | None) -> list[NamespaceSpec]:
    wanted: dict[str, tuple[int, list[str | QueueDescription]]] = {}
    if config is not None:
        for entry in parse_config_json(_text_of(config)):
            wanted[entry.name] = (AMQP_PORT + len(wanted), list(entry.queues))
    for name in names or ([] if wanted else [DEFAULT_NAMESPACE]):
        label, _colon, port = name.partition(":")
        wanted[label] = (_port(port, AMQP_PORT + len(wanted)), wanted.get(label, (0, []))[1])
    for name in queues:
        label, colon, path = name.rpartition(":")
        if colon and label not in wanted:
            raise ConfigurationError(
                f"--queue names the namespace {label!r}, which is not served",
                hint="Add it with --namespace",
            )
        for _port_number, paths in [wanted[label]] if colon else wanted.values():
            paths.append(path)
    return [NamespaceSpec(label, port, tuple(paths)) for label, (port, paths) in wanted.items()]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error}") from error


def _port(text: str, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise ConfigurationError(f"{text!r} is not a port", hint="Use a number from 0 to 65535")
    return int(text)


async def _serve(options: BrokerOptions, specs: list[NamespaceSpec], output: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Broker(options) as broker:
        for spec in specs:
            await broker.add_namespace(spec)
        listener = _bind(options)
        admin = asyncio.create_task(_serve_admin(broker, listener))
        _announce(broker, listener.getsockname()[1], options, output)
        await stop.wait()
        admin.cancel()
        await asyncio.gather(admin, return_exceptions=True)
        listener.close()


def _bind(options: BrokerOptions) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.admin_port or 0))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"Port {options.admin_port} for HTTP cannot be opened: {error.strerror}",
            hint="Choose another with --admin-port",
        ) from error
    listener.listen(128)
    return listener


async def _serve_admin(broker: Broker, listener: socket.socket) -> None:
    # The HTTP stack takes a third of the start-up time: AMQP clients need not wait for it.
    from twinbus.broker.admin import admin_server

    await admin_server(broker, listener).serve(sockets=[listener])


def _announce(broker: Broker, admin_port: int, options: BrokerOptions, output: str) -> None:
    """Say what is served; these lines hold keys, and go to standard output only."""
    running = broker.namespaces.values()
    if output == "json":
        ready = {
            "admin_port": admin_port,
            "namespaces": {
                each.name: {"port": each.port, "connection_string": each.connection_string}
                for each in running
            },
        }
        typer.echo(json.dumps(ready))
        return
    for each in running:
        typer.echo(f"{each.name}: {each.connection_string}")
    where = "memory" if options.data_directory is None else str(options.data_directory)
    typer.echo(f"http://{options.host}:{admin_port}/health · messages in {where} · Ctrl-C stops")
    if options.host not in LOOPBACK_NAMES:
        typer.echo(
            f"twinbus: listening on {options.host} without TLS: keys and messages can be read "
            "on the way. Use it in a trusted network only.",
            err=True,
        )
