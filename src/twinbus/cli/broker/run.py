"""Runs the broker of ``twinbus serve`` in this process, until SIGINT or SIGTERM.

The namespaces and their entities come from the options; a name without a namespace is created in
every namespace:

    --queue orders  --topic east:news  --subscription east:news/all
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import typer

from twinbus.broker.broker import Broker, NamespaceSpec
from twinbus.broker.emulator_config import NamespaceConfig, SubscriptionConfig, parse_config_json
from twinbus.broker.engine.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.file_descriptors import fit_connections, raise_descriptor_limit
from twinbus.broker.options import BrokerOptions
from twinbus.broker.storage.data_directory import list_namespaces
from twinbus.broker.violation_log import LogFloodFilter
from twinbus.cli.broker.memory_trim import give_memory_back
from twinbus.cli.shared.messages import split_subscription
from twinbus.common import event_loop
from twinbus.common.clock import Clock
from twinbus.errors import ConfigurationError

__all__ = [
    "AMQP_PORT",
    "DEFAULT_NAMESPACE",
    "NamespaceSpecBuilder",
    "namespace_specs",
    "parse_port",
    "run_broker",
    "with_tls_ports",
]

DEFAULT_NAMESPACE: Final = "twinbus"
AMQP_PORT: Final = 5672


@dataclass(slots=True)
class NamespaceSpecBuilder:
    """One namespace, while the options are read."""

    port: int
    queues: list[str | QueueDescription] = field(default_factory=list)
    topics: list[str | TopicDescription] = field(default_factory=list)
    subscriptions: list[SubscriptionConfig] = field(default_factory=list)

    def add(self, entry: NamespaceConfig) -> None:
        self.queues.extend(entry.queues)
        self.topics.extend(entry.topics)
        self.subscriptions.extend(entry.subscriptions)


def namespace_specs(
    names: list[str],
    queues: list[str],
    topics: list[str],
    subscriptions: list[str],
    config: Path | None,
) -> list[NamespaceSpec]:
    """The namespaces of the options."""
    wanted: dict[str, NamespaceSpecBuilder] = {}
    if config is not None:
        for entry in parse_config_json(_text_of(config)):
            wanted[entry.name] = NamespaceSpecBuilder(AMQP_PORT + len(wanted))
            wanted[entry.name].add(entry)
    for name in names or ([] if wanted else [DEFAULT_NAMESPACE]):
        label, _colon, port = name.partition(":")
        number = parse_port(port, AMQP_PORT + len(wanted))
        wanted.setdefault(label, NamespaceSpecBuilder(number)).port = number
    for name in queues:
        for each, path in _addressed("--queue", name, wanted):
            each.queues.append(path)
    for name in topics:
        for each, path in _addressed("--topic", name, wanted):
            each.topics.append(path)
    for name in subscriptions:
        for each, path in _addressed("--subscription", name, wanted):
            each.subscriptions.append(SubscriptionConfig(_subscription(path)))
    return [
        NamespaceSpec(
            label,
            each.port,
            queues=tuple(each.queues),
            topics=tuple(each.topics),
            subscriptions=tuple(each.subscriptions),
        )
        for label, each in wanted.items()
    ]


def _addressed(
    option: str, name: str, wanted: dict[str, NamespaceSpecBuilder]
) -> list[tuple[NamespaceSpecBuilder, str]]:
    """The namespaces that ``[NAMESPACE:]PATH`` is for, and the path."""
    label, colon, path = name.rpartition(":")
    if colon and label not in wanted:
        raise ConfigurationError(
            f"Invalid value for {option}: namespace {label!r} is not served",
            hint=f"Add --namespace {label}",
        )
    return [(each, path) for each in ([wanted[label]] if colon else wanted.values())]


def _subscription(path: str) -> SubscriptionDescription:
    """``TOPIC/subscriptions/NAME``, as everywhere, or ``TOPIC/NAME``."""
    parts = split_subscription(path)
    topic, slash, name = path.rpartition("/") if parts is None else (parts[0], "/", parts[1])
    if not slash:
        raise ConfigurationError(
            f"Invalid value for --subscription: {path!r} has no topic",
            hint="Use TOPIC/subscriptions/NAME",
        )
    return SubscriptionDescription(path=f"{topic}/subscriptions/{name}")


def parse_port(text: str, default: int) -> int:
    """A port as text; ``default`` for none."""
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise ConfigurationError(f"Invalid port: {text!r}", hint="Use a number from 0 to 65535")
    return int(text)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigurationError(
            f"Cannot read {str(path)!r}: {reason}", hint="Check the path in --config"
        ) from error


logger = logging.getLogger("twinbus.broker")

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
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogFloodFilter())
    descriptor_max = raise_descriptor_limit()
    fitted = fit_connections(options, descriptor_max, len(specs))
    _log_connection_limits(options, fitted, descriptor_max)
    _log_unserved(options, specs)
    _run(_serve(fitted, specs, output, clock))


def _log_connection_limits(
    wanted: BrokerOptions, got: BrokerOptions, descriptor_max: int | None
) -> None:
    """Log the maximum number of connections, and why it is lower than configured."""
    logger.info(
        "File descriptors: %s. Connections: %d to each namespace with a token, %d without",
        "no limit" if descriptor_max is None else descriptor_max,
        got.connections_max,
        got.strangers_max,
    )
    if (got.connections_max, got.strangers_max) != (wanted.connections_max, wanted.strangers_max):
        logger.warning(
            "The process may open %s files, too few for %d connections to each namespace with a "
            "token and %d without. Raise the limit with `ulimit -Hn`, or with LimitNOFILE in a "
            "systemd unit",
            descriptor_max,
            wanted.connections_max,
            wanted.strangers_max,
        )


def _log_unserved(options: BrokerOptions, specs: list[NamespaceSpec]) -> None:
    """Warn of namespaces in the data directory that are not served: a name may be mistyped."""
    if options.data_directory is None:
        return
    held = list_namespaces(options.data_directory)
    served = [spec.name.lower() for spec in specs]
    for name in held:
        if name not in served:
            new = [spec.name for spec in specs if spec.name.lower() not in held]
            created = f" Namespace {new[0]!r} is new and empty." if new else ""
            logger.warning(
                "Data directory %s contains namespace %r, which is not served.%s Add --namespace "
                "%s to serve it",
                options.data_directory,
                name,
                created,
                name,
            )


def _run(main: Coroutine[None, None, None]) -> None:
    _tune_interpreter()
    event_loop.run(main)


def _tune_interpreter() -> None:
    """Settings of the whole process, which is why they are here and not in the library.

    The writer thread releases the interpreter lock for each call into SQLite and waits one switch
    interval to get it back: with the default of 5 ms a commit of six calls waited 30 ms under
    load. A broker's objects live for milliseconds and have no cycles, so the garbage collector
    does not have to run every 700 objects.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_THRESHOLD, 20, 100)
    if sys.platform == "linux":
        _return_large_blocks()


def _return_large_blocks() -> None:
    """Make glibc return large blocks to the operating system when they are freed.

    By default glibc raises the size limit for this with every such block, up to 32 MB, and then
    keeps the memory of a burst of large replies or batches: 30 MB after eight replies.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none and does not need it
        mallopt(MALLOC_MMAP_THRESHOLD, LARGE_BLOCK_BYTES_MIN)
        mallopt(MALLOC_TRIM_THRESHOLD, 2 * LARGE_BLOCK_BYTES_MIN)


def with_tls_ports(specs: list[NamespaceSpec], wanted: list[str]) -> list[NamespaceSpec]:
    ports: dict[str, int] = {}
    for text in wanted:
        label, colon, port = text.rpartition(":")
        if not colon and len(specs) > 1:
            raise ConfigurationError(
                f"--tls-port {text!r:.40} has no namespace, and several are served",
                hint=f"Use --tls-port {specs[0].name}:{text}",
            )
        name = label if colon else specs[0].name
        if name not in [spec.name for spec in specs]:
            raise ConfigurationError(
                f"Invalid value for --tls-port: namespace {name!r} is not served",
                hint=f"Add --namespace {name}",
            )
        ports[name] = parse_port(port, TLS_PORT)
    return [replace(spec, tls_port=ports.get(spec.name)) for spec in specs]


async def _serve(
    options: BrokerOptions, specs: list[NamespaceSpec], output: str, clock: Clock
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_loop_error)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Broker(options, clock=clock) as broker:
        # The first start generates a certificate, at the same time as the stores are opened.
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
            await administration.acceptor.http.serving()
        # These objects live until the end. Each collection would scan them for 15 ms, in which no
        # client is served.
        gc.freeze()
        trimming = asyncio.create_task(give_memory_back())
        await stop.wait()
        trimming.cancel()


def _on_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an uncaught error: a broken connection without a traceback, because it is not a bug;
    everything else with one. LogFloodFilter limits their number."""
    error = context.get("exception")
    if isinstance(error, OSError | EOFError):
        logger.warning("Connection failed: %s", type(error).__name__)
    else:
        logger.error("%s", context.get("message", "Uncaught error"), exc_info=error)


def _announce(broker: Broker, options: BrokerOptions, output: str) -> None:
    """Print what is served. The lines contain keys, so they go to standard output only."""
    running = broker.namespaces.values()
    admin_port = None if broker.administration is None else broker.administration.port
    ca_path = broker.ca_path
    if output != "table":
        ready = {
            "admin_port": admin_port,
            "faults": options.has_faults,
            "connections_max": options.connections_max,
            "strangers_max": options.strangers_max,
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
    typer.echo(
        f"http://{options.host}:{admin_port}/health · messages in {where} · stop with Ctrl-C"
    )
    if ca_path is not None:
        typer.echo(f"TLS on the same ports, for clients that trust {ca_path}")
    if not options.has_faults:
        typer.echo("Faults, stops and clock changes are disabled; enable them with --faults")
    if not options.is_loopback and not options.tls_only:
        typer.echo(
            f"twinbus: Listening on {options.host} without TLS as well: the keys and messages of "
            "clients without TLS can be read on the network. Refuse such clients with --tls-only.",
            err=True,
        )
