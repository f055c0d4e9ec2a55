"""Runs the broker of ``twinbus serve``, with the namespaces that were asked for.

Which namespaces to serve and what they should have, from the options of ``twinbus serve``.

    --queue orders  --topic east:news  --subscription east:news/all

A name without a namespace is for every namespace.

A broker in this process, from the options of ``twinbus serve`` until Ctrl-C.
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
from twinbus.broker.storage.data_directory import held_namespaces
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
    """One namespace, while the options are being read."""

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
    """The namespaces that the options name."""
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
            f"{option} names the namespace {label!r}, which is not served",
            hint="Add it with --namespace",
        )
    return [(each, path) for each in ([wanted[label]] if colon else wanted.values())]


def _subscription(path: str) -> SubscriptionDescription:
    """``TOPIC/subscriptions/NAME``, as everywhere, or ``TOPIC/NAME``."""
    parts = split_subscription(path)
    topic, slash, name = path.rpartition("/") if parts is None else (parts[0], "/", parts[1])
    if not slash:
        raise ConfigurationError(
            f"--subscription {path!r} does not name its topic",
            hint="Write it as TOPIC/subscriptions/NAME",
        )
    return SubscriptionDescription(path=f"{topic}/subscriptions/{name}")


def parse_port(text: str, default: int) -> int:
    """A port as text; ``default`` for none."""
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise ConfigurationError(f"{text!r} is not a port", hint="Use a number from 0 to 65535")
    return int(text)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigurationError(
            f"{str(path)!r} cannot be read: {reason}", hint="Check the path given with --config"
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
    _log_room(options, fitted, descriptor_max)
    _log_others(options, specs)
    _run(_serve(fitted, specs, output, clock))


def _log_room(wanted: BrokerOptions, got: BrokerOptions, descriptor_max: int | None) -> None:
    """Say how many connections there may be, and why if that is fewer than wanted."""
    logger.info(
        "Descriptors: %s. Connections: %d to each namespace, and %d that have not shown a token",
        "no limit" if descriptor_max is None else descriptor_max,
        got.connections_max,
        got.strangers_max,
    )
    if (got.connections_max, got.strangers_max) != (wanted.connections_max, wanted.strangers_max):
        logger.warning(
            "The process may open %s files, too few for %d connections to each namespace and %d "
            "without a token. Raise the limit with `ulimit -Hn`, or LimitNOFILE in a unit of "
            "systemd",
            descriptor_max,
            wanted.connections_max,
            wanted.strangers_max,
        )


def _log_others(options: BrokerOptions, specs: list[NamespaceSpec]) -> None:
    """Say which namespaces of the data directory are not served: a name may be mistyped."""
    if options.data_directory is None:
        return
    held = held_namespaces(options.data_directory)
    served = [spec.name.lower() for spec in specs]
    for name in held:
        if name not in served:
            new = [spec.name for spec in specs if spec.name.lower() not in held]
            made = f" The namespace {new[0]!r} is new and empty." if new else ""
            logger.warning(
                "%s holds the namespace %r, which is not served.%s Add --namespace %s to serve it",
                options.data_directory,
                name,
                made,
                name,
            )


def _run(main: Coroutine[None, None, None]) -> None:
    _tune_interpreter()
    event_loop.run(main)


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
    loop.set_exception_handler(_on_loop_error)
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
            await administration.acceptor.http.serving()
        # What is there now stays. To look through it again and again would take the collector 15 ms
        # each time, in which nobody is served.
        gc.freeze()
        trimming = asyncio.create_task(give_memory_back())
        await stop.wait()
        trimming.cancel()


def _on_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody has caught. A connection that breaks is no mistake of ours, and has no traceback
    in the log; a mistake has one, and LogFloodFilter sees to it that there are not many."""
    error = context.get("exception")
    if isinstance(error, OSError | EOFError):
        logger.warning("A connection failed: %s", type(error).__name__)
    else:
        logger.error("%s", context.get("message", "Uncaught error"), exc_info=error)


def _announce(broker: Broker, options: BrokerOptions, output: str) -> None:
    """Say what is served; these lines hold keys, and go to standard output only."""
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
    typer.echo(f"http://{options.host}:{admin_port}/health · messages in {where} · Ctrl-C stops")
    if ca_path is not None:
        typer.echo(f"TLS on the same ports, for clients that trust {ca_path}")
    if not options.has_faults:
        typer.echo("Faults, stops and the clock are switched off; --faults switches them on")
    if not options.is_loopback and not options.tls_only:
        typer.echo(
            f"twinbus: listening on {options.host} for plain text too: keys and messages of "
            "clients that do not use TLS can be read on the way. Refuse them with --tls-only.",
            err=True,
        )
