"""How the clients of a namespace share a limited resource: bytes, links, deliveries.

An account is a key (a rule of the namespace or of an entity); a holder is one connection of it.
All connections without a token are one account, with a smaller weight.

    account "orders/sender"   weight 1   used 6 MB  <-- holders: 40 connections
    account "root"            weight 1   used 1 KB  <-- holders: 1 connection

Rule 1: work-conserving. While the capacity is not used up, every account may take more.
Rule 2: when it is used up, an account below its share still may: its share is the capacity, divided
        by the weights of the accounts that use any of it. So may a connection below its part of
        that share.
Rule 3: what is above the capacity is bounded: by one share for each, so by the capacity again.
Rule 4: this file uses no clock and no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

NO_TOKEN = None
"""The key of connections without a token."""
NO_TOKEN_WEIGHT = 0.25
KEY_WEIGHT = 1.0


class Account:
    """What the connections of one key use together."""

    __slots__ = ("active_count", "holder_count", "key", "used", "weight")

    def __init__(self, key: Hashable, weight: float) -> None:
        self.key = key
        self.weight = weight
        self.used = 0
        self.active_count = 0
        """Connections that use some."""
        self.holder_count = 0
        """Connections that exist."""


class Holder:
    """What one connection uses."""

    __slots__ = ("account", "used")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.used = 0


class SharedCapacity:
    """One limited resource."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._accounts: dict[Hashable, Account] = {}
        self._weight_in_use = 0.0
        self.waiting: dict[Callable[[], None], None] = {}
        """Callbacks for when some is given back; added and called by the users of this class."""

    # -- holders --------------------------------------------------------------------------

    def join(self, key: Hashable = NO_TOKEN) -> Holder:
        """Register a connection."""
        return Holder(self._account(key))

    def move(self, holder: Holder, key: Hashable) -> None:
        """The connection has sent a token of this key; its use is moved to the key's account."""
        if holder.account.key == key:
            return
        used = holder.used
        self.give_back(holder, used)
        self._leave(holder.account)
        holder.account = self._account(key)
        self.take(holder, used)

    def leave(self, holder: Holder) -> None:
        """The connection is closed. What it still uses counts for its key until it is given
        back."""
        self._leave(holder.account)

    def _account(self, key: Hashable) -> Account:
        account = self._accounts.get(key)
        if account is None:
            weight = NO_TOKEN_WEIGHT if key is NO_TOKEN else KEY_WEIGHT
            account = self._accounts[key] = Account(key, weight)
        account.holder_count += 1
        return account

    def _leave(self, account: Account) -> None:
        account.holder_count -= 1
        if not account.holder_count and not account.used:
            self._accounts.pop(account.key, None)

    # -- use ------------------------------------------------------------------------------

    def take(self, holder: Holder, amount: int) -> None:
        if not amount:
            return
        account = holder.account
        if not holder.used:
            account.active_count += 1
        if not account.used:
            self._weight_in_use += account.weight
        holder.used += amount
        account.used += amount
        self.used += amount

    def give_back(self, holder: Holder, amount: int) -> None:
        if not amount:
            return
        account = holder.account
        holder.used -= amount
        account.used -= amount
        self.used -= amount
        if not holder.used:
            account.active_count -= 1
        if not account.used:
            self._weight_in_use -= account.weight
            if not account.holder_count:
                self._accounts.pop(account.key, None)

    # -- decisions ------------------------------------------------------------------------

    def share(self, account: Account) -> float:
        """The share of the account while others use some, too."""
        others = self._weight_in_use - (account.weight if account.used else 0)
        return self.capacity * account.weight / (others + account.weight)

    def has_room(self, account: Account) -> bool:
        """Whether the account may take more: some is left, or it is below its share."""
        return self.used < self.capacity or account.used < self.share(account)

    @property
    def scarcity(self) -> float:
        """From 0 (nothing is used) to 1 (nothing is left)."""
        return min(1.0, self.used / self.capacity)

    def room(self, account: Account) -> int:
        """How much the account may take now; 0 or less is none."""
        left = self.capacity - self.used
        if left > 0:
            return left
        return int(self.share(account)) - account.used

    def may_take(self, holder: Holder) -> bool:
        """The same for a connection: also if the share is used by others of its key."""
        account = holder.account
        if self.has_room(account):
            return True
        count = account.active_count + (0 if holder.used else 1)
        return holder.used * count < self.share(account)
