"""Paired namespaces for asyncio: everything an application imports.

from twinbus.aio import BrokeredMessage, MessagingFactory, NamespaceManager
from twinbus.aio import SendAvailabilityPairedNamespaceOptions

primary = MessagingFactory.from_connection_string(primary_text)
secondary = MessagingFactory.from_connection_string(secondary_text)
manager = NamespaceManager.from_connection_string(secondary_text)
await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary))

orders = primary.create_queue_client("orders")
await orders.send(BrokeredMessage(b"..."))     # goes home, or to the backlog until it can
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
from twinbus.pairing.clients import MessageSender, QueueClient, SubscriptionClient, TopicClient
from twinbus.pairing.factory import MessagingFactory
from twinbus.pairing.health import EntityHealth
from twinbus.pairing.hosting import SyphonHosting
from twinbus.pairing.journal import read_journal
from twinbus.pairing.manager import NamespaceManager
from twinbus.pairing.occurrence import EventRecord
from twinbus.pairing.options import (
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.pairing.receiving import MessageReceiver
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
