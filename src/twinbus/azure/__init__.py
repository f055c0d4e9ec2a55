"""A drop-in for ``azure-servicebus``: one changed import enables pairing.

from twinbus.azure import PairedServiceBusClient as ServiceBusClient        # sync
from twinbus.azure.aio import PairedServiceBusClient as ServiceBusClient    # async
"""

from __future__ import annotations

# First, because it reports what to install if the SDK is missing.
import twinbus.drivers.azure_sdk  # noqa: F401
from twinbus.azure.client import PairedServiceBusClient, PairedServiceBusSender
from twinbus.azure.options import Pairing

__all__ = ["PairedServiceBusClient", "PairedServiceBusSender", "Pairing"]
