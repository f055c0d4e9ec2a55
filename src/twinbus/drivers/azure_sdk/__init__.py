"""The driver over the official SDK (``azure-servicebus``): Azure, its emulator and our broker.

driver                  ServiceBusDriver: one namespace, by a connection string or a credential
sender, receiver        the interface's Sender and Receiver; sender_lock one call at a time
blocking_link           a blocking sender of the SDK, for the caller's own thread
sdk_link                one object of the SDK with its connection, and an enforced time limit
sdk_messages            messages as bytes in and out of the SDK's own classes
trusted_certificates    the trusted certificates, read once
errors                  the table from the SDK's errors to ours

Rule 1: only sdk_link, blocking_link and sdk_messages use private names of the SDK, besides the
        error classes in errors.
Rule 2: the SDK never retries (``retry_total=0``) and never runs without a time limit (F6).
Rule 3: a message of the SDK's own class is passed to it unchanged (P0).
"""

from __future__ import annotations

from twinbus.errors import ConfigurationError

try:
    from twinbus.drivers.azure_sdk.driver import ServiceBusDriver, ServiceBusOptions
    from twinbus.drivers.azure_sdk.sdk_messages import encode_native, is_native, split_batch
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "azure":
        raise
    raise ConfigurationError(
        "Package 'azure-servicebus' is not installed",
        hint="Run `pip install 'twinbus[azure]'`",
    ) from error

__all__ = [
    "ServiceBusDriver",
    "ServiceBusOptions",
    "encode_native",
    "is_native",
    "split_batch",
]
