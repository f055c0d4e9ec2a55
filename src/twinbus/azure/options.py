"""Pairing: the secondary and the options of a paired client; and the credentials of the SDK.

    PairedServiceBusClient.from_connection_string(text, pairing=Pairing(secondary=other_text))
    PairedServiceBusClient.from_connection_string(text)     from the environment

Rule 1: the environment is read once, when a client is created without ``pairing``: the secondary
        (``twinbus.pairing.client.environment``) and the options
        (``twinbus.pairing.option_variables``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from twinbus.common.argument_types import check_type, type_shown
from twinbus.common.connection_string import namespace_at, parse_connection_string
from twinbus.drivers.credentials import (
    Credential,
    IdentityToken,
    SharedKey,
    SharedSignature,
    credential_of,
)
from twinbus.encoding.envelope.fields import TtlPolicy
from twinbus.errors import ConfigurationError
from twinbus.failover.backlog_alerts import BacklogThresholds
from twinbus.failover.backlog_rotation import RotationPolicy
from twinbus.failover.error_classifier import Classifier
from twinbus.metering.log_retention import check_keep_days
from twinbus.pairing.client.environment import read_namespace, variables_of
from twinbus.pairing.client.factory import MessagingFactory
from twinbus.pairing.client.factory_options import DriverName
from twinbus.pairing.client.namespace_manager import NamespaceManager
from twinbus.pairing.events import EventRecord
from twinbus.pairing.option_variables import options_in
from twinbus.pairing.options import (
    ONE_MINUTE,
    Interval,
    PingMode,
    SendAvailabilityPairedNamespaceOptions,
    checked_settings,
)
from twinbus.pairing.paired_sender import checked_timeout_s
from twinbus.pairing.syphon_hosting import SyphonHosting

__all__ = ["SAS_TOKEN_TYPE", "Pairing", "token_source"]


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """The secondary of a paired client. The fields have the same meaning as in
    SendAvailabilityPairedNamespaceOptions."""

    secondary: str | None = field(default=None, repr=False)
    """Connection string of the secondary, which can be an embedded namespace."""
    secondary_fully_qualified_namespace: str | None = None
    secondary_credential: Any = field(default=None, repr=False)
    """Credential of azure-identity, for a secondary that is set by its host name."""
    secondary_driver: DriverName = "servicebus"
    backlog_queue_count: int = 10
    failover_interval: Interval = 0.0
    """Unlike in pair_namespace(), the first failure diverts if a retry fails as well (P26): an
    application that has changed one line does not expect a minute of errors."""
    ping_primary_interval: Interval = ONE_MINUTE
    ping_mode: PingMode = "message"
    namespace_name: str | None = None
    enable_syphon: bool = False
    syphon: SyphonHosting = field(default_factory=SyphonHosting)
    """Where the hosted syphon runs, if it is enabled; on Spark by default."""
    journal: str | os.PathLike[str] | None = None
    control: str | os.PathLike[str] | None = None
    on_event: Callable[[EventRecord], object] | None = None
    thresholds: BacklogThresholds = field(default_factory=BacklogThresholds)
    classifier: Classifier = field(default_factory=Classifier)
    rotation: RotationPolicy = field(default_factory=RotationPolicy)
    allow_lossy_backlog: bool = False
    require_secondary: bool = False
    """Unlike in the options: a client that works without a secondary must keep working while the
    secondary is unreachable (P19)."""
    allowed_destinations: tuple[str, ...] = ("*",)
    accept_owners: tuple[str, ...] = ()
    ttl_policy: TtlPolicy = TtlPolicy.RESTART
    metering: str | Path | None = None
    """Directory for the operations log of sends, on both namespaces; None for no metering. The
    receivers of the SDK are not counted."""
    audit: bool = False
    """Whether to write an audit log, with the id of each sent message, to the same directory."""
    keep_days: int | None = None
    """Days after which files of the metering and lines of the journal are deleted; None keeps
    them."""
    operation_timeout: float = 60.0
    """Timeout in seconds of a send that is called without a timeout."""

    def __post_init__(self) -> None:
        """Refuse invalid options, before a namespace is contacted."""
        checked_settings(self)
        checked_timeout_s(self.operation_timeout)
        check_keep_days(self.keep_days)
        hint = "Pass the connection string of the secondary namespace"
        check_type("secondary", self.secondary, str, is_optional=True, hint=hint)
        if self.secondary is not None:
            parse_connection_string(self.secondary)
        elif self.secondary_fully_qualified_namespace is not None:
            namespace_at(self.secondary_fully_qualified_namespace)
            credential_of(self.secondary_credential)
        if self.secondary_driver not in get_args(DriverName):
            raise ConfigurationError(
                f"Invalid value for secondary_driver: {self.secondary_driver!r:.40}",
                hint="Use 'servicebus' or 'amqp'",
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], credential: object = None) -> Pairing:
        """The secondary and the options that are set in the environment (TWINBUS_PAIR_ and so
        on); ``credential`` is for a secondary that is set by its host name."""
        found = read_namespace(environment, "secondary")
        if found is None:
            raise ConfigurationError(
                "The secondary namespace of the paired client is not set",
                hint=f"Pass pairing=Pairing(secondary=...), or set {variables_of('secondary')[0]}",
            )
        return cls(
            secondary=found.connection_string,
            secondary_fully_qualified_namespace=found.fully_qualified_namespace,
            secondary_credential=credential if found.fully_qualified_namespace else None,
            **options_in(environment, {each.name for each in fields(cls)}),
        )

    def options(self) -> SendAvailabilityPairedNamespaceOptions:
        """The options for pair_namespace(), with a factory for the secondary."""
        factory, manager = self._secondary()
        return SendAvailabilityPairedNamespaceOptions(
            manager,
            factory,
            self.backlog_queue_count,
            _as_timedelta(self.failover_interval),
            self.enable_syphon,
            ping_primary_interval=_as_timedelta(self.ping_primary_interval),
            ping_mode=self.ping_mode,
            namespace_name=self.namespace_name,
            syphon=self.syphon,
            journal=self.journal,
            journal_keep_days=self.keep_days,
            control=self.control,
            on_event=self.on_event,
            thresholds=self.thresholds,
            classifier=self.classifier,
            rotation=self.rotation,
            allow_lossy_backlog=self.allow_lossy_backlog,
            require_secondary=self.require_secondary,
            allowed_destinations=self.allowed_destinations,
            accept_owners=self.accept_owners,
            ttl_policy=self.ttl_policy,
        )

    def _secondary(self) -> tuple[MessagingFactory, NamespaceManager]:
        if self.secondary is not None:
            return (
                MessagingFactory.from_connection_string(
                    self.secondary, driver=self.secondary_driver
                ),
                NamespaceManager.from_connection_string(self.secondary),
            )
        host = self.secondary_fully_qualified_namespace
        if host is None or self.secondary_credential is None:
            raise ConfigurationError(
                "The pairing has no secondary namespace, or no credential for it",
                hint="Set secondary to a connection string, or "
                "secondary_fully_qualified_namespace and secondary_credential",
            )
        return (
            MessagingFactory(host, self.secondary_credential, driver=self.secondary_driver),
            NamespaceManager(host, self.secondary_credential),
        )


def resolve_pairing(pairing: object, credential: object) -> Pairing:
    """The argument ``pairing`` of a client, or a pairing from the environment if it is None."""
    if pairing is None:
        return Pairing.from_environment(os.environ, credential)
    if isinstance(pairing, Pairing):
        return pairing
    raise ConfigurationError(
        f"The argument pairing must be a twinbus.azure.Pairing, got {type_shown(pairing)}",
        hint="Pass pairing=Pairing(secondary=<connection string>)",
    )


def _as_timedelta(interval: Interval) -> timedelta:
    return interval if isinstance(interval, timedelta) else timedelta(seconds=interval)


# The token type of credentials that the SDK creates from a connection string.
SAS_TOKEN_TYPE = b"servicebus.windows.net:sastoken"


def token_source(credential: Any) -> Credential:
    """A credential of the SDK as one of ours, for requests that do not use the SDK."""
    if isinstance(credential, AzureNamedKeyCredential):
        return SharedKey(*credential.named_key)
    if isinstance(credential, AzureSasCredential):
        return SharedSignature(credential.signature)
    if getattr(credential, "token_type", None) == SAS_TOKEN_TYPE:
        if hasattr(credential, "policy"):
            return SharedKey(credential.policy, credential.key)
        return SharedSignature(credential.token)
    return IdentityToken(credential)
