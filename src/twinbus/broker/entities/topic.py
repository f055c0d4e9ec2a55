"""A topic and its subscriptions: a message goes in once and comes out for each of them.

A subscription is a queue that only its topic sends to. A topic is a queue that nobody receives
from: it keeps what is scheduled until it is due, and passes everything else on.

    send --> inbox --take_turn()--> copies in the batches of the subscriptions --commit--> told
    due  --> urgent ---^

Rule 1: a sender is told when all copies are on disk. Topic and subscriptions are written in one
        transaction (``companions``), and the sender's ticket is among the topic's changes.
Rule 2: what senders bring waits in the inbox until there is time for it: a thousand rules must not
        keep the loop from others. What the broker moves itself (due or forwarded messages) is
        passed on before the next commit, because that removes it from where it was.
Rule 3: a body is stored once for all subscriptions (sheets.py).
Rule 4: the messages of one arrival are passed on together; a refused send left nothing behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random

from twinbus.broker.entities.batch import Arrival, Ticket
from twinbus.broker.entities.fan_out import Distribution
from twinbus.broker.entities.filters import (
    FalseFilter,
    RuleBook,
    RuleDescription,
    TrueFilter,
    compile_rule,
)
from twinbus.broker.entities.history import without_duplicates
from twinbus.broker.entities.queue import Queue
from twinbus.broker.entities.record import IncomingMessage, Trail
from twinbus.broker.entities.sheets import SheetWriter
from twinbus.broker.entities.topic_description import SubscriptionDescription, TopicDescription
from twinbus.broker.entities.witness import Happening, Remark
from twinbus.broker.store.port import Op, QueueCounters, ScheduledRow
from twinbus.clock import Instant

# Messages between two looks at the clock: with 2,000 SQL rules one message takes milliseconds.
TURN_COUNT_MAX = 1
# Due messages of one commit, if rules look at them.
DUE_COUNT_MAX = 32
# While no rule looks at a message, an arrival of any size takes a few microseconds.
PLAIN_TURN_COUNT_MAX = 4_096


class Subscription(Queue):
    """The machine of one subscription."""

    def __init__(
        self,
        description: SubscriptionDescription,
        counters: QueueCounters,
        chance: Random,
        dead_letters: Queue,
        topic: Topic,
    ) -> None:
        super().__init__(description, counters, chance, dead_letters)
        self.topic = topic
        self.rule_ids: dict[str, int] = {}
        """The row of each rule in the store, by the rule's key."""

    @property
    def rules(self) -> list[RuleDescription]:
        """The rules, oldest first."""
        return [rule.description for rule in self.topic.book.rules_of(self)]

    @property
    def dead_letters_filter_errors(self) -> bool:
        description = self.description
        assert isinstance(description, SubscriptionDescription)
        return description.dead_lettering_on_filter_errors

    @property
    def used_bytes(self) -> int:
        return self.byte_count + (0 if self.dead_letters is None else self.dead_letters.byte_count)

    def take_copies(self, messages: list[IncomingMessage], is_ours: bool) -> int:
        """What the topic passes on; its sender waits with the topic. How many bytes it is."""
        return _take(self, messages, is_ours)

    def take_dead(self, messages: list[IncomingMessage], is_ours: bool) -> int:
        """What could not be passed on goes to the dead letters. How many bytes it is."""
        dead = self.dead_letters
        return 0 if dead is None else _take(dead, messages, is_ours)


class Topic(Queue):
    """The machine of one topic."""

    def __init__(
        self, description: TopicDescription, counters: QueueCounters, chance: Random
    ) -> None:
        super().__init__(description, counters, chance, None)
        self.subscriptions: dict[str, Subscription] = {}
        """By canonical name."""
        self.book: RuleBook[Subscription] = RuleBook()
        self._chance = chance
        self._everyone: list[Subscription] | None = []
        """Who gets every message as it is; None when messages must be looked at."""
        self._knows_everyone = True
        self._inbox: deque[Arrival] = deque()
        self._inbox_bytes = 0
        self._urgent: list[Arrival] = []
        self._half_done = Distribution()
        self._done_count = 0
        self._reached: dict[Subscription, None] = {}
        self._sheets = SheetWriter()
        self._used_bytes_max = 0
        """The subscriptions hold no more than this; looked up when it becomes too much."""

    @property
    def is_dead_letter_queue(self) -> bool:
        return False

    @property
    def is_dirty(self) -> bool:
        return self.in_flight is None and bool(
            self._urgent or self._reached or not self.batch.is_empty()
        )

    # -- subscriptions and rules ----------------------------------------------------------

    def add_subscription(self, name: str, subscription: Subscription) -> None:
        self.subscriptions[name] = subscription
        self._used_bytes_max += subscription.used_bytes

    def remove_subscription(self, name: str) -> None:
        subscription = self.subscriptions.pop(name)
        self.book.remove_subscription(subscription)
        self._reached.pop(subscription, None)
        self._knows_everyone = False

    def add_rule(self, subscription: Subscription, rule: RuleDescription, rule_id: int) -> None:
        """Add a rule; ConfigurationError if it cannot be, and then nothing has changed."""
        self.book.add(subscription, compile_rule(rule))
        subscription.rule_ids[rule.key] = rule_id
        self._knows_everyone = False

    def remove_rule(self, subscription: Subscription, key: str) -> None:
        self.book.remove(subscription, key)
        subscription.rule_ids.pop(key, None)
        self._knows_everyone = False

    def _look_at_rules(self) -> None:
        """Find out whether messages must be looked at."""
        self._knows_everyone = True
        everyone: list[Subscription] = []
        for subscription in self.subscriptions.values():
            for rule in subscription.rules:
                if rule.action is not None or not isinstance(rule.filter, TrueFilter | FalseFilter):
                    self._everyone = None
                    return
            if any(isinstance(rule.filter, TrueFilter) for rule in subscription.rules):
                everyone.append(subscription)
        self._everyone = everyone

    # -- room -----------------------------------------------------------------------------

    def has_room_for(self, byte_count: int) -> bool:
        """Whether the quota allows that many bytes more; all copies count."""
        quota = self.description.max_size_mb << 20
        wanted = self.byte_count + self._inbox_bytes + byte_count
        if wanted + self._used_bytes_max > quota:
            self._used_bytes_max = sum(each.used_bytes for each in self.subscriptions.values())
        return wanted + self._used_bytes_max <= quota

    # -- passing on -----------------------------------------------------------------------

    def enqueue(self, messages: list[IncomingMessage], ticket: Ticket | None) -> None:
        if ticket is None:
            super().enqueue(messages, None)
        else:
            self._inbox.append(Arrival(messages, ticket, is_ours=False))
            self._inbox_bytes += _size(messages)

    def arrive(self, arrival: Arrival) -> None:
        # The books of a topic hold what is scheduled; the rest is on its way.
        self.byte_count -= _size(arrival.messages)
        self._urgent.append(arrival)

    @property
    def wants_turn(self) -> bool:
        """Messages wait to be passed on."""
        return bool(self._inbox)

    def take_turn(self, now: Instant) -> None:
        """Pass a few messages on."""
        if not self._knows_everyone:
            self._look_at_rules()
        count_max = TURN_COUNT_MAX if self._everyone is None else PLAIN_TURN_COUNT_MAX
        while self._inbox and count_max > 0:
            arrival = self._inbox[0]
            done = self._done_count
            portion = arrival.messages[done : done + count_max]
            visible = [message for message in portion if message.due_ms is None]
            self._distribute(visible, self._half_done, now)
            self._done_count += len(portion)
            count_max -= len(portion)
            if self._done_count == len(arrival.messages):
                self._finish(self._inbox.popleft())

    def _finish(self, arrival: Arrival) -> None:
        """All messages of an arrival were looked at: from here on they are in the open batch."""
        distribution, self._half_done, self._done_count = self._half_done, Distribution(), 0
        messages, ticket, _is_ours = arrival
        self._inbox_bytes -= _size(messages)
        if self.history is not None:
            # Not before now: the ids are written with the next commit, and so must be the copies.
            messages = without_duplicates(self, self.history, messages, ticket)
            if not messages:
                return
            if len(messages) < len(arrival.messages):
                distribution.keep(messages)
        later = [message for message in messages if message.due_ms is not None]
        if later:
            self.byte_count += _size(later)
            self.batch.scheduled.append(Arrival(later, ticket, is_ours=False))
        elif ticket is not None:
            self.batch.tickets.append(ticket)
        visible = [each for each in messages if each.due_ms is None]
        self._remark(visible, distribution, is_ours=False)
        self._pass_on(distribution, is_ours=False)

    def _remark(
        self, messages: list[IncomingMessage], distribution: Distribution, *, is_ours: bool
    ) -> None:
        if self.witness is None:
            return
        for message, copies in zip(messages, distribution.copies_of(messages), strict=True):
            trail = message.trail or Trail()
            trail = trail._replace(publication=self.witness.next_publication())
            message.trail = trail
            for _subscription, copy in copies:
                copy.trail = trail
            takers = [subscription for subscription, _copy in copies]
            self.batch.notes.append(Remark(Happening.PUBLISHED, message, takers, is_ours))

    def _distribute(
        self, messages: list[IncomingMessage], distribution: Distribution, now: Instant
    ) -> None:
        if not self._knows_everyone:
            self._look_at_rules()
        if self._everyone is None:
            for message in messages:
                distribution.give_matching(message, self.book, now, self._chance)
        else:
            distribution.give_all(messages, self._everyone, now)

    def _pass_on(self, distribution: Distribution, *, is_ours: bool) -> None:
        placed = {key: self._sheets.place(each) for key, each in distribution.distinct.items()}
        all_of_them: list[IncomingMessage] = list(placed.values())
        for subscription, copies in distribution.copies.items():
            # Most subscriptions get everything: then they can have one list in common.
            shared = all_of_them
            if len(copies) < len(all_of_them):
                shared = [placed[id(copy)] for copy in copies]
            self._reach(subscription, subscription.take_copies, shared, is_ours)
        for subscription, dead in distribution.dead.items():
            self._reach(subscription, subscription.take_dead, dead, is_ours)

    def _reach(
        self,
        subscription: Subscription,
        take: Callable[[list[IncomingMessage], bool], int],
        messages: list[IncomingMessage],
        is_ours: bool,
    ) -> None:
        if not subscription.is_deleted:
            self._used_bytes_max += take(messages, is_ours)
            self._reached[subscription] = None

    def due_loaded(self, rows: Iterable[ScheduledRow]) -> None:
        """Scheduled messages are due: a few now, the rest when these are on disk."""
        if not self._knows_everyone:
            self._look_at_rules()
        few = list(rows)
        super().due_loaded(few if self._everyone is not None else few[:DUE_COUNT_MAX])

    # -- writing --------------------------------------------------------------------------

    def companions(self, now: Instant) -> Iterable[Queue]:
        """The subscriptions that get something with the next commit, and their dead letters."""
        urgent, self._urgent = self._urgent, []
        for arrival in urgent:
            distribution = Distribution()
            self._distribute(arrival.messages, distribution, now)
            self._remark(arrival.messages, distribution, is_ours=arrival.is_ours)
            self._pass_on(distribution, is_ours=arrival.is_ours)
        machines: list[Queue] = []
        for subscription in self._reached:
            machines += (subscription, *subscription.companions(now))
        return machines

    def close_batch(self, now: Instant) -> list[Op]:
        self._reached = {}
        self._sheets = SheetWriter()
        return super().close_batch(now)

    def discard(self) -> list[Ticket]:
        waiting = [arrival.ticket for arrival in self._inbox if arrival.ticket is not None]
        self._inbox.clear()
        self._urgent.clear()
        return [*super().discard(), *waiting]


def _size(messages: list[IncomingMessage]) -> int:
    return sum(len(message.record) for message in messages)


def _take(queue: Queue, messages: list[IncomingMessage], is_ours: bool) -> int:
    """Have a queue take in messages for which nobody waits there; how many bytes they are."""
    before = queue.byte_count
    queue.count_in(messages)
    queue.arrive(Arrival(messages, None, is_ours))
    return queue.byte_count - before
