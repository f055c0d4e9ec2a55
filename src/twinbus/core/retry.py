"""How often, and after how long, a send is tried again at the primary (F6).

All retries are here: drivers make one attempt. The names and defaults are those of the Azure SDK,
so that a paired sender waits as an unpaired one would.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from twinbus.argument_types import is_number
from twinbus.errors import ConfigurationError

JITTER: Final = 0.2
"""A delay is up to this share shorter or longer, so that senders do not return in step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off with jitter, bounded by the caller's deadline."""

    retry_total: int = 3
    """Attempts after the first one."""
    retry_backoff_factor: float = 0.8
    retry_backoff_max: float = 120.0
    retry_mode: Literal["exponential", "fixed"] = "exponential"

    def __post_init__(self) -> None:
        if type(self.retry_total) is not int or not 0 <= self.retry_total <= 1_000:
            raise ConfigurationError("retry_total is not from 0 to 1000", hint="3 is the default")
        for seconds in (self.retry_backoff_factor, self.retry_backoff_max):
            if not is_number(seconds) or seconds < 0:
                raise ConfigurationError(
                    "a retry back-off is not a number from 0 up", hint="Use seconds from 0 up"
                )
        if self.retry_mode not in ("exponential", "fixed"):
            raise ConfigurationError(
                f"retry_mode is {self.retry_mode!r:.40}", hint="Use 'exponential' or 'fixed'"
            )

    def delay_s(self, retry: int, rng: Random) -> float:
        """How long to wait before the retry with this number, counted from 1."""
        factor = 2.0 ** min(retry, 32) if self.retry_mode == "exponential" else 1.0
        delay_s = min(self.retry_backoff_factor * factor, self.retry_backoff_max)
        return delay_s * rng.uniform(1 - JITTER, 1 + JITTER)
