"""Which subscription gets which copy of a topic's messages.

Rule 1: a message is decoded once, however many rules and subscriptions there are; if no rule needs
        its properties, it is not decoded at all.
Rule 2: subscriptions share unchanged messages; a change for one subscription (an action, a shorter
        time to live) is made on a copy.
Rule 3: an error of a rule concerns its subscription only; the sender gets no error.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from twinbus.broker.engine.filters import MessageView, RuleIndex
from twinbus.broker.engine.outcomes import NO_SESSION_ID, DeadLetter, dead_lettered_at_once
from twinbus.broker.engine.stored_message import (
    IncomingMessage,
    Record,
    facts_of,
    pack_record,
    unpack_record,
)
from twinbus.common.clock import Instant
from twinbus.common.steps import Steps

if TYPE_CHECKING:
    from twinbus.broker.engine.topic import Subscription

FILTER_FAILED = "FilterEvaluationException"
# Subscriptions that get a message in one step; each takes up to 40 us.
MATCHES_IN_STEP = 16


class Distribution:
    """The copies of the messages of one send, by subscription."""

    def __init__(self) -> None:
        self.everyone: list[Subscription] = []
        """The subscriptions that get all of ``distinct``; they need no lists of their own."""
        self.copies: dict[Subscription, list[IncomingMessage]] = {}
        self.dead: dict[Subscription, list[IncomingMessage]] = {}
        self.distinct: dict[int, IncomingMessage] = {}
        """Every copy that a subscription gets, once, in an order that is right for all of them."""
        self._variants: dict[tuple[int, int], IncomingMessage] = {}
        self._origins: dict[int, int] = {}
        """The original of each changed copy, by id()."""
        self._made: list[IncomingMessage] = []
        """Every changed copy: while it is in this list, no other object has its id()."""

    def give_all(self, messages: list[IncomingMessage], everyone: list[Subscription]) -> None:
        """Give every message to each of these subscriptions."""
        if everyone:
            self.everyone = everyone
            self.distinct.update((id(message), message) for message in messages)

    def give_each(
        self, messages: list[IncomingMessage], everyone: list[Subscription], now: Instant
    ) -> None:
        """The same if some of them may need a changed copy."""
        # Message by message, so that the copies of a message stay together.
        for message in messages:
            for subscription in everyone:
                self._give(subscription, message, now)

    def matching_steps(
        self,
        message: IncomingMessage,
        rule_index: RuleIndex[Subscription],
        now: Instant,
        chance: Random,
    ) -> Steps[None]:
        """Give one message to the subscriptions whose rules it matches, in short steps."""
        record = unpack_record(message.record, 0, len(message.record))
        view = MessageView.from_record(record, now_ms=now.wall_ms, random=chance)
        matches = yield from rule_index.matching_steps(view)
        for number, match in enumerate(matches, 1):
            records = yield from match.record_steps(view)
            subscription = match.subscription
            if match.error is not None and subscription.dead_letters_filter_errors:
                reason = DeadLetter(FILTER_FAILED, str(match.error))
                self._dead_letter(subscription, message, reason)
            else:
                for copy in _copies(message, records):
                    if copy is not message:
                        self._note_origin(copy, message)
                    self._give(subscription, copy, now)
            if number % MATCHES_IN_STEP == 0:
                yield

    def copies_of(
        self, messages: list[IncomingMessage]
    ) -> list[list[tuple[Subscription, IncomingMessage]]]:
        """The copies of each of these, with their subscriptions."""
        found: dict[int, list[tuple[Subscription, IncomingMessage]]]
        found = {id(message): [(each, message) for each in self.everyone] for message in messages}
        for subscription, copies in (*self.copies.items(), *self.dead.items()):
            for copy in copies:
                found[self._origins.get(id(copy), id(copy))].append((subscription, copy))
        return list(found.values())

    def keep(self, messages: list[IncomingMessage]) -> None:
        """Keep only the copies of these messages; the others are duplicates."""
        wanted = {id(message) for message in messages}

        def kept(copies: list[IncomingMessage]) -> list[IncomingMessage]:
            return [copy for copy in copies if self._origins.get(id(copy), id(copy)) in wanted]

        self.copies = {each: left for each, old in self.copies.items() if (left := kept(old))}
        self.dead = {each: left for each, old in self.dead.items() if (left := kept(old))}
        self.distinct = {id(copy): copy for copy in kept(list(self.distinct.values()))}

    def _give(self, subscription: Subscription, message: IncomingMessage, now: Instant) -> None:
        description = subscription.description
        if description.default_ttl_ms is not None:
            message = self._expiring(message, description.default_ttl_ms, now)
        if description.needs_facts:
            message.facts = message.facts or facts_of(message.record)
            if description.requires_session and message.facts.session_id is None:
                self._dead_letter(subscription, message, NO_SESSION_ID)
                return
        self.copies.setdefault(subscription, []).append(message)
        self.distinct.setdefault(id(message), message)

    def _expiring(self, message: IncomingMessage, ttl_ms: int, now: Instant) -> IncomingMessage:
        """Subscriptions with the same time to live share a copy."""
        key = (id(message), ttl_ms)
        if key not in self._variants:
            variant = self._variants[key] = expiring(message, ttl_ms, now)
            if variant is not message:
                self._note_origin(variant, message)
        return self._variants[key]

    def _note_origin(self, copy: IncomingMessage, message: IncomingMessage) -> None:
        self._made.append(copy)
        self._origins[id(copy)] = self._origins.get(id(message), id(message))

    def _dead_letter(
        self, subscription: Subscription, message: IncomingMessage, reason: DeadLetter
    ) -> None:
        path = subscription.description.path
        dead = dead_lettered_at_once(message.record, reason, path)
        self._note_origin(dead, message)
        self.dead.setdefault(subscription, []).append(dead)


def is_particular(subscription: Subscription) -> bool:
    """Whether it may need a changed copy of a message."""
    description = subscription.description
    return description.default_ttl_ms is not None or description.needs_facts


def _copies(message: IncomingMessage, records: list[Record | None]) -> list[IncomingMessage]:
    """The copies of a message for one subscription."""
    copies: list[IncomingMessage] = []
    for record in records:
        if record is None:
            # The unchanged copy first: it may be in the shared body already, where order matters.
            copies.insert(0, message)
        else:
            copies.append(IncomingMessage(pack_record(record), message.expires_ms))
    return copies


def expiring(message: IncomingMessage, ttl_ms: int, now: Instant) -> IncomingMessage:
    """The message with a time to live of at most ``ttl_ms`` from now on."""
    expires_ms = now.wall_ms + ttl_ms
    if message.expires_ms is not None and message.expires_ms <= expires_ms:
        return message
    record = unpack_record(message.record, 0, len(message.record))
    record.expires_ms, record.ttl_ms = expires_ms, ttl_ms
    return IncomingMessage(pack_record(record), expires_ms, facts=message.facts)
