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
        BrokeredMessage,
        Classifier,
        EmbeddedNamespace,
        MessageReceiver,
        MessageSender,
        MessagingFactory,
        NamespaceManager,
        PairedNamespaceOptions,
        QueueClient,
        ReceiveMode,
        RotationPolicy,
        SendAvailabilityPairedNamespaceOptions,
        SubscriptionClient,
        SyphonHosting,
        Thresholds,
        TopicClient,
        TtlPolicy,
        read_journal,
    )

__all__ = [
    "NEXT_SESSION",
    "BrokeredMessage",
    "Classifier",
    "EmbeddedNamespace",
    "MessageReceiver",
    "MessageSender",
    "MessagingFactory",
    "NamespaceManager",
    "PairedNamespaceOptions",
    "QueueClient",
    "ReceiveMode",
    "RotationPolicy",
    "SendAvailabilityPairedNamespaceOptions",
    "SubscriptionClient",
    "SyphonHosting",
    "Thresholds",
    "TopicClient",
    "TtlPolicy",
    "__version__",
    "read_journal",
]

__version__: Final = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("twinbus.sync"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
