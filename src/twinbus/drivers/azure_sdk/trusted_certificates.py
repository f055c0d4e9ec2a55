"""The certificates that are trusted by default, read once.

Rule 1: the SDK reads its bundle for each connection that it opens, on the loop and also where
        nothing is encrypted: 30 ms of CPU. A failover opens dozens of connections at once.
Rule 2: a user's own bundle is left to the SDK: it is small, and a changed one takes effect with
        the next connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import certifi

_CHOICES: Final = ("ssl_context", "connection_verify")


def with_certificates(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords for the SDK's client, with the default certificates unless they set others."""
    if any(keywords.get(choice) is not None for choice in _CHOICES):
        return dict(keywords)
    return {**keywords, "ssl_context": default_certificates()}


@cache
def default_certificates() -> ssl.SSLContext:
    """The TLS context that the SDK would create, from the same bundle."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certifi.where())
    return context
