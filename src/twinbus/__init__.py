"""twinbus: keep sending while your broker is away.

    from twinbus import BrokeredMessage, MessagingFactory       # blocks
    from twinbus.aio import BrokeredMessage, MessagingFactory   # asyncio

Importing the package is light on purpose: no driver, no server and no optional dependency is
loaded before something asks for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twinbus.sync import (
        NEXT_SESSION,
        AccessDenied,
        AccessRefused,
        AlreadyPaired,
        AuthenticationFailed,
        BacklogExhausted,
        BacklogThresholds,
        BatchPartlySent,
        BrokeredMessage,
        CancelImpossible,
        Classifier,
        CommunicationError,
        ConfigurationError,
        ConnectionStringError,
        EmbeddedNamespace,
        EntityDisabled,
        EntityExists,
        EntityHealth,
        EntityNotFound,
        EnvelopeError,
        EventRecord,
        FactoryClosed,
        FactoryFaulted,
        FilterError,
        Health,
        InvalidEntityPath,
        InvalidMessage,
        LinkDetached,
        MessageLockLost,
        MessageNotFound,
        MessageReceiver,
        MessageRefused,
        MessageSender,
        MessageTooLarge,
        MessagingFactory,
        NamespaceManager,
        NoBacklogQueue,
        OperationTimeout,
        PairedNamespaceOptions,
        PairingError,
        PortTaken,
        QueueBacklog,
        QueueClient,
        QuotaExceeded,
        ReceiveMode,
        ReservedProperty,
        RotationPolicy,
        SendAvailabilityPairedNamespaceOptions,
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
        SubscriptionClient,
        SyphonHosting,
        TooLargeForBacklog,
        TopicClient,
        TtlPolicy,
        TwinbusError,
        read_journal,
    )

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
    "__version__",
    "read_journal",
]

__version__: Final = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("twinbus.sync"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Also the names that nothing has asked for yet, and that are not loaded."""
    return sorted(__all__)
