"""Executes the steps of a send after its first attempt, and adapts messages of other libraries.

    MessageAdapter      how messages of one library are checked and unpacked
        ENCODED_BYTES       encoded messages
        BROKERED_MESSAGE    encoded messages with their BrokeredMessage
    SendExecution       one send whose first attempt has failed, or whose entity is diverted
        SendDecision.step() --> SendToPrimary   send the messages to the primary
                                SendToBacklog   send aliased copies to a backlog queue
                                Wait            until a time, or until the state changes
                                SendSucceeded, SendFailed   return to the caller

Rule 1: a check costs nearly nothing for a small message without properties (P0).
Rule 2: aliased copies are created when a send is diverted, once for each send.
Rule 3: a batch that its aliases make too large for a backlog queue is sent in parts. An accepted
        part is never sent again; if the rest is not accepted, BatchPartlySent reports how many
        messages were.
Rule 4: a cancelled caller leaves nothing except the messages that were accepted.
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
    """How messages of one library are checked and unpacked."""

    check: Callable[[Sequence[OutgoingMessage], str, int, str], None]
    """Refuse, in every state, messages that could not be diverted: reserved names (P12), and more
    bytes than a backlog queue accepts with the aliases (P13). Arguments: messages, path, limit in
    bytes, mark of the pair."""
    unpack: Callable[[OutgoingMessage], list[bytes]] = _one_message
    """The encoded messages of an OutgoingMessage: several if a library sends whole batches."""


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

# Far more than opening a link takes; a send that needs the link waits no longer than it would for a
# link that it opens itself.
OPEN_AHEAD_S: Final = 10.0

# Every tier of the service accepts batches of this size.
BATCH_BYTES_MAX_ASSUMED: Final = 262_144

SendAttempt: TypeAlias = Callable[[Sender, Sequence[OutgoingMessage], float], Awaitable[Any]]
"""One attempt at the primary: its sender, the messages, the timeout in seconds."""


class SendResult(NamedTuple):
    """The outcome of a send: the path that has accepted it."""

    where: str
    answer: Any
    """The answer of the primary, if the last attempt was at the primary."""
    diverted: int = 0
    """How many of the messages, counted from the first, were sent to the backlog."""


class Links:
    """The links of one sender: one to the primary, and one to every backlog queue that it has
    used."""

    def __init__(self, path: str, driver: Driver, primary: Sender | None = None) -> None:
        self.path = path
        self._driver = driver
        self._primary = primary
        self._backlog: dict[str, BatchingSender] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        """Links to backlog queues that are being opened and that no send uses yet."""
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
        """Count sends to the primary from now on; ``driver`` creates new links."""
        self._driver = driver
        if self._primary is not None:
            self._primary = metered_sender(self._primary, meter, unpack)

    @property
    def primary_facts(self) -> LinkProperties | None:
        """The properties of the link to the primary; None before it is open."""
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
        """Open the link to a backlog queue without a message, before it is needed: a diversion
        may follow. No send waits for it; an error is logged, and a send that needs the link opens
        it again."""
        if queue not in self._opening and not self._is_closed:
            opening = asyncio.create_task(_attach(self.backlog(routing, queue)))
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
                f"The sender of {self.path!r} is closed",
                hint="Create a new sender with the factory",
            )


async def _attach(link: BatchingSender) -> None:
    try:
        await link.attach(timeout_s=OPEN_AHEAD_S)
    except Exception as error:
        _log.debug("Link to %s could not be opened in advance: %s", link.path, error)


class SendExecution:
    """The send of one message or batch."""

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
        """``_left``: the messages that are not accepted yet."""
        self._kind = kind
        self._send_attempt = send_attempt
        self._aliased: list[bytes] | None = None
        self._diverted = 0
        self._answer: Any = None
        self._send = SendDecision(entity.failover, routing.rules, affinity, deadline, routing.rng)
        self.is_one_delivery = False
        """Whether the primary would get all messages in one delivery, so that their total size
        is limited; scheduled messages are accepted one by one."""

    async def run(self, first_error: Exception | None = None) -> SendResult:
        """Run the send to its end; ``first_error`` is the error of an earlier attempt at the
        primary."""
        now_s = self._routing.now_s
        if first_error is not None:
            self._handle_answer(first_error)
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
        self._handle_answer(error)

    def _handle_answer(self, error: Exception | None) -> None:
        if error is not None:
            self._entity.last_error = error_summary(error)
        now_s = self._routing.now_s()
        self._publish(self._send.answered(now_s, error))
        if error is not None and self._routing.backlog is not None:
            queue = self._send.queue_ahead(now_s)
            if queue is not None:
                self._links.open_ahead(self._routing, queue)

    # -- attempts -------------------------------------------------------------------------------

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
            self._mark_accepted(len(part))

    def _copies(self) -> list[bytes]:
        """The aliased copies of the messages that are not accepted yet."""
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
        """Refuse what the primary would refuse, with the same error: an outage does not change
        the limits, and the primary could not accept a larger message later (P13)."""
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
                error.advise("Send fewer messages at once; during an outage the limit is unknown")
            raise

    def _mark_accepted(self, count: int) -> None:
        assert self._aliased is not None
        self._entity.messages_diverted += count
        self._diverted += count
        self._left, self._aliased = self._left[count:], self._aliased[count:]

    # -- results --------------------------------------------------------------------------------

    def _failure(self, error: BaseException) -> BaseException:
        if self._routing.backlog_error:
            self._routing.explain_no_backlog(error)
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
        if events and self._messages:  # A cancel sends no message that could arrive twice.
            self._routing.publish(map(self._with_ids, events))

    def _with_ids(self, event: Event) -> Event:
        """Add the message ids to PossibleDuplicate, which its creator does not have."""
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
