"""The options of a factory, and which credentials have worked.

What can be chosen about a factory, and the driver that follows from it.

Which credentials have worked in this process (P7).

A failure to authenticate is a configuration error, unless the same credential worked before: then
the token service is what fails, and that is an outage. All factories of a process share what they
have learnt; it is kept by address and credential, and both stay in memory as long as a factory.

Rule 1: a library is imported when it is asked for: the bare install has no SDK.
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
    """Keywords of every way to make a MessagingFactory."""

    driver: DriverName
    """The library that speaks to the namespace; ``servicebus`` unless told otherwise."""
    ca_file: str | Path | None
    """The authority that signed the namespace's certificate, where this machine does not know
    it."""
    administration_port: int | None
    """Where its HTTP side is, if not at the usual place (the official emulator: 5300)."""
    operation_timeout: float
    """Seconds that a call may take when it says nothing else; 60."""
    retry_total: int
    """Attempts after the first one, as in the Azure SDK; 3."""
    retry_backoff_factor: float
    retry_backoff_max: float
    retry_mode: Literal["exponential", "fixed"]
    namespace_name: str | None
    """What the namespace is called in the paths of its backlog queues and in books; otherwise by
    its host, or what it says itself where it can be asked."""
    metering: str | Path | None
    """A directory where what this client does is counted, for cost reports; None: nowhere. The
    secondary of a pair follows its primary."""
    audit: bool
    """Whether to write down there, too, the id of each message that was sent."""
    keep_days: int | None
    """Days after which files in that directory are deleted; None keeps them, as only their owner
    knows which report is still to come."""


def check_options(options: FactoryOptions) -> None:
    """A slip in a keyword would otherwise leave a default in place, and nobody would know."""
    for name in options:
        if name not in FactoryOptions.__annotations__:
            raise TypeError(f"a MessagingFactory has no option {name!r:.60}")
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
    """A driver for a namespace and an identity of its user."""
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
    """The authority's file, if one was named."""
    given = options.get("ca_file")
    check_type("ca_file", given, str, Path, is_optional=True, hint="Name a file in PEM format")
    return None if given is None else str(given)


def _unknown(name: object) -> ConfigurationError:
    return ConfigurationError(f"there is no driver {name!r:.40}", hint="Use 'servicebus' or 'amqp'")


_known: WeakValueDictionary[tuple[NamespaceAddress, Credential], CredentialHistory] = (
    WeakValueDictionary()
)


def credential_history_for(
    address: NamespaceAddress, credential: Credential | None
) -> CredentialHistory:
    """What is known about a credential there; None is one that nobody else can have."""
    if credential is None:
        return CredentialHistory()
    fresh = CredentialHistory()
    try:
        return _known.setdefault((address, credential), fresh)
    except TypeError:  # A credential of somebody's own that has no hash.
        return fresh
