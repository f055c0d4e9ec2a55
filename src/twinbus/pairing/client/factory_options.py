"""The options of a factory, its driver, and which credentials have worked in this process (P7).

Rule 1: a driver is imported when it is used: the bare install has no SDK.
Rule 2: an authentication failure is a configuration error, unless the same credential has worked
        before: then the token service fails, and that is an outage. All factories of a process
        share this history, by address and credential; it exists as long as one of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict
from weakref import WeakValueDictionary

from twinbus.common.argument_types import check_type
from twinbus.common.connection_string import ConnectionString
from twinbus.drivers.credentials import Credential, IdentityCredential
from twinbus.drivers.interface import Driver, NamespaceAddress
from twinbus.errors import ConfigurationError
from twinbus.failover.backoff import RetryPolicy
from twinbus.failover.send_decision import CredentialHistory
from twinbus.pairing.client.driver_name import DriverName

if TYPE_CHECKING:
    from twinbus.drivers.amqp import AmqpOptions
    from twinbus.drivers.azure_sdk import ServiceBusOptions

__all__ = [
    "DriverName",
    "FactoryOptions",
    "ca_file_in",
    "check_options",
    "credential_history_for",
    "driver_for",
    "driver_for_identity",
    "retry_policy_in",
]


class FactoryOptions(TypedDict, total=False):
    """Keyword arguments of MessagingFactory and its ``from_`` methods."""

    driver: DriverName
    """The client library for the namespace, ``servicebus`` by default."""
    ca_file: str | Path | None
    """PEM file of the authority that signed the namespace's certificate, if this machine does not
    trust it."""
    administration_port: int | None
    """Port for administration over HTTP, if it is not the default (official emulator: 5300)."""
    operation_timeout: float
    """Time limit in seconds for calls without a timeout of their own; 60 by default."""
    retry_total: int
    """Attempts after the first one, as in the Azure SDK; 3 by default."""
    retry_backoff_factor: float
    retry_backoff_max: float
    retry_mode: Literal["exponential", "fixed"]
    namespace_name: str | None
    """Name of the namespace in the paths of its backlog queues and in log files; by default from
    its host name, or the name that the namespace reports."""
    metering: str | Path | None
    """Directory for the operations log of this client, for cost reports; None for no metering.
    The secondary of a pair uses that of its primary."""
    audit: bool
    """Whether to write an audit log, with the id of each sent message, to the same directory."""
    keep_days: int | None
    """Days after which files in that directory are deleted; None keeps them, because a later
    report may need them."""


def check_options(options: FactoryOptions) -> None:
    """Refuse an unknown keyword: a typing error would silently leave the default in place."""
    for name in options:
        if name not in FactoryOptions.__annotations__:
            raise TypeError(f"MessagingFactory has no option {name!r:.60}.")
    check_type("audit", options.get("audit", False), bool, hint="Use True or False")


def retry_policy_in(options: FactoryOptions) -> RetryPolicy:
    default = RetryPolicy()
    return RetryPolicy(
        retry_total=options.get("retry_total", default.retry_total),
        retry_backoff_factor=options.get("retry_backoff_factor", default.retry_backoff_factor),
        retry_backoff_max=options.get("retry_backoff_max", default.retry_backoff_max),
        retry_mode=options.get("retry_mode", default.retry_mode),
    )


def driver_for(parsed: ConnectionString, options: FactoryOptions) -> Driver:
    """A driver for the namespace of a connection string."""
    match options.get("driver", "servicebus"):
        case "amqp":
            from twinbus.drivers.amqp import AmqpDriver

            return AmqpDriver.from_connection_string(parsed, _amqp(options))
        case "servicebus":
            from twinbus.drivers.azure_sdk import ServiceBusDriver

            return ServiceBusDriver.from_connection_string(parsed, _servicebus(options))
        case other:
            raise _unknown(other)


def driver_for_identity(
    host: str, credential: Credential | IdentityCredential, options: FactoryOptions
) -> Driver:
    """A driver for the host name of a namespace and a credential."""
    match options.get("driver", "servicebus"):
        case "amqp":
            from twinbus.drivers.amqp import AmqpDriver

            return AmqpDriver.for_namespace(host, credential, _amqp(options))
        case "servicebus":
            from twinbus.drivers.azure_sdk import ServiceBusDriver

            return ServiceBusDriver.for_namespace(host, credential, _servicebus(options))
        case other:
            raise _unknown(other)


def _amqp(options: FactoryOptions) -> AmqpOptions:
    from twinbus.drivers.amqp import AmqpOptions

    return AmqpOptions(ca_file=ca_file_in(options))


def _servicebus(options: FactoryOptions) -> ServiceBusOptions:
    from twinbus.drivers.azure_sdk import ServiceBusOptions

    return ServiceBusOptions(ca_file=ca_file_in(options))


def ca_file_in(options: FactoryOptions) -> str | None:
    """The path of the authority's file; None if the option is not set."""
    path = options.get("ca_file")
    check_type("ca_file", path, str, Path, is_optional=True, hint="Pass a file in PEM format")
    return None if path is None else str(path)


def _unknown(name: object) -> ConfigurationError:
    return ConfigurationError(
        f"Invalid value for driver: {name!r:.40}", hint="Use 'servicebus' or 'amqp'"
    )


_known: WeakValueDictionary[tuple[NamespaceAddress, Credential], CredentialHistory] = (
    WeakValueDictionary()
)


def credential_history_for(
    address: NamespaceAddress, credential: Credential | None
) -> CredentialHistory:
    """The history of a credential at an address; a credential that is None shares none."""
    if credential is None:
        return CredentialHistory()
    fresh = CredentialHistory()
    try:
        return _known.setdefault((address, credential), fresh)
    except TypeError:  # A credential of the application that has no hash.
        return fresh
