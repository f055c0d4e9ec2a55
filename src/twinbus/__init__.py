"""twinbus: keep sending while your broker is unreachable.

    from twinbus import BrokeredMessage, MessagingFactory       # blocks
    from twinbus.aio import BrokeredMessage, MessagingFactory   # asyncio

Importing the package is quick: drivers, the server and optional dependencies are loaded when they
are first used.
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
    """All public names, also those that are not loaded yet."""
    return sorted(__all__)
