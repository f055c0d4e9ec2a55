"""How often an operation is tried again, and after which pause.

RetryPolicy    sends to the primary (F6)
Backoff        attempts at a destination that failed, with pauses that grow

Rule 1: all retries of a send are decided here: drivers make one attempt.
Rule 2: names and defaults of RetryPolicy are those of the Azure SDK, so that a paired sender waits
        as an unpaired one would.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from twinbus.common.argument_types import is_number
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
            raise ConfigurationError(
                f"Invalid value for retry_total: {self.retry_total!r:.40}",
                hint="Use a whole number from 0 to 1000; the default is 3",
            )
        for name in ("retry_backoff_factor", "retry_backoff_max"):
            seconds = getattr(self, name)
            if not is_number(seconds) or seconds < 0:
                raise ConfigurationError(
                    f"Invalid value for {name}: {seconds!r:.40}",
                    hint="Use a number of seconds, 0 or more",
                )
        if self.retry_mode not in ("exponential", "fixed"):
            raise ConfigurationError(
                f"Invalid value for retry_mode: {self.retry_mode!r:.40}",
                hint="Use 'exponential' or 'fixed'",
            )

    def delay_s(self, retry: int, rng: Random) -> float:
        """How long to wait before the retry with this number, counted from 1."""
        factor = 2.0 ** min(retry, 32) if self.retry_mode == "exponential" else 1.0
        delay_s = min(self.retry_backoff_factor * factor, self.retry_backoff_max)
        return delay_s * rng.uniform(1 - JITTER, 1 + JITTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long no message is sent to a destination that failed."""

    first_s: float = 1.0
    """The pause after the first failure; it doubles with each probe that fails."""
    last_s: float = 60.0
    """The longest pause, and so about how late a recovery can be detected."""
    gone_grace_s: float = 600.0
    """How long a destination may be missing before its messages are dead-lettered."""

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.last_s:
            raise ConfigurationError(
                f"Invalid values for first_s and last_s: {self.first_s!r} and {self.last_s!r}",
                hint="Use seconds: first_s greater than 0, last_s not less than first_s",
            )
        if not self.gone_grace_s >= 0:
            raise ConfigurationError(
                f"Invalid value for gone_grace_s: {self.gone_grace_s!r}",
                hint="Use seconds, 0 or more",
            )

    def pause_s(self, failure_count: int, random: Random) -> float:
        """The pause after this many failures in a row, up to a fifth shorter or longer."""
        # 2**30 first pauses are longer than any last one; beyond that floats overflow.
        doubled = self.first_s * 2.0 ** min(failure_count - 1, 30)
        return min(self.last_s, doubled) * random.uniform(0.8, 1.2)
