"""A topic and its subscriptions: a message is sent once, and each of them gets a copy.

A subscription is a queue to which only its topic sends. A topic is a queue that cannot be received
from: it keeps scheduled messages until they are due, and passes on everything else.

    send -----------> inbox --+
    due, forwarded -> own ----+--take_turn()--> matched --> placed --> passed on --commit--> acked

Rule 1: a send is acknowledged when all copies are on disk. Topic and subscriptions are written in
        one transaction (``joined_queues``), and the sender's ticket is among the topic's changes.
Rule 2: a send waits for the topic's turn: a thousand rules must not block the event loop. Rules
        are evaluated in steps, and the copies are put together in steps.
Rule 3: what the broker moves itself (due or forwarded messages) stays where it is until all of
        that is done. It is removed there, and passed on, in one transaction (``leave``).
Rule 4: a body is stored once for all subscriptions (write_batch.py).
Rule 5: the messages of one send are passed on together; a refused send stores nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from twinbus.broker.engine.audit_hooks import AuditSink, MessageEvent, UnstoredMessageEvent
from twinbus.broker.engine.descriptions import SubscriptionDescription, TopicDescription
from twinbus.broker.engine.duplicate_detection import DuplicateHistory, without_duplicates
from twinbus.broker.engine.fan_out import Distribution, is_particular
from twinbus.broker.engine.filters import (
    CompiledRule,
    RuleDescription,
    RuleIndex,
)
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.store_requests import FindTimes, ScheduledSize, size_of
from twinbus.broker.engine.stored_message import IncomingMessage, MessageOrigin, expiry_of
from twinbus.broker.engine.write_batch import CommitCallback, IncomingBatch, SharedBodyWriter
from twinbus.broker.storage.interface import QueueCounters, ScheduledRow
from twinbus.common.clock import Instant
from twinbus.common.steps import Steps, run_steps

# Due messages that are passed on together, if rules must be evaluated.
DUE_COUNT_MAX = 32
# If no rule must be evaluated, a send of any size takes a few microseconds.
PLAIN_TURN_COUNT_MAX = 4_096
# The same if copies must be made: for all messages of a turn together.
COPIES_PER_TURN_MAX = 1_024
# A send costs as much as this many messages.
ARRIVAL_COST = 32
# Messages that are placed in shared bodies in one step, about half a millisecond.
PLACED_IN_STEP = 512
# With more portions than this, passing them on is a step of its own.
PORTIONS_AT_ONCE = 512
# Copies that are collected for subscriptions in one step.
GATHERED_IN_STEP = 4_096


class _Inbound(NamedTuple):
    """Messages that were sent together and are to be passed on."""

    messages: list[IncomingMessage]
    ticket: CommitCallback | None
    byte_count: int
    """What counts against the quota while it waits."""
    leave: Callable[[], bool] | None = None
    """Removes what the broker moves from its old place; False if it must not be moved."""
    is_known: bool = False
    """It was checked for duplicates when it was scheduled."""


class _Portion(NamedTuple):
    """The messages of one send that a subscription gets."""

    subscription: Subscription
    messages: list[IncomingMessage]
    byte_count: int
    is_dead: bool = False


class Subscription(Queue):
    """The state machine of one subscription."""

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
        return [rule.description for rule in self.topic.rule_index.rules_of(self)]

    @property
    def rule_list(self) -> Sequence[RuleDescription]:
        """The same as a lazy sequence."""
        return self.topic.rule_index.rule_list(self)

    def find_rule(self, name: str) -> RuleDescription | None:
        return self.topic.rule_index.find(self, name)

    @property
    def dead_letters_filter_errors(self) -> bool:
        description = self.description
        assert isinstance(description, SubscriptionDescription)
        return description.dead_lettering_on_filter_errors

    def has_room_for(self, byte_count: int) -> bool:
        """The quota is the topic's, for all subscriptions together."""
        return self.topic.has_room_for(byte_count)

    def grew(self, byte_count: int) -> None:
        self.topic.grew(byte_count)

    def take_portion(self, portion: _Portion, is_ours: bool) -> None:
        """Add messages from the topic; the sender's ticket stays with the topic."""
        queue = self.dead_letters if portion.is_dead else self
        if queue is not None:
            queue.byte_count += portion.byte_count
            queue.arrive(IncomingBatch(portion.messages, None, is_ours))


class Topic(Queue):
    """The state machine of one topic."""

    def __init__(
        self, description: TopicDescription, counters: QueueCounters, chance: Random
    ) -> None:
        super().__init__(description, counters, chance, None)
        self.subscriptions: dict[str, Subscription] = {}
        """By canonical name."""
        self.rule_index: RuleIndex[Subscription] = RuleIndex()
        self._chance = chance
        self._everyone: list[Subscription] | None = []
        """The subscriptions that get every message unchanged; None if rules must be evaluated."""
        self._knows_everyone = True
        self._inbox: deque[_Inbound] = deque()
        self._own: deque[_Inbound] = deque()
        """What the broker moves itself; it has precedence."""
        self._inbox_bytes = 0
        self._due: set[int] = set()
        """Numbers of scheduled messages that are in ``_own``."""
        self._current: _Inbound | None = None
        self._steps: Steps[None] | None = None
        """The steps of passing on ``_current``."""
        self._reached: dict[Subscription, None] = {}
        self._shared_bodies = SharedBodyWriter()
        self._used_bytes_max = 0
        """An upper bound of the subscriptions' bytes; computed again when it gets too high."""

    @property
    def is_dead_letter_queue(self) -> bool:
        return False

    @property
    def is_dirty(self) -> bool:
        return self.in_flight is None and bool(self._reached or not self.batch.is_empty())

    # -- subscriptions and rules ----------------------------------------------------------

    def add_subscription(self, name: str, subscription: Subscription) -> None:
        self.subscriptions[name] = subscription
        self._used_bytes_max += subscription.used_bytes

    def remove_subscription(self, name: str) -> None:
        subscription = self.subscriptions.pop(name)
        self.rule_index.remove_subscription(subscription)
        self._reached.pop(subscription, None)
        self._knows_everyone, self._everyone = False, []

    def put_rule(self, subscription: Subscription, rule: CompiledRule, rule_id: int) -> None:
        """Add a rule, or replace the one of its name.

        Raises ConfigurationError if that is not possible, and then nothing has changed.
        """
        key = rule.description.key
        if key in subscription.rule_ids:
            self.rule_index.replace(subscription, rule)
        else:
            self.rule_index.add(subscription, rule)
        subscription.rule_ids[key] = rule_id
        self._knows_everyone = False

    def remove_rule(self, subscription: Subscription, key: str) -> None:
        self.rule_index.remove(subscription, key)
        subscription.rule_ids.pop(key, None)
        self._knows_everyone = False

    def _find_everyone(self) -> None:
        """Find out whether rules must be evaluated."""
        self._knows_everyone = True
        self._everyone = (
            None if self.rule_index.evaluated_count else self.rule_index.open_subscriptions()
        )

    # -- room -----------------------------------------------------------------------------

    def has_room_for(self, byte_count: int) -> bool:
        """Whether the quota has room for that many bytes; all copies count."""
        quota = self.description.max_size_mb << 20
        wanted = super().used_bytes + self._inbox_bytes + byte_count
        if wanted + self._used_bytes_max > quota:
            self._used_bytes_max = sum(each.used_bytes for each in self.subscriptions.values())
        return wanted + self._used_bytes_max <= quota

    def grew(self, byte_count: int) -> None:
        """Count growth of subscriptions that was not passed on to them."""
        if byte_count > 0:
            self._used_bytes_max += byte_count

    @property
    def used_bytes(self) -> int:
        """What counts against the quota, without messages that wait to be passed on."""
        return super().used_bytes + sum(each.used_bytes for each in self.subscriptions.values())

    # -- passing on -----------------------------------------------------------------------

    def enqueue(self, messages: list[IncomingMessage], ticket: CommitCallback | None) -> None:
        size = _size(messages)
        self._inbox_bytes += size
        self._inbox.append(_Inbound(messages, ticket, size))

    def _admit_waiting(self, history: DuplicateHistory) -> None:
        """Waiting sends are added to the inbox again: the topic's turns check them."""
        for messages, ticket in history.take_waiting():
            self.enqueue(messages, ticket)

    def move_in(self, messages: list[IncomingMessage], leave: Callable[[], bool]) -> None:
        """Pass on messages of another entity: ``leave`` removes them there, in their turn."""
        size = _size(messages)
        self._inbox_bytes += size
        self._own.append(_Inbound(messages, None, size, leave))

    @property
    def wants_turn(self) -> bool:
        """Messages wait to be passed on."""
        return bool(self._inbox or self._own or self._steps)

    def take_turn(self, now: Instant) -> None:
        """Pass on a few messages, or continue with those that take long."""
        left = PLAIN_TURN_COUNT_MAX
        while left > 0 and self.wants_turn:
            if self._steps is None:
                self._current = inbound = (self._own or self._inbox).popleft()
                left -= len(inbound.messages) + ARRIVAL_COST
                self._steps = self._pass_on_steps(inbound, now)
            if next(self._steps, True) is None:
                return
            self._steps = self._current = None
            if self._everyone is None:
                return  # Rules were evaluated, which takes long.

    def _pass_on_steps(self, inbound: _Inbound, now: Instant) -> Steps[None]:
        """All steps for one send: with 2,000 SQL rules a message takes milliseconds."""
        matched, distribution = yield from self._match_steps(inbound, now)
        if self.audit_sink is not None:
            _set_origins(matched, distribution, self.audit_sink)
        portions = yield from self._place_steps(distribution)
        self._inbox_bytes -= inbound.byte_count
        if self.is_deleted or (inbound.leave is not None and not inbound.leave()):
            return
        messages, ticket = inbound.messages, inbound.ticket
        if self.history is not None and not inbound.is_known:
            # Not before now: ids and copies must be written in the same commit, the next one.
            messages = without_duplicates(self, self.history, messages, ticket)
            if not messages:
                return
            if messages != matched:
                again = self._match_again_steps(messages, matched, distribution, now)
                portions = run_steps(again)
        self._finish(messages, ticket, distribution, portions)

    def _match_steps(
        self, inbound: _Inbound, now: Instant
    ) -> Steps[tuple[list[IncomingMessage], Distribution]]:
        """Match messages with rules; returns those that are not duplicates, and their copies."""
        if not self._knows_everyone:
            self._find_everyone()
        everyone, distribution = self._everyone, Distribution()
        messages = inbound.messages
        if self.history is not None and not inbound.is_known:
            window_ms = self.description.duplicate_detection_window_ms
            messages = self.history.unseen(messages, window_ms)
        visible = [message for message in messages if message.due_ms is None]
        if everyone is None:
            for number, message in enumerate(visible):
                if number:
                    yield
                yield from distribution.matching_steps(message, self.rule_index, now, self._chance)
        elif any(map(is_particular, everyone)):
            count = max(1, COPIES_PER_TURN_MAX // len(everyone))
            for at in range(0, len(visible), count):
                distribution.give_each(visible[at : at + count], everyone, now)
                if at + count < len(visible):
                    yield
        else:
            distribution.give_all(visible, everyone)
        return messages, distribution

    def _match_again_steps(
        self,
        messages: list[IncomingMessage],
        matched: list[IncomingMessage],
        distribution: Distribution,
        now: Instant,
    ) -> Steps[list[_Portion]]:
        """The seen ids have changed since: an id was removed, or arrived with another send."""
        distribution.keep(messages)
        known = set(map(id, matched))
        for message in messages:
            if message.due_ms is not None or id(message) in known:
                continue
            if distribution.everyone:
                distribution.give_all([message], distribution.everyone)
            else:
                yield from distribution.matching_steps(message, self.rule_index, now, self._chance)
        if self.audit_sink is not None:
            _set_origins(messages, distribution, self.audit_sink)
        return (yield from self._place_steps(distribution))

    def _place_steps(self, distribution: Distribution) -> Steps[list[_Portion]]:
        """Place the copies in shared bodies, and collect those of each subscription."""
        bodies, count = self._shared_bodies, len(distribution.distinct)
        takers = len(distribution.everyone) + len(distribution.copies) + len(distribution.dead)
        if (
            count >= PLACED_IN_STEP
            or takers > PORTIONS_AT_ONCE
            or (count + 1) * len(distribution.copies) >= GATHERED_IN_STEP
        ):
            # It takes several steps, and a transaction between two of them has its own bodies.
            bodies = SharedBodyWriter()
        placed: dict[int, IncomingMessage] = {}
        for number, (key, message) in enumerate(distribution.distinct.items(), 1):
            placed[key] = bodies.place(message)
            if number % PLACED_IN_STEP == 0:
                yield
        everything = list(placed.values())
        size = _size(everything)
        # Most subscriptions get everything: they can share one list.
        portions = [_Portion(each, everything, size) for each in distribution.everyone]
        gathered = len(portions)
        for subscription, copies in distribution.copies.items():
            if len(copies) == len(everything):
                portions.append(_Portion(subscription, everything, size))
            else:
                shared = [placed[id(copy)] for copy in copies]
                portions.append(_Portion(subscription, shared, _size(shared)))
                gathered += len(shared)
            gathered += 1
            if gathered > GATHERED_IN_STEP:
                gathered = 0
                yield
        for subscription, dead in distribution.dead.items():
            portions.append(_Portion(subscription, dead, _size(dead), is_dead=True))
        if len(portions) > PORTIONS_AT_ONCE:
            yield
        return portions

    def _finish(
        self,
        messages: list[IncomingMessage],
        ticket: CommitCallback | None,
        distribution: Distribution,
        portions: list[_Portion],
    ) -> None:
        """Add the messages to the open batch."""
        is_ours = ticket is None
        later = [message for message in messages if message.due_ms is not None]
        if later:
            self.byte_count += _size(later)
            self.batch.scheduled.append(IncomingBatch(later, ticket, is_ours))
        elif ticket is not None:
            self.batch.tickets.append(ticket)
        if self.audit_sink is not None:
            self._note_published(messages, distribution, is_ours=is_ours)
        for portion in portions:
            subscription = portion.subscription
            if not subscription.is_deleted:
                subscription.take_portion(portion, is_ours)
                self._used_bytes_max += portion.byte_count
                self._reached[subscription] = None

    def _note_published(
        self, messages: list[IncomingMessage], distribution: Distribution, *, is_ours: bool
    ) -> None:
        visible = [message for message in messages if message.due_ms is None]
        for message, copies in zip(visible, distribution.copies_of(visible), strict=True):
            takers = [subscription for subscription, _copy in copies]
            self.batch.notes.append(
                UnstoredMessageEvent(MessageEvent.PUBLISHED, message, takers, is_ours)
            )

    def due_loaded(self, rows: Iterable[ScheduledRow]) -> None:
        """Scheduled messages are due: pass on a few now, the rest when these are on disk."""
        found = list(rows)
        if not found:
            self._requests.append(FindTimes())
        if self._due:
            # Some are being passed on; the others are found again when those are on disk.
            return
        if not self._knows_everyone:
            self._find_everyone()
        for row in found if self._everyone is not None else found[:DUE_COUNT_MAX]:
            if self._timers.is_scheduled(row.seq):
                self._due.add(row.seq)
                message = IncomingMessage(row.blob, expiry_of(row.blob, 0))
                leave = partial(self._leave_schedule, size_of(row))
                self._own.append(_Inbound([message], None, 0, leave, is_known=True))

    def _leave_schedule(self, scheduled: ScheduledSize) -> bool:
        """Remove a due message from the schedule, unless it was cancelled meanwhile."""
        self._due.discard(scheduled.seq)
        is_there = self._timers.is_scheduled(scheduled.seq)
        if is_there:
            self._unschedule(scheduled, MessageEvent.DUE)
        elif not self._due:
            self._requests.append(FindTimes())
        return is_there

    # -- writing --------------------------------------------------------------------------

    def joined_queues(self, now: Instant) -> Iterable[Queue]:
        """The subscriptions that get something with the next commit, and their dead letters."""
        machines: list[Queue] = []
        for subscription in self._reached:
            machines += (subscription, *subscription.joined_queues(now))
        return machines

    def _begin_closing(self, now: Instant) -> None:
        self._reached = {}
        self._shared_bodies = SharedBodyWriter()
        super()._begin_closing(now)

    def discard(self) -> list[CommitCallback]:
        inbounds = [*self._inbox, *([] if self._current is None else [self._current])]
        waiting = [each.ticket for each in inbounds if each.ticket is not None]
        self._inbox.clear()
        self._own.clear()
        self._steps = self._current = None
        return [*super().discard(), *waiting]


def _set_origins(
    messages: list[IncomingMessage], distribution: Distribution, audit_sink: AuditSink
) -> None:
    """Give a message and its copies the same publication number, before they are placed."""
    visible = [message for message in messages if message.due_ms is None]
    for message, copies in zip(visible, distribution.copies_of(visible), strict=True):
        trail = message.trail or MessageOrigin()
        message.trail = trail._replace(publication=audit_sink.next_publication())
        for _subscription, copy in copies:
            copy.trail = message.trail


def _size(messages: list[IncomingMessage]) -> int:
    return sum(len(message.record) for message in messages)
