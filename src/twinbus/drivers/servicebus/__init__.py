"""The driver over the official SDK (``azure-servicebus``): Azure, its emulator and our broker.

driver.py        ServiceBusDriver: one namespace, made from a connection string or a credential
sender.py        the port's Sender
receiver.py      the port's Receiver
blocking_link.py a blocking sender of the SDK, for the caller's own thread
line.py          one object of the SDK with its connection: what only its inside can tell
watch.py         a time limit that holds for the SDK
sealed.py        messages as bytes in and out of the SDK's own classes
translation.py   the table from the SDK's errors to ours

Rule 1: line.py, blocking_link.py and sealed.py are the only files that use names which the SDK
        keeps to itself, besides the classes of errors in translation.py.
Rule 2: the SDK never retries (``retry_total=0``) and is never left without a time limit (F6).
Rule 3: a message of the SDK's own kind is handed to it as it is (P0).
"""

from __future__ import annotations

from twinbus.errors import ConfigurationError

try:
    from twinbus.drivers.servicebus.driver import ServiceBusDriver, ServiceBusOptions
    from twinbus.drivers.servicebus.sealed import encode_native, is_native, split_batch
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "azure":
        raise
    raise ConfigurationError(
        "this needs the package azure-servicebus, which is not installed",
        hint="Run `pip install 'twinbus[azure]'`",
    ) from error

__all__ = [
    "ServiceBusDriver",
    "ServiceBusOptions",
    "encode_native",
    "is_native",
    "split_batch",
]
