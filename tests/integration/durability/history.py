"""What clients did and what they were told, over all the lives of a broker, and the promises.

Rule 1: a message that was accepted is somewhere: in the queue, deferred, scheduled, or in the
        dead-letter queue; unless somebody asked to complete it.
Rule 2: a settlement that was acknowledged has happened for good.
Rule 3: what was asked for and not answered may have happened or not. Nothing else may.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field


class Asked(enum.Enum):
    """What a receiver wants to become of a message."""

    COMPLETE = enum.auto()
    ABANDON = enum.auto()
    DEFER = enum.auto()
    DEAD_LETTER = enum.auto()


LEAVES_THE_QUEUE = {Asked.COMPLETE, Asked.DEFER, Asked.DEAD_LETTER}


@dataclass(slots=True)
class Sent:
    """One message."""

    is_scheduled: bool = False
    is_accepted: bool = False
    is_refused: bool = False
    seq: int | None = None
    delivery_count: int = 0
    delivered_in_life: int | None = None
    """The life of the broker in which it was last handed out and not given back."""
    asked: set[Asked] = field(default_factory=set)
    """What somebody asked for, answered or not."""
    done: Asked | None = None
    """What was acknowledged, if it took the message out of the queue."""


@dataclass(slots=True)
class Found:
    """Where every message is at the end."""

    waiting: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    deferred: Counter[str] = field(default_factory=Counter)
    scheduled: Counter[str] = field(default_factory=Counter)

    def everything(self) -> Counter[str]:
        return self.waiting + self.dead + self.deferred + self.scheduled


class History:
    """The messages of one queue."""

    def __init__(self) -> None:
        self.life = 0
        self.sent: dict[str, Sent] = {}
        self._owners: dict[int, str] = {}
        self.complaints: list[str] = []
        self.acknowledged: Counter[str] = Counter()

    def complain(self, what: str, label: str) -> None:
        self.complaints.append(f"life {self.life}: {what}: {label} {self.sent.get(label)}")

    # -- senders --------------------------------------------------------------------------

    def accepted(self, labels: list[str]) -> None:
        self.acknowledged["sends"] += len(labels)
        for label in labels:
            self.sent[label].is_accepted = True

    def refused(self, labels: list[str]) -> None:
        for label in labels:
            self.sent[label].is_refused = True

    # -- receivers ------------------------------------------------------------------------

    def delivered(self, label: str, seq: int, delivery_count: int) -> None:
        """A receiver of the queue got a message."""
        sent = self.sent.get(label)
        if sent is None:
            self.complain("comes from nowhere", label)
            return
        if sent.done is not None:
            self.complain("was settled, and is back", label)
        if sent.is_refused or sent.is_scheduled:
            self.complain("must not be handed out", label)
        if sent.delivered_in_life == self.life:
            self.complain("is handed out twice", label)
        if delivery_count < sent.delivery_count:
            self.complain(f"its delivery count fell to {delivery_count}", label)
        if self._owners.setdefault(seq, label) != label or sent.seq not in (None, seq):
            self.complain(f"sequence number {seq} is used twice", label)
        sent.seq, sent.delivery_count = seq, delivery_count
        sent.delivered_in_life = self.life

    def asked(self, label: str, what: Asked) -> None:
        self.sent[label].asked.add(what)
        if what is Asked.ABANDON:
            self.sent[label].delivered_in_life = None

    def answered(self, label: str, what: Asked) -> None:
        self.acknowledged[what.name.lower()] += 1
        if what in LEAVES_THE_QUEUE:
            self.sent[label].done = what

    # -- the end --------------------------------------------------------------------------

    def check(self, found: Found) -> None:
        """Compare what is there at the end with what was promised."""
        everything = found.everything()
        for label in everything:
            if label not in self.sent:
                self.complain("comes from nowhere", label)
            if everything[label] > 1:
                self.complain("is there twice", label)
        for label, sent in self.sent.items():
            self._check_one(label, sent, found, label in everything)

    def _check_one(self, label: str, sent: Sent, found: Found, is_there: bool) -> None:
        if sent.is_accepted and not is_there and Asked.COMPLETE not in sent.asked:
            self.complain("was accepted, and is lost", label)
        if is_there and (sent.is_refused or sent.done is Asked.COMPLETE):
            self.complain("must be gone", label)
        places = {
            "waiting": (found.waiting, sent.done is None and not sent.is_scheduled),
            "dead": (found.dead, Asked.DEAD_LETTER in sent.asked),
            "deferred": (found.deferred, Asked.DEFER in sent.asked),
            "scheduled": (found.scheduled, sent.is_scheduled),
        }
        for place, (labels, may_be_there) in places.items():
            if label in labels and not may_be_there:
                self.complain(f"must not be {place}", label)
        if sent.done is Asked.DEAD_LETTER and label not in found.dead:
            self.complain("was dead-lettered, and is not dead", label)
        if sent.done is Asked.DEFER and label not in found.deferred:
            self.complain("was deferred, and is not there", label)
