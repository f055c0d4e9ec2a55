"""The connection to one namespace, for messages and administration, and its metering.

Commands and the processes of Spark use it.

Rule 1: log files contain the name that the namespace has in the paths of its backlog queues. If
        its host name does not contain it, the namespace is asked; without an answer the address is
        used. A name in the options has precedence, and that of a pair over all others.
Rule 2: a directory that cannot be written is an error where an option names it. On a machine that
        Spark has chosen for a task it costs the log files, never a message.
Rule 3: nothing connects before it is needed.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from twinbus.common.connection_string import ConnectionString, namespace_at, parse_connection_string
from twinbus.drivers.administration import AdministrationClient, AdministrationEndpoint
from twinbus.drivers.amqp import AmqpDriver, AmqpOptions, Endpoint
from twinbus.drivers.credentials import (
    Credential,
    IdentityCredential,
    IdentityToken,
    credential_in,
    credential_of,
)
from twinbus.drivers.interface import Driver, NamespaceAddress
from twinbus.drivers.metered import MeteredDriver
from twinbus.errors import ConfigurationError
from twinbus.metering.client_meter import ClientMeter
from twinbus.metering.json_lines import check_directory
from twinbus.pairing.backlog_queues import has_no_name, primary_name_of
from twinbus.pairing.client.driver_name import DriverName, check_driver_name
from twinbus.pairing.client.environment import NamespaceReference

__all__ = [
    "NamespaceConnection",
    "checked_directory",
    "create_client_meter",
    "open_namespace",
    "open_namespace_with",
]

_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.]+", re.ASCII)


def checked_directory(path: str | os.PathLike[str], option: str = "metering") -> Path:
    """The directory that an option names; ``option`` is the name of the option."""
    directory = _directory(path, option)
    check_directory(directory, option)
    return directory


def _directory(path: object, option: str = "metering") -> Path:
    """Absolute: a program may change its working directory later."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(
            f"Invalid value for {option}: {path!r:.60}", hint="Use the path of a directory"
        )
    return Path(text).absolute()


def create_client_meter(
    address: NamespaceAddress,
    directory: str | os.PathLike[str] | None,
    *,
    fetch_name: Callable[[], Awaitable[str | None]],
    name: str | None = None,
    audit: bool = False,
    keep_days: int | None = None,
) -> ClientMeter | None:
    """The metering of a client; None without a directory. ``fetch_name`` asks the namespace for
    its name."""
    if directory is None:
        if audit:
            raise ConfigurationError(
                "An audit log requires a directory", hint="Set metering to a directory as well"
            )
        return None

    async def fetch_checked_name() -> str:
        return primary_name_of(address, reported=await fetch_name())

    if name is not None or not has_no_name(address):
        name = primary_name_of(address, configured=name)
    other_name = _NOT_IN_NAMES.sub("-", str(address).lower()).strip("-.")
    return ClientMeter(
        _directory(directory),
        name=name,
        other_name=other_name,
        ask_name=fetch_checked_name,
        audit=audit,
        keep_days=keep_days,
    )


@dataclass(frozen=True, slots=True)
class NamespaceConnection:
    """The driver and the administration client of one namespace."""

    driver: Driver
    management: AdministrationClient

    async def primary_name(self, configured: str | None = None) -> str:
        """The name in the paths of its backlog queues; the namespace is asked if its host name
        does not contain it."""
        reported = None
        if configured is None and has_no_name(self.driver.address):
            reported = (await self.management.namespace_info()).name
        return primary_name_of(self.driver.address, configured=configured, reported=reported)


@asynccontextmanager
async def open_namespace(
    reference: NamespaceReference,
    *,
    ca_file: Path | None = None,
    administration_port: int | None = None,
    metering: Path | None = None,
    keep_days: int | None = None,
    name: str | None = None,
    driver: DriverName = "amqp",
) -> AsyncIterator[NamespaceConnection]:
    """Use the credential of the connection string, or else the identity of this machine."""
    if reference.connection_string is not None:
        parsed = parse_connection_string(reference.connection_string)
        async with open_namespace_with(
            parsed,
            credential_in(parsed),
            ca_file=ca_file,
            administration_port=administration_port,
            metering=metering,
            keep_days=keep_days,
            name=name,
            driver=driver,
        ) as namespace:
            yield namespace
        return
    parsed = namespace_at(str(reference.fully_qualified_namespace))
    async with (
        _default_identity() as identity,
        open_namespace_with(
            parsed,
            IdentityToken(identity),
            ca_file=ca_file,
            administration_port=administration_port,
            metering=metering,
            keep_days=keep_days,
            name=name,
            driver=driver,
        ) as namespace,
    ):
        yield namespace


@asynccontextmanager
async def open_namespace_with(
    parsed: ConnectionString,
    credential: Credential | IdentityCredential,
    *,
    ca_file: Path | None = None,
    administration_port: int | None = None,
    metering: Path | None = None,
    keep_days: int | None = None,
    name: str | None = None,
    driver: DriverName = "amqp",
) -> AsyncIterator[NamespaceConnection]:
    """The credential is not closed: its owner may use it again. ``metering`` is a directory for
    the operations log, ``keep_days`` how long its files are kept, and ``name`` the name of the
    namespace in them, if it is known. ``driver`` is the client library for messages."""
    own_credential = credential_of(credential)
    endpoint = AdministrationEndpoint.of(parsed, administration_port=administration_port)
    port = _driver(driver, parsed, own_credential, None if ca_file is None else str(ca_file))
    management = AdministrationClient(
        endpoint, own_credential, ca_file=ca_file, entity_path=parsed.entity_path
    )

    async def fetch_name() -> str:
        return (await management.namespace_info()).name

    meter = create_client_meter(
        port.address, metering, fetch_name=fetch_name, name=name, keep_days=keep_days
    )
    if meter is not None:
        port = MeteredDriver(port, meter, is_own=False)
    try:
        yield NamespaceConnection(port, management)
    finally:
        await port.close()
        if meter is not None:
            await asyncio.to_thread(meter.close)


def _driver(
    name: DriverName, parsed: ConnectionString, credential: Credential, ca_file: str | None
) -> Driver:
    check_driver_name(name)
    if name == "amqp":
        return AmqpDriver(Endpoint.of(parsed), credential, AmqpOptions(ca_file=ca_file))
    # The bare install has no SDK, and most of Spark's processes need none.
    from twinbus.drivers.azure_sdk import ServiceBusDriver, ServiceBusOptions

    options = ServiceBusOptions(ca_file=ca_file)
    if parsed.shared_access_key or parsed.shared_access_signature:
        return ServiceBusDriver.from_connection_string(parsed, options)
    _scheme, _colon, where = parsed.endpoint.partition("://")
    return ServiceBusDriver.for_namespace(where, credential, options)


def _default_identity() -> Any:
    try:
        return import_module("azure.identity.aio").DefaultAzureCredential()
    except ImportError as error:
        raise ConfigurationError(
            "A namespace without a connection string requires azure-identity, which is not "
            "installed",
            hint="Run `pip install azure-identity`, or set a connection string",
        ) from error
