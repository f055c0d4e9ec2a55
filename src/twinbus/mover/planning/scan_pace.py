"""When idle backlog queues are scanned for messages that another syphon deferred.

    a sign of diverted messages --> a scan at each interval, for SCAN_ON_S --> no more scans

Only a syphon that has received a message can defer it. While no message arrives in the backlog, a
scan finds what the scan before has found, so an idle syphon makes none (Y3).

Rule 1: a sign is everything after which other syphons may have deferred messages: a message that
        was received, a queue that could not be read, a time without a poll.
Rule 2: a sign applies to every queue: two syphons may receive the messages of one outage.
Rule 3: scans go on for SCAN_ON_S after the last sign: another syphon may receive messages when
        this one has none left.
Rule 4: this module reads no clock.
"""

from __future__ import annotations

from math import inf
from typing import Final

__all__ = ["SCAN_ON_S", "ScanPace"]

# A day of scans of ten queues is 240 operations, once after an outage.
SCAN_ON_S: Final = 86_400.0


class ScanPace:
    """Shared by all queues of one syphon."""

    def __init__(self) -> None:
        self._sign_s = -inf

    def note_sign(self, now_s: float) -> None:
        """Messages may have been diverted (rule 1)."""
        self._sign_s = max(self._sign_s, now_s)

    def is_wanted(self, scanned_s: float) -> bool:
        """Whether a queue that was last scanned then has to be scanned again, once its interval is
        over."""
        return scanned_s < self._sign_s + SCAN_ON_S
