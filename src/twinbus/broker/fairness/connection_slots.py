"""The number of connections: a small pool for strangers, and a separate one for all others.

    accept --> admit() --> Slot of a stranger --a valid token--> authenticate() --> leave()
                  |          ^
                  |          of the address with the most strangers, the one with the oldest
                  +- full -> handshake step: evicted (broker/listener/tarpit.py)

Rule 1: a stranger is a connection that has not sent a valid token, whatever protocol it uses and
        however far its handshake is. It never uses the slot of a connection with a token.
Rule 2: a new connection always gets a slot. When the pool is full, the address with the most
        strangers loses one: the one whose last step is the oldest. So an address that floods
        evicts its own connections, and a client that continues its handshake is kept longer than
        those that wait. Among the first few, one that has a session is skipped, and one with input
        that the broker has not read yet: on a busy machine clients and broker are slow.
Rule 3: a step counts once, and there are few of them: single bytes do not extend the time.
Rule 4: connections with a token are shared by key (shares.py): one key may have all of them,
        and another key below its share still gets its connections. So there are at most twice as
        many as connections_max.
Rule 5: pure. Connections are closed by the function that was passed with them.

An IPv6 address counts as its /64 network: providers give at least that much to one customer.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Final

from twinbus.broker.fairness.shares import NO_TOKEN, Holder, SharedCapacity

__all__ = ["EVICTED", "ConnectionSlots", "Slot", "address_group"]

EVICTED: Final = "connection without a token closed to make room for a newer one"
"""The log line about it."""

# First byte, TLS handshake, open, session, two links to $cbs, and one to spare.
STEPS_MAX: Final = 7
# How many slots are checked for one that can be evicted, and for how many of these unread input is
# checked. If none is found, the first one is evicted.
LOOKED_AT_MAX: Final = 64
ASKED_MAX: Final = 8
# Above this share of the pool, strangers have the shorter of two time limits.
PRESSURE_SHARE: Final = 0.5


class Slot:
    """The place of one connection."""

    __slots__ = (
        "_slots",
        "_step_count",
        "connection",
        "evict",
        "group",
        "has_session",
        "holder",
        "is_authenticated",
        "is_owed",
        "stepped_s",
    )

    def __init__(self, slots: ConnectionSlots, group: str, evict: Callable[[], None]) -> None:
        self._slots: ConnectionSlots | None = slots
        self._step_count = 0
        self.group = group
        self.is_authenticated = False
        self.holder: Holder | None = None
        """Its part of the connections of its key."""
        self.evict = evict
        """Closes the connection; replaced when the connection gets another owner."""
        self.connection: socket.socket | None = None
        """Passed to ``keep_open`` when it is evicted for a new connection."""
        self.is_owed: Callable[[], bool] = _no
        """Whether it has input that waits for its turn; checked before it is evicted."""
        self.has_session = False
        """It is about to send its token."""
        self.stepped_s = 0.0
        """The time of its last step."""

    @property
    def is_taken(self) -> bool:
        """Whether the connection may stay; false after it was evicted."""
        return self._slots is not None

    @property
    def is_pressed(self) -> bool:
        """Whether strangers' slots are becoming scarce."""
        return self._slots is not None and self._slots.is_pressed

    def advanced(self) -> None:
        """The handshake went one step further."""
        if self._slots is not None and not self.is_authenticated and self._step_count < STEPS_MAX:
            self._step_count += 1
            self._slots.renew(self)

    @property
    def key(self) -> Hashable:
        """The key of its token; NO_TOKEN before that."""
        return NO_TOKEN if self.holder is None else self.holder.account.key

    def authenticate(self, key: Hashable = "") -> bool:
        """A valid token was received; False if its key has the maximum of connections."""
        if self.is_authenticated or self._slots is None:
            return self.is_authenticated
        self.is_authenticated = self._slots.authenticate(self, key)
        return self.is_authenticated

    def leave(self) -> None:
        """The connection is closed; may be called twice."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.discard(self)
            # They refer to the connection, which refers to the slot: a cycle for the garbage
            # collector, and a flood of strangers would fill the memory with such cycles.
            self.evict, self.is_owed = _nothing, _no
            self.connection = None


class ConnectionSlots:
    """The connections of one namespace, or of the administration port."""

    def __init__(
        self,
        *,
        strangers_max: int,
        connections_max: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_s = now_s
        self.strangers_max = strangers_max
        self.connections_max = connections_max
        self.evicted_count = 0
        self.keep_open: Callable[[socket.socket, float], None] | None = None
        """Called with a connection before it is closed for a new one, and its idle time."""
        self.has_unread: Callable[[socket.socket], bool] = _never
        """Whether a connection has bytes that were not read yet."""
        self.stranger_count = 0
        self._shares = SharedCapacity(connections_max)
        self._groups: dict[str, dict[Slot, None]] = {}
        """The strangers of each address, the one with the oldest step first."""
        self._by_size: dict[int, dict[str, None]] = {}
        """The addresses by their number of strangers."""
        self._largest = 0

    @property
    def authenticated_count(self) -> int:
        return self._shares.used

    @property
    def is_pressed(self) -> bool:
        return self.stranger_count > self.strangers_max * PRESSURE_SHARE

    @property
    def is_behind(self) -> bool:
        """Whether the next one to be evicted has input that the broker has not handled yet."""
        is_full = self.stranger_count >= self.strangers_max
        return is_full and self._has_waiting_input(self._next_victim())

    def admit(self, address: str, evict: Callable[[], None]) -> Slot:
        """A slot for a new connection; if the pool is full, another stranger is evicted."""
        slot = Slot(self, address_group(address), evict)
        slot.stepped_s = self._now_s()
        members = self._groups.setdefault(slot.group, {})
        members[slot] = None
        self.stranger_count += 1
        self._resized(slot.group, len(members) - 1, len(members))
        while self.stranger_count > self.strangers_max:
            victim = self._next_victim(slot)
            connection = victim.connection
            if self.keep_open is not None and connection is not None and not victim.is_owed():
                self.keep_open(connection, self._now_s() - victim.stepped_s)
            self._evict(victim)
        return slot

    def evict_one(self) -> None:
        """Close one stranger of the address with the most of them, if there is one."""
        if not self.stranger_count:
            return
        self._evict(self._next_victim())

    def _next_victim(self, newcomer: Slot | None = None) -> Slot:
        group = next(iter(self._by_size[self._largest]))
        members = self._groups[group]
        early = (
            slot
            for slot in islice(members, LOOKED_AT_MAX)
            if not slot.has_session and slot is not newcomer
        )
        for slot in islice(early, ASKED_MAX):
            if not self._has_waiting_input(slot):
                return slot
        return next(iter(members))

    def _has_waiting_input(self, slot: Slot) -> bool:
        return slot.is_owed() or (slot.connection is not None and self.has_unread(slot.connection))

    def _evict(self, slot: Slot) -> None:
        evict = slot.evict
        slot.leave()
        self.evicted_count += 1
        evict()

    def renew(self, slot: Slot) -> None:
        """The stranger has made a step: it is the last one of its address to be evicted."""
        slot.stepped_s = self._now_s()
        members = self._groups[slot.group]
        del members[slot]
        members[slot] = None

    def authenticate(self, slot: Slot, key: Hashable) -> bool:
        """Called by the slot itself."""
        holder = self._shares.join(key)
        if not self._shares.has_room(holder.account):
            self._shares.leave(holder)
            return False
        self._remove_stranger(slot)
        self._shares.take(holder, 1)
        slot.holder = holder
        return True

    def discard(self, slot: Slot) -> None:
        """Called by the slot itself."""
        if slot.holder is not None:
            self._shares.give_back(slot.holder, 1)
            self._shares.leave(slot.holder)
        else:
            self._remove_stranger(slot)

    def _remove_stranger(self, slot: Slot) -> None:
        members = self._groups[slot.group]
        del members[slot]
        self.stranger_count -= 1
        self._resized(slot.group, len(members) + 1, len(members))
        if not members:
            del self._groups[slot.group]

    def _resized(self, group: str, before: int, after: int) -> None:
        """Sizes change by one, so the largest is found without a search."""
        if before:
            same = self._by_size[before]
            del same[group]
            if not same:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[group] = None
        if after > self._largest or (before == self._largest and before not in self._by_size):
            self._largest = after


def _nothing() -> None:
    pass


def _no() -> bool:
    return False


def _never(_connection: socket.socket) -> bool:
    return False


def address_group(address: str) -> str:
    """What counts as one address: itself, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, 64), strict=False))
