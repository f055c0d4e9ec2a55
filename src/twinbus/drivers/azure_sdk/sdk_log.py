"""Keeps out of the log what the SDK logs about calls of ours and raises as well.

The SDK logs an error that it does not know with a traceback, and raises it. A request that is cut
off when its pair closes is such an error: our caller has it already, and an application that closes
a client under load would print tracebacks.

Rule 1: only calls of this driver are affected, and only this line. The SDK's own clients, which an
        application may use beside ours, log as before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

__all__ = ["without_traceback"]

_LINE: Final = "Unexpected error occurred (%r). Handler shutting down."
_is_ours: Final = ContextVar("twinbus_sdk_call", default=False)


class _NotOurs(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.msg == _LINE and _is_ours.get())


logging.getLogger("azure.servicebus.aio._base_handler_async").addFilter(_NotOurs())


@contextmanager
def without_traceback() -> Iterator[None]:
    """A call of this driver, whose error its caller gets."""
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)
