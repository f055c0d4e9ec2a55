"""Creates shared access signatures, which the broker verifies.

    SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<rule name>

The signature is HMAC-SHA256, with a rule's key, over ``sr`` exactly as it is in the token,
a line feed, and ``se``.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final
from urllib.parse import quote

__all__ = ["TOKEN_PREFIX", "keyed_digest", "make_token"]

TOKEN_PREFIX: Final = "SharedAccessSignature "


def make_token(*, resource: str, rule_name: str, key: str, expires_s: int) -> str:
    """A signed token; ``resource`` is a URL such as ``sb://host:5672/orders``."""
    quoted = quote(resource, safe="")
    signature = base64.b64encode(keyed_digest(key, f"{quoted}\n{expires_s}")).decode("ascii")
    return (
        f"{TOKEN_PREFIX}sr={quoted}&sig={quote(signature, safe='')}&se={expires_s}"
        f"&skn={quote(rule_name, safe='')}"
    )


def keyed_digest(key: str, text: str) -> bytes:
    """The HMAC-SHA256 of the text with the key."""
    return hmac.digest(key.encode("utf-8"), text.encode("utf-8"), "sha256")
