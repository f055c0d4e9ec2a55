"""The two namespaces of a pair, for commands: named by the environment, opened and closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from twinbus.connection_string import ConnectionString, namespace_at, parse_connection_string
from twinbus.drivers.amqp import AmqpDriver, AmqpOptions, Endpoint
from twinbus.drivers.credentials import Credential, IdentityToken, credential_in
from twinbus.drivers.management import ManagementClient, ManagementEndpoint
from twinbus.errors import ConfigurationError
from twinbus.pairing.environment import NamespaceReference, Role, namespace_in, variables_of


@dataclass(frozen=True, slots=True)
class OpenNamespace:
    """A namespace that a command may use."""

    driver: AmqpDriver
    management: ManagementClient


@asynccontextmanager
async def opened_namespace(
    environment: Mapping[str, str],
    role: Role,
    *,
    ca_file: Path | None = None,
    management_port: int | None = None,
) -> AsyncIterator[OpenNamespace]:
    """The namespace that the environment names; nothing is connected before it is needed."""
    reference = namespace_in(environment, role)
    if reference is None:
        best, other = variables_of(role)
        raise ConfigurationError(
            f"the environment does not name the {role} namespace", hint=f"Set {best} or {other}"
        )
    async with AsyncExitStack() as stack:
        parsed = _parsed(reference)
        if reference.connection_string is not None:
            credential: Credential = credential_in(parsed)
        else:
            credential = IdentityToken(await stack.enter_async_context(_default_identity()))
        driver = AmqpDriver(
            Endpoint.of(parsed),
            credential,
            AmqpOptions(ca_file=None if ca_file is None else str(ca_file)),
        )
        stack.push_async_callback(driver.close)
        endpoint = ManagementEndpoint.of(parsed, management_port=management_port)
        yield OpenNamespace(driver, ManagementClient(endpoint, credential, ca_file=ca_file))


def _parsed(reference: NamespaceReference) -> ConnectionString:
    if reference.connection_string is not None:
        return parse_connection_string(reference.connection_string)
    return namespace_at(str(reference.fully_qualified_namespace))


def _default_identity() -> Any:
    try:
        return import_module("azure.identity.aio").DefaultAzureCredential()
    except ImportError as error:
        raise ConfigurationError(
            "a namespace without a connection string needs azure-identity, which is not installed",
            hint="pip install azure-identity, or set a connection string",
        ) from error
