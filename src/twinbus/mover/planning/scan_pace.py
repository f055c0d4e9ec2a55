"""When idle backlog queues are looked through for messages that another syphon set aside.

    a sign of diverted messages --> a look at each interval, for LOOK_ON_S --> no more looks

Only a syphon that has received a message can set it aside. While no message arrives in the backlog,
a look finds what the look before has found, so an idle syphon makes none (Y3).

Rule 1: a sign is everything after which messages may have been set aside unseen: a message that was
        received, a queue that could not be read, a time in which no poll was held.
Rule 2: a sign holds for every queue: two syphons may receive the messages of one outage.
Rule 3: looks go on for LOOK_ON_S after the last sign: another syphon may receive messages when this
        one has none left.
Rule 4: this file reads no clock.
"""

from __future__ import annotations

from math import inf
from typing import Final

__all__ = ["LOOK_ON_S", "ScanPace"]

# A day of looks at ten queues is 240 operations, once after an outage.
LOOK_ON_S: Final = 86_400.0


class ScanPace:
    """What the queues of one syphon have in common."""

    def __init__(self) -> None:
        self._sign_s = -inf

    def note_sign(self, now_s: float) -> None:
        """Messages may have been diverted (rule 1)."""
        self._sign_s = max(self._sign_s, now_s)

    def is_wanted(self, looked_s: float) -> bool:
        """Whether a queue that was last looked through then has to be looked through again, once
        its interval is over."""
        return looked_s < self._sign_s + LOOK_ON_S
