"""Executes the steps of a send, and adapts messages for it.

What a sender must know about the messages that it is given, by the library they come from.

    ENCODED_BYTES    bytes, and nothing else
    BROKERED_MESSAGE   bytes, and beside them the BrokeredMessage that they were made of

One send that met trouble, or that begins away from home: the core's steps, carried out.

    SendDecision.step() --> SendToPrimary   hand the parcels to the primary's sender
                    SendToBacklog   hand aliased copies to a backlog queue's sender
                    Wait        until then, or until something changes
                    Done, Fail  tell the caller

Rule 1: a check costs nearly nothing for a small message without properties (P0).
Rule 2: aliased copies are made when a send is diverted, once for each send.
Rule 3: a batch that outgrows a backlog queue through its aliases is sent in parts. A part that
        was accepted is never sent again; if the rest finds no place, BatchPartlySent says how
        many are safe.
Rule 4: a caller that is cancelled leaves nothing behind but what was accepted.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from twinbus.amqp.message.message import Message
from twinbus.drivers.interface import Driver, LinkProperties, Sender
from twinbus.drivers.metered import metered_sender
from twinbus.encoding.envelope import (
    alias,
    check_fits,
    check_reserved,
    check_reserved_names,
    split_to_fit,
)
from twinbus.encoding.transit import OutgoingMessage
from twinbus.errors import BatchPartlySent, ConfigurationError, MessageTooLarge
from twinbus.failover.backlog_rotation import QueueAffinity
from twinbus.failover.events import Event, PossibleDuplicate, error_summary
from twinbus.failover.send_decision import (
    Deadline,
    SendDecision,
    SendFailed,
    SendSucceeded,
    SendToBacklog,
    SendToPrimary,
    Wait,
)
from twinbus.metering.client_meter import ClientMeter
from twinbus.pairing.batching_sender import BatchingSender
from twinbus.pairing.routing import Backlog, Entity, SendRouter

__all__ = [
    "BROKERED_MESSAGE",
    "ENCODED_BYTES",
    "Links",
    "MessageAdapter",
    "SendAttempt",
    "SendExecution",
    "SendResult",
]


def _one_message(message: OutgoingMessage) -> list[bytes]:
    return [message.encoded]


@dataclass(frozen=True, slots=True)
class MessageAdapter:
    """How messages of one library are checked and taken apart."""

    check: Callable[[Sequence[OutgoingMessage], str, int, str], None]
    """Refuse, in every state, what could not make the detour: reserved names (P12), and more
    bytes than a backlog queue takes with the aliases (P13). Parcels, path, limit in bytes, mark
    of the pair."""
    unpack: Callable[[OutgoingMessage], list[bytes]] = _one_message
    """The encoded messages of a parcel: several, where a library hands in whole batches."""


def _check_encoded(
    messages: Sequence[OutgoingMessage], path: str, limit_bytes: int, owner: str
) -> None:
    for message in messages:
        encoded = message.encoded
        check_reserved(encoded)
        check_fits(encoded, path, limit_bytes, owner)


def _check_brokered(
    messages: Sequence[OutgoingMessage], path: str, limit_bytes: int, owner: str
) -> None:
    for message in messages:
        if message.native.properties:
            check_reserved_names(message.native.properties)
        check_fits(message.encoded, path, limit_bytes, owner)


ENCODED_BYTES: Final = MessageAdapter(_check_encoded)
BROKERED_MESSAGE: Final = MessageAdapter(_check_brokered)


_log = logging.getLogger("twinbus.pairing")

# Far more than an opening takes; a send that needs the link waits for it no longer than it would
# wait for an opening of its own.
OPEN_AHEAD_S: Final = 10.0

# Every tier of the service takes batches of this size.
BATCH_BYTES_MAX_ASSUMED: Final = 262_144

SendAttempt: TypeAlias = Callable[[Sender, Sequence[OutgoingMessage], float], Awaitable[Any]]
"""One attempt at the primary: its sender, the parcels, the time in seconds."""


class SendResult(NamedTuple):
    """Where a send ended."""

    where: str
    answer: Any
    """What the primary said, if it was the last to be asked."""
    diverted: int = 0
    """How many of the messages, from the first on, went to the backlog."""


class Links:
    """The links of one sender: one home, and one to every backlog queue that it has used."""

    def __init__(self, path: str, driver: Driver, primary: Sender | None = None) -> None:
        self.path = path
        self._driver = driver
        self._primary = primary
        self._backlog: dict[str, BatchingSender] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        """Links to backlog queues that no send has asked for yet."""
        self._is_closed = False

    def primary(self) -> Sender:
        if self._primary is None:
            self._check_open()
            self._primary = self._driver.sender(self.path)
        return self._primary

    def set_meter(
        self,
        driver: Driver,
        meter: ClientMeter | None,
        unpack: Callable[[OutgoingMessage], list[bytes]],
    ) -> None:
        """Count what is sent home from now on; ``driver`` is what new links are made by."""
        self._driver = driver
        if self._primary is not None:
            self._primary = metered_sender(self._primary, meter, unpack)

    @property
    def primary_facts(self) -> LinkProperties | None:
        """What the primary takes, if it was asked."""
        return None if self._primary is None else self._primary.facts

    def backlog(self, routing: SendRouter, queue: str) -> BatchingSender:
        if queue not in self._backlog:
            self._check_open()
            backlog, rotation = routing.backlog, routing.rules.rotation
            assert backlog is not None
            link = backlog.driver.sender(queue)
            self._backlog[queue] = BatchingSender(
                link, backlog.batch_bytes_max, lambda: queue in rotation.withdrawn
            )
        return self._backlog[queue]

    def open_ahead(self, routing: SendRouter, queue: str) -> None:
        """Open the link to a backlog queue without a message, before it is needed: an outage
        may be about to be found. Nobody waits for it, and its error is that of the send which
        needs it."""
        if queue not in self._opening and not self._is_closed:
            opening = asyncio.create_task(_opened(self.backlog(routing, queue)))
            self._opening[queue] = opening
            opening.add_done_callback(lambda _: self._opening.pop(queue, None))

    async def close(self) -> None:
        self._is_closed = True
        opening = [*self._opening.values()]
        for each in opening:
            each.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        links: list[Sender | BatchingSender] = [*self._backlog.values()]
        links += [self._primary] if self._primary else []
        self._primary, self._backlog = None, {}
        for link in links:
            await link.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigurationError(
                f"the sender of {self.path!r} is closed", hint="Ask the factory for a new one"
            )


async def _opened(link: BatchingSender) -> None:
    try:
        await link.attach(timeout_s=OPEN_AHEAD_S)
    except Exception as error:
        _log.debug("the link to %s was not opened ahead: %s", link.path, error)


class SendExecution:
    """One message or batch on its way."""

    def __init__(
        self,
        links: Links,
        routing: SendRouter,
        entity: Entity,
        affinity: QueueAffinity,
        messages: Sequence[OutgoingMessage],
        kind: MessageAdapter,
        send_attempt: SendAttempt,
        deadline: Deadline,
    ) -> None:
        self._links = links
        self._routing = routing
        self._entity = entity
        self._messages = self._left = messages
        """``_left``: those that no place is known to hold."""
        self._kind = kind
        self._send_attempt = send_attempt
        self._aliased: list[bytes] | None = None
        self._diverted = 0
        self._answer: Any = None
        self._send = SendDecision(entity.failover, routing.rules, affinity, deadline, routing.rng)
        self.is_one_delivery = False
        """Whether the primary would get all messages at once, so that their size together counts;
        each message of a schedule is taken by itself."""

    async def run(self, first_error: Exception | None = None) -> SendResult:
        """To its end; ``first_error`` is that of an attempt at the primary that was made before
        this began."""
        now_s = self._routing.now_s
        if first_error is not None:
            self._answered(first_error)
        while True:
            step, events = self._send.step(now_s())
            self._publish(events)
            match step:
                case SendToPrimary():
                    await self._attempt(self._to_primary(step.timeout_s))
                case SendToBacklog():
                    await self._attempt(self._to_backlog(step.queue, step.timeout_s))
                case Wait():
                    await self._routing.notifier.wait(step.until_s - now_s())
                case SendSucceeded():
                    return SendResult(step.where, self._answer, self._diverted)
                case SendFailed():
                    raise self._failure(step.error)
                case _:
                    assert_never(step)

    async def _attempt(self, attempt: Awaitable[None]) -> None:
        error: Exception | None = None
        try:
            await attempt
        except Exception as raised:
            error = raised
        except asyncio.CancelledError:
            self._publish(self._send.cancelled(self._routing.now_s()))
            raise
        self._answered(error)

    def _answered(self, error: Exception | None) -> None:
        if error is not None:
            self._entity.last_error = error_summary(error)
        now_s = self._routing.now_s()
        self._publish(self._send.answered(now_s, error))
        if error is not None and self._routing.backlog is not None:
            queue = self._send.queue_ahead(now_s)
            if queue is not None:
                self._links.open_ahead(self._routing, queue)

    # -- the two ways ---------------------------------------------------------------------------

    async def _to_primary(self, timeout_s: float) -> None:
        task, entity = asyncio.current_task(), self._entity
        assert task is not None
        entity.attempts[task], before = 0, task.cancelling()
        try:
            self._answer = await self._send_attempt(self._links.primary(), self._left, timeout_s)
        except asyncio.CancelledError as cancelled:
            interruption = self._routing.interruption(entity, task, cancelled, before)
            if interruption is None:
                raise
            raise interruption from None
        finally:
            entity.attempt_ended(task)

    async def _to_backlog(self, queue: str, timeout_s: float) -> None:
        backlog, now_s = self._routing.backlog, self._routing.now_s
        assert backlog is not None
        end_s = now_s() + timeout_s
        sender = self._links.backlog(self._routing, queue)
        for part in split_to_fit(self._copies(), backlog.batch_bytes_max):
            messages = [OutgoingMessage(encoded) for encoded in part]
            await sender.send(messages, timeout_s=max(end_s - now_s(), 0.0))
            self._accepted(len(part))

    def _copies(self) -> list[bytes]:
        """The aliased copies of what is left."""
        if self._aliased is None:
            encoded = [each for message in self._left for each in self._kind.unpack(message)]
            if len(encoded) != len(self._left):
                self._left = [OutgoingMessage(each) for each in encoded]
            assert self._routing.backlog is not None
            if self.is_one_delivery:
                self._check_size(encoded, self._routing.backlog)
            path, owner = self._links.path, self._routing.backlog.owner
            self._aliased = [alias(each, path, owner) for each in encoded]
        return self._aliased

    def _check_size(self, encoded: list[bytes], backlog: Backlog) -> None:
        """Refuse what the primary would refuse, with its words: an outage changes nothing about
        what may be sent, and what is too large for the primary could not go home (P13)."""
        from twinbus.drivers.amqp.batching import check_size, encode_delivery

        facts = self._links.primary_facts or self._entity.link_facts
        assumed = LinkProperties(sys.maxsize, max(backlog.batch_bytes_max, BATCH_BYTES_MAX_ASSUMED))
        try:
            check_size(
                encode_delivery(list(map(OutgoingMessage, encoded))),
                facts or assumed,
                self._links.path,
            )
        except MessageTooLarge as error:
            if facts is None:
                error.advise("What it takes is not known in an outage: send fewer at once")
            raise

    def _accepted(self, count: int) -> None:
        assert self._aliased is not None
        self._entity.messages_diverted += count
        self._diverted += count
        self._left, self._aliased = self._left[count:], self._aliased[count:]

    # -- what is told ---------------------------------------------------------------------------

    def _failure(self, error: BaseException) -> BaseException:
        if self._routing.backlog_error:
            self._routing.say_no_backlog(error)
        if not self._diverted:
            return error
        partly = BatchPartlySent(
            path=self._links.path,
            accepted=self._diverted,
            total=self._diverted + len(self._left),
            is_ambiguous=getattr(error, "is_ambiguous", False),
        )
        partly.__cause__ = error
        return partly

    def _publish(self, events: list[Event]) -> None:
        if events and self._messages:  # A cancel brings nothing that could arrive twice.
            self._routing.publish(map(self._with_ids, events))

    def _with_ids(self, event: Event) -> Event:
        """The core does not look into messages; who must look for duplicates needs their ids."""
        if not isinstance(event, PossibleDuplicate):
            return event
        ids = [
            _message_id(each) for message in self._messages for each in self._kind.unpack(message)
        ]
        return replace(event, message_ids=tuple(ids))


def _message_id(encoded: bytes) -> str:
    properties = Message.decode(encoded).properties
    if properties is None or properties.message_id is None:
        return ""
    return str(properties.message_id)
