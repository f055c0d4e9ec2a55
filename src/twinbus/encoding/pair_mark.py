"""The pair that a backlog message belongs to: the text of ``x-twinbus-pair`` (P21).

    0123456789ab contoso.servicebus.windows.net
    id           address of the primary

Two primaries can have the same name, in two clouds or on one machine, and then share backlog
queues. The mark distinguishes their messages.

Rule 1: the mark follows from the primary's address and name alone, so that every process of an
        application writes the same one, also during an outage and after a restart.
Rule 2: the port counts unless it is a usual one: one namespace has several ports (AMQP with and
        without TLS, WebSockets), and brokers on one machine differ in their ports only. All names
        of the loopback interface are the same address.
Rule 3: a message without a mark is moved: an older version or another library wrote it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

__all__ = ["EVERY_OWNER", "address_in", "is_accepted", "pair_mark", "shared_scan_s"]

EVERY_OWNER: Final = "*"
"""Accepts the messages of all pairs."""

ID_CHARACTERS: Final = 12
# In a queue of two pairs the syphon of each pair defers the messages of the other, so that it scans
# such a queue more often than others for its own deferred messages.
SHARED_SCAN_S: Final = 60.0
SHARED_SCAN_MESSAGES: Final = 1_000
"""A scan costs as much as the messages that it reads: at most so many in each usual interval."""
# A longer address is cut off: the id is different for each, and P13 needs a limit.
ADDRESS_CHARACTERS_MAX: Final = 100


def pair_mark(address: str, primary_name: str) -> str:
    """The mark of a primary, by its address in the form of rule 2."""
    digest = hashlib.sha256(f"{address}\n{primary_name.lower()}".encode()).hexdigest()
    return f"{digest[:ID_CHARACTERS]} {address[:ADDRESS_CHARACTERS_MAX]}"


def address_in(mark: str) -> str:
    """The address in a mark; the whole mark if it has another form."""
    return mark[ID_CHARACTERS + 1 :] if mark[ID_CHARACTERS : ID_CHARACTERS + 1] == " " else mark


def shared_scan_s(interval_s: float, waiting: int) -> float:
    """The interval for scanning a queue with messages of two pairs, of which ``waiting`` are known;
    ``interval_s`` is the interval for other queues."""
    return max(min(SHARED_SCAN_S, interval_s), interval_s * waiting / SHARED_SCAN_MESSAGES)


def is_accepted(mark: str, own: str, accepted: Collection[str]) -> bool:
    """Whether a syphon of the pair ``own`` moves a message with this mark.

    ``accepted`` has addresses, ids or whole marks of other pairs. A syphon without a mark of its
    own moves all messages.
    """
    if not mark or not own or mark == own or EVERY_OWNER in accepted:
        return True
    spellings = {mark.lower(), mark[:ID_CHARACTERS].lower(), address_in(mark).lower()}
    return any(each.lower() in spellings for each in accepted)
