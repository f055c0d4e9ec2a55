"""Which pair a backlog message belongs to: the text of ``x-twinbus-pair``, and who takes it (P21).

    0123456789ab contoso.servicebus.windows.net
    id           address of the primary

Two primaries can have one name, in two clouds or on one machine, and then share backlog queues.
The mark tells their messages apart.

Rule 1: the mark follows from the primary's address and name alone, so that every process of an
        application writes the same one, also during an outage and after a restart.
Rule 2: the port counts unless it is a usual one: one namespace has several doors (AMQP with and
        without TLS, WebSockets), and brokers on one machine differ in nothing else. All names of
        the loopback are one.
Rule 3: what has no mark is moved: it was written before there were marks, or by another library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

__all__ = ["EVERY_OWNER", "address_in", "is_accepted", "pair_mark", "shared_scan_s"]

EVERY_OWNER: Final = "*"
"""Accepts the messages of all pairs."""

ID_CHARACTERS: Final = 12
# In a queue of two pairs the syphon of one defers what belongs to the other, so that each looks for
# its own more often than for what was set aside otherwise.
SHARED_LOOK_S: Final = 60.0
SHARED_LOOK_MESSAGES: Final = 1_000
"""A look is charged for what it shows: so many messages in each ordinary interval at most."""
# A longer one is cut: the id tells it from others, and P13 needs a bound.
ADDRESS_CHARACTERS_MAX: Final = 100


def pair_mark(address: str, primary_name: str) -> str:
    """The mark of a primary, by its address as marks spell it."""
    digest = hashlib.sha256(f"{address}\n{primary_name.lower()}".encode()).hexdigest()
    return f"{digest[:ID_CHARACTERS]} {address[:ADDRESS_CHARACTERS_MAX]}"


def address_in(mark: str) -> str:
    """The address that a mark names; the whole mark where it has another form."""
    return mark[ID_CHARACTERS + 1 :] if mark[ID_CHARACTERS : ID_CHARACTERS + 1] == " " else mark


def shared_scan_s(interval_s: float, waiting: int) -> float:
    """How often to look through a queue that holds messages of two pairs, ``waiting`` of which
    are known; ``interval_s`` is the pause for other queues."""
    return max(min(SHARED_LOOK_S, interval_s), interval_s * waiting / SHARED_LOOK_MESSAGES)


def is_accepted(mark: str, own: str, accepted: Collection[str]) -> bool:
    """Whether a syphon of the pair ``own`` moves a message with this mark.

    ``accepted`` has addresses, ids or whole marks of other pairs. A syphon that does not know its
    own mark moves everything.
    """
    if not mark or not own or mark == own or EVERY_OWNER in accepted:
        return True
    spellings = {mark.lower(), mark[:ID_CHARACTERS].lower(), address_in(mark).lower()}
    return any(each.lower() in spellings for each in accepted)
