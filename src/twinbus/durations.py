"""Times as people write them: on a command line, and in an environment variable."""

from __future__ import annotations

import re

from twinbus.errors import ConfigurationError

__all__ = ["seconds"]

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)?", re.ASCII)
# A hundred years: what is longer fits no calendar, and nobody waits for it.
SECONDS_MAX = 36_500 * 86_400.0
_UNIT_S = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """``250ms``, ``30s``, ``5m``, ``1h``, ``2d``, or a plain number of seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r:.40} is not a time", hint="Write it as 30s, 5m or 1h")
    found = float(match[1]) * _UNIT_S[match[2]]
    if found > SECONDS_MAX:
        raise ConfigurationError(f"{text!r:.40} is too long a time", hint="Use 36500d at most")
    return found
