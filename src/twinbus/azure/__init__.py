"""A drop-in for ``azure-servicebus``: one changed import turns pairing on.

from twinbus.azure import PairedServiceBusClient as ServiceBusClient        # sync
from twinbus.azure.aio import PairedServiceBusClient as ServiceBusClient    # async
"""

from __future__ import annotations

# It comes first and says what to install where the SDK is missing.
import twinbus.drivers.azure_sdk  # noqa: F401
from twinbus.azure.client import PairedServiceBusClient, PairedServiceBusSender
from twinbus.azure.options import Pairing

__all__ = ["PairedServiceBusClient", "PairedServiceBusSender", "Pairing"]
