"""A namespace with both its doors, opened and closed: for commands, and for Spark's processes.

Rule 1: nothing is connected before it is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from twinbus.connection_string import ConnectionString, namespace_at, parse_connection_string
from twinbus.drivers.amqp import AmqpDriver, AmqpOptions, Endpoint
from twinbus.drivers.credentials import (
    Credential,
    IdentityCredential,
    IdentityToken,
    credential_in,
    credential_of,
)
from twinbus.drivers.management import ManagementClient, ManagementEndpoint
from twinbus.errors import ConfigurationError
from twinbus.pairing.backlog_queues import has_no_name, primary_name_of
from twinbus.pairing.environment import NamespaceReference, Role, namespace_in, variables_of

__all__ = ["OpenNamespace", "namespace_named_in", "opened_namespace", "opened_with"]


@dataclass(frozen=True, slots=True)
class OpenNamespace:
    """A namespace that may be used."""

    driver: AmqpDriver
    management: ManagementClient

    async def primary_name(self, given: str | None = None) -> str:
        """Its name in the paths of its backlog queues; it is asked when its host does not tell."""
        told = None
        if given is None and has_no_name(self.driver.address):
            told = (await self.management.namespace_info()).name
        return primary_name_of(self.driver.address, given=given, told=told)


def namespace_named_in(environment: Mapping[str, str], role: Role) -> NamespaceReference:
    """The namespace that the environment names; it must name one."""
    reference = namespace_in(environment, role)
    if reference is None:
        best, other = variables_of(role)
        raise ConfigurationError(
            f"the environment does not name the {role} namespace", hint=f"Set {best} or {other}"
        )
    return reference


@asynccontextmanager
async def opened_namespace(
    reference: NamespaceReference,
    *,
    ca_file: Path | None = None,
    management_port: int | None = None,
) -> AsyncIterator[OpenNamespace]:
    """With the credential of its connection string, or else the identity of this machine."""
    if reference.connection_string is not None:
        parsed = parse_connection_string(reference.connection_string)
        async with opened_with(
            parsed, credential_in(parsed), ca_file=ca_file, management_port=management_port
        ) as namespace:
            yield namespace
        return
    parsed = namespace_at(str(reference.fully_qualified_namespace))
    async with (
        _default_identity() as identity,
        opened_with(
            parsed, IdentityToken(identity), ca_file=ca_file, management_port=management_port
        ) as namespace,
    ):
        yield namespace


@asynccontextmanager
async def opened_with(
    parsed: ConnectionString,
    credential: Credential | IdentityCredential,
    *,
    ca_file: Path | None = None,
    management_port: int | None = None,
) -> AsyncIterator[OpenNamespace]:
    """The credential stays its owner's, who may use it again."""
    shown = credential_of(credential)
    options = AmqpOptions(ca_file=None if ca_file is None else str(ca_file))
    endpoint = ManagementEndpoint.of(parsed, management_port=management_port)
    driver = AmqpDriver(Endpoint.of(parsed), shown, options)
    try:
        yield OpenNamespace(driver, ManagementClient(endpoint, shown, ca_file=ca_file))
    finally:
        await driver.close()


def _default_identity() -> Any:
    try:
        return import_module("azure.identity.aio").DefaultAzureCredential()
    except ImportError as error:
        raise ConfigurationError(
            "a namespace without a connection string needs azure-identity, which is not installed",
            hint="pip install azure-identity, or set a connection string",
        ) from error
