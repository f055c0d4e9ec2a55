"""Paired namespaces for programs without an event loop; the names are those of ``twinbus.aio``.

    import twinbus

    primary = twinbus.MessagingFactory.from_connection_string(primary_text)

Everything here holds its async twin and goes through one door (portal.py) to the loop on which
that lives: there is one implementation.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from twinbus.core.classifier import Classifier
from twinbus.core.failover import Health
from twinbus.core.rotation import RotationPolicy
from twinbus.core.ttl_policy import TtlPolicy
from twinbus.core.watermarks import BacklogThresholds
from twinbus.drivers.port import NEXT_SESSION, ReceiveMode
from twinbus.errors import (
    AccessDenied,
    ConfigurationError,
    ConnectionStringError,
    EntityExists,
    FilterError,
    InvalidEntityPath,
    InvalidMessage,
    PortTaken,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreRefused,
    StoreVersionMismatch,
    TwinbusError,
)
from twinbus.message import BrokeredMessage
from twinbus.pairing.backlog_reader import QueueBacklog
from twinbus.pairing.health import EntityHealth
from twinbus.pairing.hosting import SyphonHosting
from twinbus.pairing.journal import read_journal
from twinbus.pairing.occurrence import EventRecord
from twinbus.pairing.options import PairedNamespaceOptions
from twinbus.service_errors import (
    AccessRefused,
    AlreadyPaired,
    AuthenticationFailed,
    BacklogExhausted,
    BatchPartlySent,
    CancelImpossible,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    EnvelopeError,
    FactoryClosed,
    FactoryFaulted,
    LinkDetached,
    MessageLockLost,
    MessageNotFound,
    MessageRefused,
    MessageTooLarge,
    NoBacklogQueue,
    OperationTimeout,
    PairingError,
    QuotaExceeded,
    ReservedProperty,
    SendInterrupted,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
    SessionCannotBeLocked,
    SessionLockLost,
    TooLargeForBacklog,
)
from twinbus.sync.clients import (
    MessageReceiver,
    MessageSender,
    QueueClient,
    SubscriptionClient,
    TopicClient,
)
from twinbus.sync.factory import MessagingFactory, SendAvailabilityPairedNamespaceOptions
from twinbus.sync.manager import NamespaceManager

if TYPE_CHECKING:
    from twinbus.drivers.embedded import EmbeddedNamespace

__all__ = [
    "NEXT_SESSION",
    "AccessDenied",
    "AccessRefused",
    "AlreadyPaired",
    "AuthenticationFailed",
    "BacklogExhausted",
    "BacklogThresholds",
    "BatchPartlySent",
    "BrokeredMessage",
    "CancelImpossible",
    "Classifier",
    "CommunicationError",
    "ConfigurationError",
    "ConnectionStringError",
    "EmbeddedNamespace",
    "EntityDisabled",
    "EntityExists",
    "EntityHealth",
    "EntityNotFound",
    "EnvelopeError",
    "EventRecord",
    "FactoryClosed",
    "FactoryFaulted",
    "FilterError",
    "Health",
    "InvalidEntityPath",
    "InvalidMessage",
    "LinkDetached",
    "MessageLockLost",
    "MessageNotFound",
    "MessageReceiver",
    "MessageRefused",
    "MessageSender",
    "MessageTooLarge",
    "MessagingFactory",
    "NamespaceManager",
    "NoBacklogQueue",
    "OperationTimeout",
    "PairedNamespaceOptions",
    "PairingError",
    "PortTaken",
    "QueueBacklog",
    "QueueClient",
    "QuotaExceeded",
    "ReceiveMode",
    "ReservedProperty",
    "RotationPolicy",
    "SendAvailabilityPairedNamespaceOptions",
    "SendInterrupted",
    "ServerBusy",
    "ServiceError",
    "ServiceInternalError",
    "SessionCannotBeLocked",
    "SessionLockLost",
    "StoreCorrupt",
    "StoreFailed",
    "StoreFull",
    "StoreLocked",
    "StoreRefused",
    "StoreVersionMismatch",
    "SubscriptionClient",
    "SyphonHosting",
    "TooLargeForBacklog",
    "TopicClient",
    "TtlPolicy",
    "TwinbusError",
    "read_journal",
]


def __getattr__(name: str) -> Any:
    if name == "EmbeddedNamespace":  # It brings a whole broker along: only for who wants one.
        return importlib.import_module("twinbus.drivers.embedded").EmbeddedNamespace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
