"""Paired namespaces for programs without an event loop; the names are those of ``twinbus.aio``.

    import twinbus

    primary = twinbus.MessagingFactory.from_connection_string(primary_text)

Everything here holds its async twin and goes through one door (blocking_portal.py) to the loop on
which that lives: there is one implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.common.lazy_exports import lazy_exports
from twinbus.drivers.interface import NEXT_SESSION, ReceiveMode
from twinbus.encoding.envelope.fields import TtlPolicy
from twinbus.errors import (
    AccessDenied,
    AccessRefused,
    AlreadyPaired,
    AuthenticationFailed,
    BacklogExhausted,
    BatchPartlySent,
    CancelImpossible,
    CommunicationError,
    ConfigurationError,
    ConnectionStringError,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    EnvelopeError,
    FactoryClosed,
    FactoryFaulted,
    FilterError,
    InvalidEntityPath,
    InvalidMessage,
    LinkDetached,
    MessageLockLost,
    MessageNotFound,
    MessageRefused,
    MessageTooLarge,
    NoBacklogQueue,
    OperationTimeout,
    PairingError,
    PortTaken,
    QuotaExceeded,
    ReservedProperty,
    SendInterrupted,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
    SessionCannotBeLocked,
    SessionLockLost,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreRefused,
    StoreVersionMismatch,
    TooLargeForBacklog,
    TwinbusError,
)
from twinbus.failover.backlog_alerts import BacklogThresholds
from twinbus.failover.backlog_rotation import RotationPolicy
from twinbus.failover.error_classifier import (
    BacklogErrorClass,
    Classifier,
    PrimaryErrorClass,
)
from twinbus.failover.state_machine import Health
from twinbus.message import BrokeredMessage
from twinbus.pairing.backlog_monitor import QueueBacklog
from twinbus.pairing.events import EventRecord, read_journal
from twinbus.pairing.options import PairedNamespaceOptions
from twinbus.pairing.routing import EntityHealth
from twinbus.pairing.syphon_hosting import SyphonHosting
from twinbus.sync.clients import (
    MessageReceiver,
    MessageSender,
    NamespaceManager,
    QueueClient,
    SubscriptionClient,
    TopicClient,
)
from twinbus.sync.factory import MessagingFactory, SendAvailabilityPairedNamespaceOptions

if TYPE_CHECKING:
    from twinbus.drivers.embedded import EmbeddedNamespace

__all__ = [
    "NEXT_SESSION",
    "AccessDenied",
    "AccessRefused",
    "AlreadyPaired",
    "AuthenticationFailed",
    "BacklogErrorClass",
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
    "PrimaryErrorClass",
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

# It loads a whole broker, which only some programs need.
__getattr__, __dir__ = lazy_exports(
    __name__, {"EmbeddedNamespace": "twinbus.drivers.embedded"}, __all__
)
