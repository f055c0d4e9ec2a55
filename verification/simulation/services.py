"""The two namespaces: what their entities hold, and how they answer while they fail.

Rule 1: what a service holds survives its restarts (M8); locks do not.
Rule 2: an entity of the primary counts the copies of each message that came home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    EntityDisabled,
    EntityNotFound,
    LinkDetached,
    MessageRefused,
    MessageTooLarge,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
    ServiceInternalError,
)

WELL: Final = "well"
SILENT: Final = "silent"
"""A black hole: no answer; perhaps carried out, perhaps much later."""
MUTE: Final = "mute"
"""Carried out, and the answer is lost."""
SLOW: Final = "slow"


def _unreachable(sentence: str) -> ServiceError:
    return CommunicationError(sentence, was_sent=False)


# Nothing is carried out.
REFUSALS: Final[Mapping[str, Callable[[str], ServiceError]]] = {
    "unreachable": _unreachable,
    "busy": ServerBusy,
    "full": QuotaExceeded,
    "disabled": EntityDisabled,
    "gone": EntityNotFound,
    "locked out": AuthenticationFailed,
    "not allowed": AccessRefused,
}
# Perhaps it was carried out before this happened.
BREAKS: Final[Mapping[str, Callable[[str], ServiceError]]] = {
    "cut off": CommunicationError,
    "timing out": OperationTimeout,
    "broken": ServiceInternalError,
    "detaching": LinkDetached,
}
LOCK_S: Final = 20.0


class Mail:
    """One message of the application, and all that became of it."""

    __slots__ = (
        "acked_at",
        "announced",
        "buried",
        "error",
        "home_copies",
        "is_forged",
        "is_over",
        "is_submitted",
        "is_too_large",
        "is_unwanted",
        "message_id",
        "number",
        "path",
        "sender_copies",
        "unclear",
        "was_cut_off",
    )

    def __init__(self, number: int, path: str) -> None:
        self.number, self.path = number, path
        self.message_id = f"m{number}"
        self.is_too_large = False
        """No entity takes it."""
        self.is_forged = False
        """Somebody put it into a backlog queue without saying where it belongs."""
        self.is_unwanted = False
        """Its destination refuses it; a backlog queue cannot know."""
        self.acked_at: str | None = None
        self.error: BaseException | None = None
        self.is_submitted = False
        self.is_over = False
        self.was_cut_off = False
        """Whether its send was cancelled or killed: nobody was told anything."""
        self.sender_copies = 0
        """How often the application's own requests stored it, anywhere."""
        self.home_copies = 0
        self.unclear = 0
        """How many requests about it ended without a clear answer: each may be one more copy."""
        self.announced = False
        """Whether the core said that it may arrive twice."""
        self.buried: str | None = None
        """Why it is in a dead-letter queue."""


class Service:
    """One entity of either namespace."""

    __slots__ = ("mode", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.mode = WELL

    def void_locks(self) -> None:
        """The broker was restarted."""


class Home(Service):
    """A queue or topic of the primary."""

    __slots__ = ("_known", "detects_duplicates", "gone_s", "strangers")

    def __init__(self, name: str, *, detects_duplicates: bool) -> None:
        super().__init__(name)
        self.detects_duplicates = detects_duplicates
        self._known: set[int] = set()
        self.gone_s: float | None = None
        """When it was first deleted."""
        self.strangers: list[str] = []
        """What came here and should not have."""

    def refusal(self, mail: Mail) -> ServiceError | None:
        if mail.is_too_large:
            return MessageTooLarge(f"{mail.message_id} is too large")
        return MessageRefused(f"{mail.message_id} is not taken") if mail.is_unwanted else None

    def store(self, mail: Mail) -> bool:
        """Whether this is a new copy; a known one is accepted and dropped."""
        if mail.path != self.name:
            self.strangers.append(mail.message_id)
        if self.detects_duplicates and mail.number in self._known:
            return False
        self._known.add(mail.number)
        mail.home_copies += 1
        return True

    def holds(self, mail: Mail) -> bool:
        return mail.number in self._known


class Item:
    """One message in a backlog queue."""

    __slots__ = (
        "deliveries",
        "is_deferred",
        "locked_until_s",
        "mail",
        "number",
        "stored_s",
        "token",
    )

    def __init__(self, number: int, mail: Mail, now_s: float) -> None:
        self.number, self.mail, self.stored_s = number, mail, now_s
        self.deliveries = 0
        self.is_deferred = False
        self.locked_until_s = 0.0
        self.token = 0
        """Which delivery holds the lock: an older one settles nothing."""


class Backlog(Service):
    """A backlog queue of the secondary."""

    __slots__ = ("_last_number", "items", "refuses", "stored", "watchers")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.refuses = False
        """Whether it is of a kind that takes no message of ours, such as one with sessions."""
        self.items: dict[int, Item] = {}
        self.stored: set[int] = set()
        """The mails that were ever taken."""
        self.watchers: list[tuple[Any, int]] = []
        """Lanes that wait for something to arrive, and which turn of theirs that is."""
        self._last_number = 0

    def store(self, mail: Mail, now_s: float) -> None:
        self._last_number += 1
        self.items[self._last_number] = Item(self._last_number, mail, now_s)
        self.stored.add(mail.number)
        waiting, self.watchers = self.watchers, []
        for lane, turn in waiting:
            lane.called(turn)

    def void_locks(self) -> None:
        for item in self.items.values():
            item.locked_until_s = 0.0

    def lock(self, count_max: int, now_s: float) -> list[Item]:
        """The oldest messages that are free."""
        free = (one for one in self.items.values() if not one.is_deferred)
        return list(self._locked(free, count_max, now_s))

    def lock_deferred(self, numbers: list[int], now_s: float) -> list[Item] | None:
        """Exactly these, or None when one of them is not to be had."""
        found = [self.items[each] for each in numbers if each in self.items]
        if len(found) < len(numbers) or any(
            not one.is_deferred or one.locked_until_s > now_s for one in found
        ):
            return None
        return list(self._locked(found, len(found), now_s))

    def _locked(self, items: Iterable[Item], count_max: int, now_s: float) -> Iterator[Item]:
        for item in items:
            if count_max <= 0:
                return
            if item.locked_until_s <= now_s:
                count_max -= 1
                item.locked_until_s = now_s + LOCK_S
                item.token += 1
                yield item

    def held(self, number: int, token: int, now_s: float) -> Item | None:
        """The message, if this delivery still holds its lock."""
        item = self.items.get(number)
        if item is None or item.token != token or item.locked_until_s <= now_s:
            return None
        return item
