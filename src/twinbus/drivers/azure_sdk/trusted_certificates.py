"""The certificates that are trusted unless told otherwise, read once.

Rule 1: the SDK reads its bundle for each connection that it opens, on the loop and also where
        nothing is encrypted: 30 ms of CPU. A failover opens dozens of connections at once.
Rule 2: a bundle of the user's own is left to the SDK: it is small, and a new one counts with the
        next connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import certifi

_CHOICES: Final = ("ssl_context", "connection_verify")


def with_certificates(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords for the SDK's client, with the usual certificates where they choose none."""
    if any(keywords.get(choice) is not None for choice in _CHOICES):
        return dict(keywords)
    return {**keywords, "ssl_context": usual_certificates()}


@cache
def usual_certificates() -> ssl.SSLContext:
    """What the SDK makes, from the same bundle."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certifi.where())
    return context
