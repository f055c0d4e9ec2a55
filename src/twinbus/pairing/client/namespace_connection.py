"""The connection of a factory to one namespace, and its metering.

The books of a client: where they are kept, and under which name.

A namespace with both its doors, opened and closed: for commands, and for Spark's processes.

Rule 1: a namespace has in the books the name that its backlog queues have in their paths. Where
        its host does not tell it, the namespace is asked; where nobody tells, the address serves.
        Whoever uses the namespace may say it, and a pair's word counts most.
Rule 2: a directory in which nothing can be written is told to who has chosen it. On a machine that
        somebody else has chosen (a task of Spark's) it costs the books, and no message.
Rule 3: nothing is connected before it is needed.
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
    "client_books",
    "open_namespace",
    "open_namespace_with",
]

_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.]+", re.ASCII)


def checked_directory(given: str | os.PathLike[str], said: str = "metering") -> Path:
    """The directory that an option names; ``said`` is what the user calls it."""
    directory = _directory(given, said)
    check_directory(directory, said)
    return directory


def _directory(given: object, said: str = "metering") -> Path:
    """Where it is now: a program may change its working directory later on."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"{said} cannot be {given!r:.60}", hint="Name a directory")
    return Path(text).absolute()


def client_books(
    address: NamespaceAddress,
    directory: str | os.PathLike[str] | None,
    *,
    told_name: Callable[[], Awaitable[str | None]],
    name: str | None = None,
    audit: bool = False,
    keep_days: int | None = None,
) -> ClientMeter | None:
    """The books that somebody wants; None for none. ``told_name`` asks the namespace itself."""
    if directory is None:
        if audit:
            raise ConfigurationError(
                "an audit needs a place", hint="Name a directory with metering, too"
            )
        return None

    async def ask() -> str:
        return primary_name_of(address, told=await told_name())

    if name is not None or not has_no_name(address):
        name = primary_name_of(address, given=name)
    other_name = _NOT_IN_NAMES.sub("-", str(address).lower()).strip("-.")
    return ClientMeter(
        _directory(directory),
        name=name,
        other_name=other_name,
        ask_name=ask,
        audit=audit,
        keep_days=keep_days,
    )


@dataclass(frozen=True, slots=True)
class NamespaceConnection:
    """A namespace that may be used."""

    driver: Driver
    management: AdministrationClient

    async def primary_name(self, given: str | None = None) -> str:
        """Its name in the paths of its backlog queues; it is asked when its host does not tell."""
        told = None
        if given is None and has_no_name(self.driver.address):
            told = (await self.management.namespace_info()).name
        return primary_name_of(self.driver.address, given=given, told=told)


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
    """With the credential of its connection string, or else the identity of this machine."""
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
    """The credential stays its owner's, who may use it again. ``metering`` is a directory for
    the books of what is done here, ``keep_days`` how long files in it are kept, and ``name`` the
    namespace's name in them, if it is known. ``driver`` is the library for messages."""
    shown = credential_of(credential)
    endpoint = AdministrationEndpoint.of(parsed, administration_port=administration_port)
    port = _driver(driver, parsed, shown, None if ca_file is None else str(ca_file))
    management = AdministrationClient(
        endpoint, shown, ca_file=ca_file, entity_path=parsed.entity_path
    )

    async def told_name() -> str:
        return (await management.namespace_info()).name

    meter = client_books(
        port.address, metering, told_name=told_name, name=name, keep_days=keep_days
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
            "a namespace without a connection string needs azure-identity, which is not installed",
            hint="pip install azure-identity, or set a connection string",
        ) from error
