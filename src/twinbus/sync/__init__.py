"""Paired namespaces for programs without an event loop; the names are those of ``twinbus.aio``.

    import twinbus

    primary = twinbus.MessagingFactory.from_connection_string(primary_text)

Everything here holds its async twin and goes through one door (portal.py) to the loop on which
that lives: there is one implementation.
"""

from __future__ import annotations

from twinbus.message import BrokeredMessage
from twinbus.pairing.options import PairedNamespaceOptions
from twinbus.sync.clients import (
    MessageReceiver,
    MessageSender,
    QueueClient,
    SubscriptionClient,
    TopicClient,
)
from twinbus.sync.factory import MessagingFactory, SendAvailabilityPairedNamespaceOptions
from twinbus.sync.manager import NamespaceManager

__all__ = [
    "BrokeredMessage",
    "MessageReceiver",
    "MessageSender",
    "MessagingFactory",
    "NamespaceManager",
    "PairedNamespaceOptions",
    "QueueClient",
    "SendAvailabilityPairedNamespaceOptions",
    "SubscriptionClient",
    "TopicClient",
]
