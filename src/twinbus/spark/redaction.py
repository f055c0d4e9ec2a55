"""What Spark must not show: the settings that make it hide our secrets.

Rule 1: references (connectionStringEnv, …File) stay readable: they say which secret, not what.
"""

from __future__ import annotations

from typing import Final

__all__ = ["OPTIONS_REGEX", "STRING_REGEX", "with_ours"]

_CORE: Final = r"(?i)secret|password|token|access[.]?key"
"""Spark's own default for its properties."""
KEYS: Final = r"connection_?string$|shared_?access"
PROPERTIES_REGEX: Final = f"{_CORE}|{KEYS}"
"""``spark.redaction.regex``: properties and environment variables, by name or value."""
OPTIONS_REGEX: Final = f"(?i)url|secret|password|{KEYS}"
"""``spark.sql.redaction.options.regex``: options of a data source; Spark's own word is url."""
STRING_REGEX: Final = (
    r"(?i)shared_?access_?(key|signature)\s*=[^;,\s\])}\"']+|\bsig=[^&;,\s\])}\"']+"
)
"""``spark.sql.redaction.string.regex``: any text of a plan."""


def with_ours(theirs: str | None, ours: str) -> str:
    """Both expressions; what a user hides stays hidden."""
    if not theirs or ours in theirs:
        return theirs or ours
    return f"({theirs})|({ours})"
