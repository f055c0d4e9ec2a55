"""What turns a stock client into a paired one: where the secondary is, and how to fail over.

    PairedServiceBusClient.from_connection_string(text, pairing=Pairing(secondary=other_text))
    PairedServiceBusClient.from_connection_string(text)     the secondary is in the environment

Rule 1: the environment is read in one place (``twinbus.pairing.environment``), once, when a client
        is made without ``pairing``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from twinbus.core.classifier import Classifier
from twinbus.core.rotation import RotationPolicy
from twinbus.core.ttl_policy import TtlPolicy
from twinbus.core.watermarks import Thresholds
from twinbus.errors import ConfigurationError
from twinbus.pairing.environment import namespace_in, variables_of
from twinbus.pairing.factory import MessagingFactory
from twinbus.pairing.factory_options import DriverName
from twinbus.pairing.hosting import SyphonHosting
from twinbus.pairing.manager import NamespaceManager
from twinbus.pairing.occurrence import Occurrence
from twinbus.pairing.options import (
    ONE_MINUTE,
    Interval,
    PingMode,
    SendAvailabilityPairedNamespaceOptions,
)

__all__ = ["Pairing"]


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
    failover_interval: Interval = ONE_MINUTE
    ping_primary_interval: Interval = ONE_MINUTE
    ping_mode: PingMode = "message"
    namespace_name: str | None = None
    enable_syphon: bool = False
    syphon: SyphonHosting = field(default_factory=SyphonHosting)
    """Where it runs, when it is enabled: on Spark unless told."""
    journal: str | os.PathLike[str] | None = None
    control: str | os.PathLike[str] | None = None
    on_event: Callable[[Occurrence], object] | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    classifier: Classifier = field(default_factory=Classifier)
    rotation: RotationPolicy = field(default_factory=RotationPolicy)
    allowed_destinations: tuple[str, ...] = ("*",)
    ttl_policy: TtlPolicy = TtlPolicy.RESTART
    metering: str | Path | None = None
    """A directory where what the client's sends do on both namespaces is counted; None: nowhere.
    The stock receivers are not in it."""
    audit: bool = False
    """Whether to write down there, too, the id of each message that was sent."""
    operation_timeout: float = 60.0
    """What a send may take when it is called without a timeout, in seconds."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], credential: object = None) -> Pairing:
        """The secondary that the environment names; ``credential`` is for one by its host."""
        found = namespace_in(environment, "secondary")
        if found is None:
            raise ConfigurationError(
                "a paired client does not know its secondary namespace",
                hint=f"Give pairing=Pairing(secondary=...), or set {variables_of('secondary')[0]}",
            )
        return cls(
            secondary=found.connection_string,
            secondary_fully_qualified_namespace=found.fully_qualified_namespace,
            secondary_credential=credential if found.fully_qualified_namespace else None,
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
            control=self.control,
            on_event=self.on_event,
            thresholds=self.thresholds,
            classifier=self.classifier,
            rotation=self.rotation,
            allowed_destinations=self.allowed_destinations,
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


def _as_timedelta(interval: Interval) -> timedelta:
    return interval if isinstance(interval, timedelta) else timedelta(seconds=interval)
