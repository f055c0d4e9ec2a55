"""The options of pairing for the drop-in, and credentials of the SDK.

What turns a stock client into a paired one: where the secondary is, and how to fail over.

    PairedServiceBusClient.from_connection_string(text, pairing=Pairing(secondary=other_text))
    PairedServiceBusClient.from_connection_string(text)     the environment has it all

The SDK's credentials as ours, for what does not go through the SDK.

Rule 1: the environment is read once, when a client is made without ``pairing``: the secondary
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
    """The secondary of a paired client. The fields mean what they mean in
    SendAvailabilityPairedNamespaceOptions."""

    secondary: str | None = field(default=None, repr=False)
    """Its connection string; that of an embedded namespace, too."""
    secondary_fully_qualified_namespace: str | None = None
    secondary_credential: Any = field(default=None, repr=False)
    """For a secondary by its host name: a credential of azure-identity."""
    secondary_driver: DriverName = "servicebus"
    backlog_queue_count: int = 10
    failover_interval: Interval = 0.0
    """Unlike in pair_namespace() the first failure that survives a retry diverts (P26): an
    application that changed one line does not expect a minute of errors."""
    ping_primary_interval: Interval = ONE_MINUTE
    ping_mode: PingMode = "message"
    namespace_name: str | None = None
    enable_syphon: bool = False
    syphon: SyphonHosting = field(default_factory=SyphonHosting)
    """Where it runs, when it is enabled: on Spark unless told."""
    journal: str | os.PathLike[str] | None = None
    control: str | os.PathLike[str] | None = None
    on_event: Callable[[EventRecord], object] | None = None
    thresholds: BacklogThresholds = field(default_factory=BacklogThresholds)
    classifier: Classifier = field(default_factory=Classifier)
    rotation: RotationPolicy = field(default_factory=RotationPolicy)
    allow_lossy_backlog: bool = False
    require_secondary: bool = False
    """Unlike that of the options: a client that works keeps working while the secondary, which it
    did not need before, is unreachable (P19)."""
    allowed_destinations: tuple[str, ...] = ("*",)
    accept_owners: tuple[str, ...] = ()
    ttl_policy: TtlPolicy = TtlPolicy.RESTART
    metering: str | Path | None = None
    """A directory where what the client's sends do on both namespaces is counted; None: nowhere.
    The stock receivers are not in it."""
    audit: bool = False
    """Whether to write down there, too, the id of each message that was sent."""
    keep_days: int | None = None
    """Days after which files of the metering and lines of the journal go; None keeps them."""
    operation_timeout: float = 60.0
    """What a send may take when it is called without a timeout, in seconds."""

    def __post_init__(self) -> None:
        """Refuse what no pair can be made of, before anything is contacted."""
        checked_settings(self)
        checked_timeout_s(self.operation_timeout)
        check_keep_days(self.keep_days)
        hint = "Give the connection string of the secondary namespace"
        check_type("secondary", self.secondary, str, is_optional=True, hint=hint)
        if self.secondary is not None:
            parse_connection_string(self.secondary)
        elif self.secondary_fully_qualified_namespace is not None:
            namespace_at(self.secondary_fully_qualified_namespace)
            credential_of(self.secondary_credential)
        if self.secondary_driver not in get_args(DriverName):
            raise ConfigurationError(
                f"secondary_driver is {self.secondary_driver!r:.40}",
                hint="Use 'servicebus' or 'amqp'",
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], credential: object = None) -> Pairing:
        """The secondary that the environment names, and the options that it sets (TWINBUS_PAIR_
        and so on); ``credential`` is for a secondary by its host."""
        found = read_namespace(environment, "secondary")
        if found is None:
            raise ConfigurationError(
                "a paired client does not know its secondary namespace",
                hint=f"Give pairing=Pairing(secondary=...), or set {variables_of('secondary')[0]}",
            )
        return cls(
            secondary=found.connection_string,
            secondary_fully_qualified_namespace=found.fully_qualified_namespace,
            secondary_credential=credential if found.fully_qualified_namespace else None,
            **options_in(environment, {each.name for each in fields(cls)}),
        )

    def options(self) -> SendAvailabilityPairedNamespaceOptions:
        """The pairing's own options, with a factory for the secondary."""
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
                "a pairing names no secondary namespace, or no credential for it",
                hint="Give secondary=<connection string>, or "
                "secondary_fully_qualified_namespace with secondary_credential",
            )
        return (
            MessagingFactory(host, self.secondary_credential, driver=self.secondary_driver),
            NamespaceManager(host, self.secondary_credential),
        )


def pairing_given(given: object, credential: object) -> Pairing:
    """What a client was given as ``pairing``, or what the environment says where it is None."""
    if given is None:
        return Pairing.from_environment(os.environ, credential)
    if isinstance(given, Pairing):
        return given
    raise ConfigurationError(
        f"pairing must be a twinbus.azure.Pairing, got {type_shown(given)}",
        hint="Give pairing=Pairing(secondary=<connection string>)",
    )


def _as_timedelta(interval: Interval) -> timedelta:
    return interval if isinstance(interval, timedelta) else timedelta(seconds=interval)


# How the SDK marks the credentials that it makes of a connection string.
SAS_TOKEN_TYPE = b"servicebus.windows.net:sastoken"


def token_source(credential: Any) -> Credential:
    """The same credential, asked for a token of one resource."""
    if isinstance(credential, AzureNamedKeyCredential):
        return SharedKey(*credential.named_key)
    if isinstance(credential, AzureSasCredential):
        return SharedSignature(credential.signature)
    if getattr(credential, "token_type", None) == SAS_TOKEN_TYPE:
        if hasattr(credential, "policy"):
            return SharedKey(credential.policy, credential.key)
        return SharedSignature(credential.token)
    return IdentityToken(credential)
